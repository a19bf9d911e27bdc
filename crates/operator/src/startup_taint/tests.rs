//! What is asked of the API server to remove a taint, in paused time.

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use identity::cluster::fake::Fake;

const KEY: &str = "example.com/not-ready";

/// Starts to remove the taint from `node-1`.
fn begin() -> (Fake, JoinHandle<()>) {
    let (fake, cluster) = Fake::new("node-1");
    let key = TaintKey::parse(KEY).expect("a key");
    (fake, tokio::spawn(async move { remove_from(&cluster, &key).await }))
}

fn node(version: &str, taints: &Value) -> Value {
    let images = vec![json!({"names": ["an-image"]}); 50];
    json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}, "status": {"images": images}})
}

fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "value": "true", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"})
}

/// Answers with this node, and returns what the request was.
async fn show(fake: &mut Fake, node: &Value) {
    let asked = fake.asked().await;
    assert_eq!((asked.request.method().as_str(), asked.request.uri().path()), ("GET", "/api/v1/nodes/node-1"));
    asked.answer(200, node);
}

#[tokio::test(start_paused = true)]
async fn only_this_taint_is_removed_and_only_from_the_node_that_was_read() {
    let (mut fake, removing) = begin();
    let other = taint("example.com/gpu", "NoSchedule");
    show(&mut fake, &node("7", &json!([taint(KEY, "NoSchedule"), other, taint(KEY, "NoExecute")]))).await;
    let asked = fake.asked().await;
    assert_eq!(asked.request.method().as_str(), "PATCH");
    assert_eq!(asked.request.headers()["content-type"], "application/merge-patch+json");
    let patch = asked.body().await;
    assert_eq!(patch, json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": [other]}}));
    removing.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_the_taint_is_left_alone() {
    for taints in [json!([taint("example.com/gpu", "NoSchedule")]), json!([]), Value::Null] {
        let (mut fake, removing) = begin();
        show(&mut fake, &node("7", &taints)).await;
        removing.await.expect("it ends without a patch");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_changed_meanwhile_is_read_again() {
    let (mut fake, removing) = begin();
    show(&mut fake, &node("7", &json!([taint(KEY, "NoSchedule")]))).await;
    fake.asked().await.refuse(409, "the object has been modified");
    let added = taint("example.com/new", "NoSchedule");
    show(&mut fake, &node("8", &json!([added, taint(KEY, "NoSchedule")]))).await;
    let patch = fake.asked().await.body().await;
    assert_eq!(patch, json!({"metadata": {"resourceVersion": "8"}, "spec": {"taints": [added]}}));
    removing.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_is_tried_again_more_and_more_seldom() {
    let (mut fake, removing) = begin();
    let began = Instant::now();
    for status in [403, 500, 403, 503, 401, 403, 403] {
        fake.asked().await.refuse(status, "no");
    }
    show(&mut fake, &node("7", &json!([]))).await;
    removing.await.expect("no panic");
    assert_eq!(began.elapsed().as_secs(), 1 + 2 + 4 + 8 + 16 + 30 + 30);
}

/// The node was deleted and registered again, under a pod that lived on.
#[tokio::test(start_paused = true)]
async fn a_taint_that_is_back_is_removed_once_everything_works() {
    const WORKS_AFTER: Duration = Duration::from_secs(7);
    let (mut fake, cluster) = Fake::new("node-1");
    let key = TaintKey::parse(KEY).expect("a key");
    let keeping = tokio::spawn(async move {
        keep_away_from(&cluster, &key, async || sleep(WORKS_AFTER).await).await;
    });
    let tainted = node("7", &json!([taint(KEY, "NoSchedule")]));
    show(&mut fake, &node("6", &Value::Null)).await;
    for _ in 0..2 {
        let began = Instant::now();
        fake.asked().await.refuse(404, "there is no such node");
        show(&mut fake, &tainted).await;
        assert!((180..=300).contains(&began.elapsed().as_secs()), "two looks took {:?}", began.elapsed());
        let seen = Instant::now();
        show(&mut fake, &tainted).await;
        assert_eq!(seen.elapsed(), WORKS_AFTER);
        let patch = fake.asked().await.body().await;
        assert_eq!(patch, json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": []}}));
    }
    keeping.abort();
}

#[tokio::test]
async fn the_proxy_is_ready_when_it_says_so() {
    let nobody = is_ready(([127, 0, 0, 1], 1).into()).await;
    assert!(nobody.is_err_and(|why| why.contains("cannot connect")), "nothing listens");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let admin = listener.local_addr().expect("an address");
    let proxy = tokio::spawn(async move {
        for (status, body) in [("503 Service Unavailable", "starting"), ("200 OK", "ready")] {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 1024]).await.expect("a request");
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.expect("it is read");
        }
    });
    assert!(is_ready(admin).await.is_err_and(|why| why.contains("503") && why.contains("starting")));
    timeout(Duration::from_secs(10), proxy_is_ready(admin)).await.expect("it is ready now");
    proxy.await.expect("no panic");
}
