//! Each pod gets the token of its own account, by the real API server and a fake Google.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use mock::google::{Endpoint, Fault, Subject, Workload};
use operator::check;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::google::{Cloud, POOL, world_with_google};
use crate::kube::{Client, NODE, pause};
use crate::operators::PAGES;
use crate::pod::{Asked, Pod};
use crate::process::Process;
use crate::rights::eventually;
use crate::support::needs::{Test, tests};
use crate::support::stall::{MIN_WAIT, Waits};
use crate::support::switch::is_full_size;
use crate::world::{Proxy, World};

pub const TESTS: &[Test] = tests![
    pods_get_the_tokens_of_their_own_accounts,
    a_pod_finds_its_token_when_it_starts,
    what_was_given_goes_on_while_google_and_the_api_server_are_away,
    what_google_refuses_is_seen_by_operators,
];

/// With a hundred clients.
pub const ALONE: &[Test] = tests![a_cold_herd_costs_one_exchange_per_account];

const ACCOUNTS: &str = "/computeMetadata/v1/instance/service-accounts";

/// A Google service account.
pub fn email(name: &str) -> String {
    format!("{name}@shop.iam.gserviceaccount.com")
}

pub fn proxy(world: &World, google: &Cloud, more: &[&str]) -> Proxy {
    let flags = google.flags();
    world.proxy(&flags.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Creates accounts of team-0 that are linked to Google accounts of the same name.
pub fn linked_accounts(api: &mut Client, google: &Cloud, number: u8) {
    for number in 0..number {
        let account = format!("app-{number}");
        api.create_account("team-0", &account);
        api.annotate_account("team-0", &account, "iam.gke.io/gcp-service-account", &email(&account));
        google.bind(Workload::new("team-0", &account), &email(&account));
    }
}

/// Number of requests to STS and IAM for an account of team-0.
fn exchanges(google: &Cloud, account: &str) -> [u64; 2] {
    let workload = Workload::new("team-0", account);
    [Endpoint::Sts, Endpoint::AccessToken].map(|endpoint| google.count_of(endpoint, &workload))
}

/// The response to a pod for a path below its accounts, after its account was read.
fn of_account(pod: &Arc<Pod>, below: &str) -> Asked {
    pod.get(&format!("{ACCOUNTS}{below}"))
}

/// The subject of a pod's token.
pub fn subject(pod: &Arc<Pod>, below: &str) -> Subject {
    let asked = of_account(pod, below);
    assert_eq!(asked.status, 200, "{below}: {}", asked.body);
    let token: Value = serde_json::from_str(&asked.body).expect("JSON");
    Subject::read(token["access_token"].as_str().expect("a token")).expect("a token of the fake Google")
}

/// The findings of `check`. From a thread that is in the pod's network.
fn findings(pod: &Pod) -> String {
    let runtime = Builder::new_current_thread().enable_all().build().expect("it needs nothing");
    runtime.block_on(check::at(pod.proxy())).findings_as_text()
}

fn pods_get_the_tokens_of_their_own_accounts() {
    let (world, mut api, google) = world_with_google();
    for (account, google_account) in
        [("linked", Some("linked")), ("plain", None), ("unbound", Some("unbound")), ("odd", Some("@"))]
    {
        api.create_account("team-0", account);
        if let Some(name) = google_account {
            let annotated = if name == "@" { "nonsense".to_owned() } else { email(name) };
            api.annotate_account("team-0", account, "iam.gke.io/gcp-service-account", &annotated);
        }
    }
    google.bind(Workload::new("team-0", "linked"), &email("linked"));
    google.add_account(&email("unbound"));
    let proxy = proxy(&world, &google, &["--audit"]);
    let [linked, plain, unbound, odd] = ["linked", "plain", "unbound", "odd"].map(|account| {
        let number = ["linked", "plain", "unbound", "odd"].iter().position(|name| *name == account).expect("listed");
        let object = api.create_pod("team-0", account, account, NODE);
        Pod::start(&world.node, object, world.address(u8::try_from(number).expect("few")))
    });

    let own = subject(&linked, "/default/token");
    assert_eq!((own.workload.to_string(), own.email.clone()), ("team-0/linked".to_owned(), Some(email("linked"))));
    assert_eq!(own.pod_uid, linked.object.uid);
    let scoped = subject(&linked, "/default/token?scopes=https://www.googleapis.com/auth/devstorage.read_only");
    assert_eq!(scoped.scopes, ["https://www.googleapis.com/auth/devstorage.read_only"]);
    assert_eq!(subject(&linked, &format!("/{}/token", email("linked"))), own, "by its other name");
    let federated = subject(&plain, "/default/token");
    assert_eq!((federated.workload.to_string(), federated.email), ("team-0/plain".to_owned(), None));

    for (pod, below, status, text) in [
        (&linked, "/default/email", 200, &*email("linked")),
        (&plain, "/default/email", 200, POOL),
        (&linked, "/", 200, "default/\nlinked@shop.iam.gserviceaccount.com/\n"),
        (&plain, "/default/identity?audience=https://a.example", 404, "is not annotated"),
        (&unbound, "/default/token", 403, "Unable to generate access token; IAM returned 403 Forbidden"),
        (&odd, "/default/email", 403, "Annotated service account must be in format of"),
        (&odd, "/default/token", 403, "Annotated service account must be in format of"),
        (&plain, &format!("/{}/token", email("linked")), 404, "is not this pod's"),
        (&plain, "/123-compute@developer.gserviceaccount.com/token", 404, "is not this pod's"),
    ] {
        let asked = of_account(pod, below);
        assert_eq!(asked.status, status, "{below} of {pod}: {}", asked.body);
        assert!(asked.body.contains(text), "{below} of {pod}: {}", asked.body);
    }
    let identity = of_account(&linked, "/default/identity?audience=https://a.example");
    assert_eq!(identity.status, 200, "{}", identity.body);
    let told = google.subject_of(&identity.body).expect("an identity token of the fake Google");
    assert_eq!((told.workload.to_string(), told.email), ("team-0/linked".to_owned(), Some(email("linked"))));

    for (pod, expected) in [
        (&linked, "the proxy issues one of the pod's own account, and not the node's"),
        (&plain, "404: the proxy does not have it or refuses it"),
        (&unbound, "no token: 403 from the proxy: Unable to generate access token; IAM returned 403 Forbidden"),
    ] {
        let found = pod.inside(findings);
        assert!(found.contains(expected) && !found.contains("OPEN"), "{pod}:\n{found}");
    }

    for account in ["linked", "plain"] {
        let exchanges = google.count_of(Endpoint::Sts, &Workload::new("team-0", account));
        assert_eq!(exchanges, 1, "{account}: one exchange for all scopes and audiences");
    }
    let written = proxy.written().join("\n");
    let pages = ["metrics", "statusz", "statusz?format=json", "flagz"];
    let pages = pages.map(|page| world.node.namespace.curl(&format!("{PAGES}/{page}")).text);
    for text in pages.iter().chain([&written]) {
        for secret in ["ya29.", "eyJ"] {
            assert!(!text.contains(secret), "a token is shown: {text}");
        }
    }
    assert!(written.contains("service_account=\"linked\" pod=\"linked\""), "{written}");
}

fn a_cold_herd_costs_one_exchange_per_account() {
    const REQUESTS: usize = 5;
    let pods: u8 = if is_full_size() { 110 } else { 30 };
    let (world, mut api, google) = world_with_google();
    for endpoint in [Endpoint::Sts, Endpoint::AccessToken] {
        google.fault(endpoint, Fault::Slow(Duration::from_millis(100)));
    }
    linked_accounts(&mut api, &google, pods);
    let proxy = proxy(&world, &google, &["--prefetch=none"]);
    let pods = world.pods(&mut api, pods);
    // Not in the tick in which the last pod began.
    pause(Duration::from_millis(500));
    let waits = Waits::below(proxy.id());
    let ready = Arc::new(Barrier::new(pods.len() * REQUESTS));
    let clients: Vec<_> = pods
        .iter()
        .flat_map(|pod| [(); REQUESTS].map(|()| Arc::clone(pod)))
        .map(|pod| {
            let ready = Arc::clone(&ready);
            thread::spawn(move || {
                pod.inside(move |pod| {
                    ready.wait();
                    pause(Duration::from_millis(fastrand::u64(..100)));
                    let began = Instant::now();
                    let mut connection = pod.connect().expect("the proxy listens");
                    let answer = connection.ask(&format!("{ACCOUNTS}/default/token")).expect("an answer");
                    (answer, began.elapsed())
                })
            })
        })
        .collect();
    let answers: Vec<_> = clients.into_iter().map(|client| client.join().expect("no panic")).collect();
    let good = answers.iter().filter(|(answer, _)| answer.contains(" 200 ")).count();
    let slowest = answers.iter().map(|(_, time)| *time).max().unwrap_or_default();
    println!("a cold herd: {good} of {} answered, the slowest after {slowest:.1?}", answers.len());
    let others: Vec<_> = answers.iter().map(|(answer, _)| answer).filter(|answer| !answer.contains(" 200 ")).collect();
    if !others.is_empty() {
        // A proxy that does not run cannot scan the node's processes or send requests to Google, and says so. A client
        // retries.
        let waited = Waits::below(proxy.id()).longest_since(&waits);
        let are_late = others.iter().all(|answer| answer.starts_with("HTTP/1.1 503 "));
        assert!(waited >= MIN_WAIT && are_late, "{others:?}, after {waited:?} without a processor");
        println!("a cold herd: asked again, because of {waited:?} without a processor");
        for pod in &pods {
            eventually(|| match pod.get(&format!("{ACCOUNTS}/default/token")) {
                asked if asked.status == 200 => Ok(()),
                asked => Err(asked.text),
            });
        }
    }
    for pod in &pods {
        assert_eq!(exchanges(&google, &pod.object.account), [1, 1], "{pod}");
    }
}

/// Number of Google account tokens issued to the proxy.
fn issued(world: &World) -> u64 {
    world.metric("metadata_proxy_token_exchanges_total{result=\"issued\",step=\"iam\"}")
}

fn a_pod_finds_its_token_when_it_starts() {
    // As many as are fetched for at once. In the long form, further ones are spread over half a minute.
    let pods: u8 = if is_full_size() { 100 } else { 15 };
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, pods);
    let _proxy = proxy(&world, &google, &[]);
    // A pod that exists when the proxy gets its first list of pods counts as old, and its token can wait.
    world.comes_to_show("metadata_proxy_identity_api_age_seconds ");
    let mut times: Vec<Duration> = (0..pods)
        .map(|number| {
            let account = format!("app-{number}");
            // It is scheduled, and nothing of it runs yet.
            let object = api.create_pod("team-0", &format!("pod-{number}"), &account, NODE);
            let began = Instant::now();
            while exchanges(&google, &account) != [1, 1] || issued(&world) <= number.into() {
                assert!(began.elapsed() < Duration::from_secs(45), "no token was fetched for {account}");
                pause(Duration::from_millis(10));
            }
            google.set_away(true);
            let pod = Pod::start(&world.node, object, world.address(number));
            // Not in the clock tick in which its first process began.
            pause(Duration::from_millis(50));
            let (answer, time) = pod.inside(|pod| {
                let began = Instant::now();
                let mut connection = pod.connect().expect("the proxy listens");
                let answer = connection.ask(&format!("{ACCOUNTS}/default/token")).expect("an answer");
                (answer, began.elapsed())
            });
            assert!(answer.contains(" 200 "), "{account}: {answer}");
            google.set_away(false);
            time
        })
        .collect();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!("the first token of a pod: p50 {:.1?}, p90 {:.1?}, slowest {:.1?}", at(50), at(90), at(100));
}

fn what_was_given_goes_on_while_google_and_the_api_server_are_away() {
    let (mut world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, 1);
    let _proxy = proxy(&world, &google, &["--prefetch=none"]);
    let pod = world.pod(&mut api, "pod-0", world.address(0));
    let before = subject(&pod, "/default/token");

    world.server.kill();
    let scoped = subject(&pod, "/default/token?scopes=https://www.googleapis.com/auth/devstorage.read_only");
    assert_eq!(scoped.email, Some(email("app-0")), "new scopes need Google only");
    google.set_away(true);
    let away = Duration::from_secs(if is_full_size() { 120 } else { 5 });
    let began = Instant::now();
    while began.elapsed() < away {
        assert_eq!(subject(&pod, "/default/token"), before);
        pause(Duration::from_millis(50));
    }
    assert_eq!(of_account(&pod, "/default/token?scopes=https://www.googleapis.com/auth/pubsub").status, 503);
    google.set_away(false);
    let back = Instant::now();
    while of_account(&pod, "/default/token?scopes=https://www.googleapis.com/auth/pubsub").status != 200 {
        assert!(back.elapsed() < Duration::from_secs(10), "it is not asked again");
        pause(Duration::from_millis(50));
    }
    println!("new scopes {:.1?} after Google was back", back.elapsed());
    world.server.restart();
}

fn what_google_refuses_is_seen_by_operators() {
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, 1);
    api.create_account("team-0", "unbound");
    api.annotate_account("team-0", "unbound", "iam.gke.io/gcp-service-account", &email("unbound"));
    google.add_account(&email("unbound"));
    let _proxy = proxy(&world, &google, &["--prefetch=none"]);
    let bound = world.pod(&mut api, "pod-0", world.address(0));
    let unbound = api.create_pod("team-0", "unbound", "unbound", NODE);
    let unbound = Pod::start(&world.node, unbound, world.address(1));
    let shows = |code: i32, parts: &[&str]| {
        eventually(|| {
            let status = Process::run(&world.node.namespace, &["status"]);
            let is_shown = status.code == Some(code) && parts.iter().all(|part| status.stdout.contains(part));
            if is_shown { Ok(()) } else { Err(format!("{:?}: {}", status.code, status.stdout)) }
        });
    };

    for _ in 0..20 {
        assert_eq!(of_account(&unbound, "/default/token").status, 403);
    }
    // One pod that provokes it is no trouble of the node.
    shows(
        0,
        &["ok       pods' own tokens: ", " x 403 account_refused, last ", "; Unable to generate access token; IAM"],
    );

    let description = "the keys are others".to_owned();
    google.fault(Endpoint::Sts, Fault::Oauth { error: "invalid_grant".to_owned(), description });
    assert_eq!(of_account(&bound, "/default/token").status, 403);
    shows(1, &["DEGRADED pods' own tokens: ", "403 exchange_untrusted, last ", "invalid_grant: the keys are others"]);
    let metrics = world.metrics();
    let failed = "metadata_proxy_request_duration_seconds_count{endpoint=\"token\",outcome=\"failed\"} 1\n";
    assert!(metrics.contains(failed), "it counts against the objective:\n{metrics}");
}
