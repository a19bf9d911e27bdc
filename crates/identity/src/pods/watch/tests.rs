mod outages;

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::fake::{Asked, Fake, Running, VERSION};

const NODE: &str = "node-1";

/// A running watch, and its server.
struct Scene {
    fake: Fake,
    pods: Arc<Pods>,
    told: Arc<Mutex<Vec<String>>>,
    running: JoinHandle<Infallible>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Scene {
    fn new() -> Self {
        let (fake, cluster) = Fake::new(NODE);
        let (pods, told) = (Arc::<Pods>::default(), Arc::<Mutex<Vec<String>>>::default());
        let on = {
            let told = Arc::clone(&told);
            move |event: WatchEvent<'_>| {
                let text = match event {
                    WatchEvent::Listed { pods } => format!("listed {pods}"),
                    WatchEvent::Failed { is_logged: true, .. } => "failed".to_owned(),
                    WatchEvent::Failed { .. } => "failed again".to_owned(),
                    WatchEvent::Recovered => "recovered".to_owned(),
                };
                told.lock().expect("no panic").push(text);
            }
        };
        let running = tokio::spawn(follow(cluster, Arc::clone(&pods), on));
        Self { fake, pods, told, running }
    }

    /// The next request, which begins a list as events.
    async fn lists_by_events(&mut self) -> Running {
        let asked = self.fake.asked().await;
        assert_eq!(asked.parameter("sendInitialEvents").as_deref(), Some("true"), "{}", asked.request.uri());
        assert_eq!(asked.parameter("resourceVersion"), None);
        asked.run(200)
    }

    /// The next requests, which read a list in one response, with this pod, and resume from there.
    async fn lists_at_once(&mut self, digit: &str) {
        let asked = self.fake.asked().await;
        assert_eq!((asked.parameter("watch"), asked.parameter("resourceVersion")), (None, None));
        asked.answer(200, &json!({"metadata": {"resourceVersion": "300"}, "items": [pod(digit, "7")]}));
        let _running = self.goes_on("300").await.run(200);
        self.knows(&[digit]).await;
    }

    /// The next request, which resumes after this version.
    async fn goes_on(&mut self, version: &str) -> Asked {
        let asked = self.fake.asked().await;
        assert_eq!(asked.parameter("resourceVersion").as_deref(), Some(version), "{}", asked.request.uri());
        assert_eq!(asked.parameter("sendInitialEvents"), None);
        asked
    }

    /// A watch that knows these pods.
    async fn with(digits: &[&str]) -> (Self, Running) {
        let mut scene = Self::new();
        let running = scene.lists_by_events().await;
        for digit in digits {
            running.event("ADDED", &pod(digit, VERSION));
        }
        running.end_list();
        scene.knows(digits).await;
        (scene, running)
    }

    /// Waits until exactly these pods are known.
    async fn knows(&self, digits: &[&str]) {
        let mut changes = self.pods.subscribe();
        let known = async {
            while self.known() != digits {
                changes.changed().await.expect("open");
            }
        };
        let in_time = timeout(Duration::from_secs(600), known).await;
        assert!(in_time.is_ok(), "known are {:?}, not {digits:?}", self.known());
    }

    /// The first digits of the known pods' UIDs.
    fn known(&self) -> Vec<String> {
        let mut known: Vec<_> = self.pods.all().iter().map(|pod| pod.uid.to_string()[..1].to_owned()).collect();
        known.sort();
        known
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("no panic"))
    }
}

fn uid(digit: &str) -> String {
    PodUid::parse(&digit.repeat(32)).expect("a UID").to_string()
}

fn pod(digit: &str, version: &str) -> Value {
    json!({
        "metadata": {"namespace": "a", "name": "p", "uid": uid(digit), "resourceVersion": version},
        "spec": {"nodeName": NODE, "serviceAccountName": "app", "containers": [{"name": "c"}]},
        "status": {"phase": "Pending"},
    })
}

/// Lets everything that is due happen.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_report_is_in_doubt_is_listed_at_once() {
    let (mut scene, _running) = Scene::with(&["1"]).await;
    sleep(Duration::from_secs(40)).await;
    assert!(scene.pods.age() >= Some(Duration::from_secs(40)), "nothing is new");
    scene.pods.doubted();
    let running = scene.lists_by_events().await;
    running.event("ADDED", &pod("1", VERSION));
    running.end_list();
    settle().await;
    assert!(scene.pods.age() < Some(Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_list_is_taken_over_when_it_is_whole() {
    let mut scene = Scene::new();
    let running = scene.lists_by_events().await;
    running.event("ADDED", &pod("1", "5"));
    running.bookmark("50");
    running.event("ADDED", &pod("2", "6"));
    running.event("DELETED", &pod("2", "7"));
    settle().await;
    assert_eq!((scene.pods.count(), scene.pods.age()), (0, None));
    running.end_list();
    scene.knows(&["1"]).await;
    assert_eq!(scene.told(), ["listed 1"]);
}

#[tokio::test(start_paused = true)]
async fn pods_are_added_changed_and_deleted() {
    let (scene, running) = Scene::with(&["1"]).await;
    running.event("ADDED", &pod("2", "101"));
    scene.knows(&["1", "2"]).await;
    let mut changed = pod("2", "102");
    changed["status"] = json!({"phase": "Running", "podIPs": [{"ip": "10.8.0.5"}, {"ip": "fd00::5"}]});
    changed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    running.event("MODIFIED", &changed);
    scene.pods.subscribe().changed().await.expect("open");
    let known = scene.pods.get(PodUid::parse(&uid("2")).expect("a UID")).expect("known");
    let expected = Pod {
        uid: PodUid::parse(&uid("2")).expect("a UID"),
        namespace: "a".into(),
        name: "p".into(),
        account: "app".into(),
        host_network: false,
        ended: false,
        terminating: true,
        created: 0,
        addresses: vec!["10.8.0.5".parse().expect("an address"), "fd00::5".parse().expect("an address")],
    };
    assert_eq!(*known, expected);
    running.event("DELETED", &pod("1", "103"));
    scene.knows(&["2"]).await;
}

#[tokio::test(start_paused = true)]
async fn who_has_no_uid_or_is_elsewhere_is_left_out() {
    let (mut scene, running) = Scene::with(&["1"]).await;
    scene.told();
    let mut nobody = pod("2", "101");
    nobody["metadata"]["uid"] = json!("no-uuid");
    running.event("ADDED", &nobody);
    let mut elsewhere = pod("3", "102");
    elsewhere["spec"]["nodeName"] = json!("node-2");
    running.event("ADDED", &elsewhere);
    drop(running);
    scene.goes_on("102").await;
    assert_eq!((scene.known(), scene.told()), (vec!["1".to_owned()], Vec::<String>::new()));
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_is_a_sign_of_life_and_where_the_next_watch_begins() {
    let (mut scene, running) = Scene::with(&["1"]).await;
    sleep(Duration::from_secs(62)).await;
    assert_eq!(scene.pods.age().expect("a list").as_secs(), 62);
    running.bookmark("200");
    settle().await;
    assert!(scene.pods.age().expect("a list").as_secs() < 1);
    drop(running);
    scene.goes_on("200").await.run(200);
    assert_eq!(scene.told(), ["listed 1"], "a watch that ends in order has not failed");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_lists_anew_and_serves_meanwhile() {
    for in_the_head in [false, true] {
        let (mut scene, running) = Scene::with(&["1", "2"]).await;
        if in_the_head {
            drop(running);
            scene.goes_on(VERSION).await.refuse(410, "too old resource version: 1 (250)");
        } else {
            running.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
        }
        let running = scene.lists_by_events().await;
        running.event("ADDED", &pod("2", "300"));
        running.event("ADDED", &pod("3", "301"));
        settle().await;
        assert_eq!(scene.known(), ["1", "2"], "not before the list is whole");
        running.end_list();
        scene.knows(&["2", "3"]).await;
        assert_eq!(scene.told(), ["listed 2", "failed again", "listed 2"], "nothing to log");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_changes_nothing() {
    let (mut scene, running) = Scene::with(&["1", "2"]).await;
    running.event("ERROR", &json!({"code": 410}));
    let running = scene.lists_by_events().await;
    running.event("ADDED", &pod("2", "300"));
    drop(running);
    let running = scene.lists_by_events().await;
    assert_eq!(scene.known(), ["1", "2"]);
    running.event("ADDED", &pod("3", "301"));
    running.end_list();
    scene.knows(&["3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_goes_on_where_it_was() {
    let (mut scene, running) = Scene::with(&["1"]).await;
    running.event("ADDED", &pod("2", "101"));
    scene.knows(&["1", "2"]).await;
    // Half an event does not count.
    running.bytes(&br#"{"type":"DELETED","object":{"metadata":{"uid":"#[..]);
    running.cut();
    let running = scene.goes_on("101").await.run(200);
    assert_eq!(scene.known(), ["1", "2"]);
    running.event("DELETED", &pod("1", "102"));
    scene.knows(&["2"]).await;
    assert_eq!(scene.told(), ["listed 1", "failed", "recovered"]);
}

#[tokio::test(start_paused = true)]
async fn after_an_event_that_makes_no_sense_the_pods_are_listed_anew() {
    let mut without_version = pod("2", "");
    without_version["metadata"]["resourceVersion"] = Value::Null;
    let lines = ["{}\n".to_owned(), "<html>\n".to_owned(), json!({"type": "NEW", "object": {}}).to_string() + "\n"];
    for line in lines {
        let (mut scene, running) = Scene::with(&["1"]).await;
        running.bytes(line);
        scene.lists_at_once("2").await;
    }
    let (mut scene, running) = Scene::with(&["1"]).await;
    running.event("DELETED", &json!({"metadata": {"uid": uid("2")}}));
    scene.lists_at_once("2").await;
}

#[tokio::test(start_paused = true)]
async fn one_object_that_makes_no_sense_does_not_keep_a_new_proxy_from_the_others() {
    let mut scene = Scene::new();
    scene.lists_by_events().await.bytes(format!("{{\"a\":[{}\n", "0,".repeat(1 << 20)));
    scene.lists_at_once("1").await;
    assert_eq!(scene.told(), ["failed", "listed 1", "recovered"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_send_a_list_as_events_is_asked_for_one() {
    let mut scene = Scene::new();
    let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature \
                   gate is enabled";
    scene.fake.asked().await.refuse(422, message);
    for (round, digit) in ["1", "2"].into_iter().enumerate() {
        let asked = scene.fake.asked().await;
        assert_eq!((asked.parameter("watch"), asked.parameter("resourceVersion")), (None, None), "round {round}");
        assert_eq!(asked.parameter("fieldSelector").as_deref(), Some("spec.nodeName=node-1"));
        asked.answer(200, &json!({"metadata": {"resourceVersion": "300"}, "items": [pod(digit, "7")]}));
        let running = scene.goes_on("300").await.run(200);
        scene.knows(&[digit]).await;
        running.event("ERROR", &json!({"code": 410}));
    }
    assert_eq!(scene.told(), ["listed 1", "failed again", "listed 1"], "which is no failure");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_ends_the_list_is_asked_for_one() {
    let mut scene = Scene::new();
    let running = scene.lists_by_events().await;
    for _ in 0..4 {
        sleep(Duration::from_secs(14)).await;
        running.event("ADDED", &pod("1", "5"));
    }
    let asked = scene.fake.asked().await;
    assert_eq!((asked.parameter("watch"), scene.known()), (None, Vec::<String>::new()));
}
