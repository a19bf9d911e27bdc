//! Cached values through the real binary: each is fetched once, by the proxy itself or for the first client, and needs
//! no seat.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gce_metadata_proxy::config::Config;
use mock::{BUILDER_ACCOUNT, Fault, Handle};
use protocol::metadata::CommonPath;
use proxy::layers::conceal::Mode;
use proxy::layers::leaves::Leaf;
use proxy::policy::{Choice, Source};
use proxy::upstream::MAX_BUFFERED_BYTES;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::tokens::{crowd, path_of};
use crate::support::{Binary, Connection, Outcome, Proxy, config, eventually, get, upstream};

/// A value that the proxy does not cache.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

const CLUSTER_NAME: &str = "/computeMetadata/v1/instance/attributes/cluster-name";

/// A name that `compat` conceals.
const SECRET_OF_COMPAT: &str = "kube-env";

/// Number of values that are requested from one proxy at the same time.
const LEAVES_PER_PROXY: usize = 3;

/// Number of requests for exactly this target.
fn requests_for(mock: &Handle, target: &str) -> usize {
    mock.log().iter().filter(|request| request.target == target).count()
}

#[tokio::test]
async fn cold_requests_for_each_kept_value_are_one_upstream_request() {
    let leaves: Vec<Leaf> = Leaf::all().collect();
    for leaves in leaves.chunks(LEAVES_PER_PROXY) {
        let mock = upstream().await;
        // A second less than the proxy waits for it.
        mock.fault(Fault::Delay(Duration::from_millis(1500)));
        let (_binary, addr) = Binary::proxy(mock.addr()).await;
        let targets = leaves.iter().flat_map(|leaf| std::iter::repeat_n(leaf.to_string(), 250));
        let answers = crowd(addr, targets).await;
        for (answer, leaf) in answers.iter().zip(leaves.iter().flat_map(|leaf| [leaf; 250])) {
            // Clients treat a 404 as the default domain. They wait at most a second for this value.
            let is_default = leaf.path() == CommonPath::UniverseDomain && answer.status == 404;
            assert!(answer.status == 200 || is_default, "{leaf}: {answer:?}");
        }
        for leaf in leaves {
            assert_eq!(requests_for(&mock, &leaf.to_string()), 1, "{leaf}");
        }
    }
}

#[tokio::test]
async fn it_is_ready_when_the_slowest_answer_is_there() {
    // A second less than the proxy waits for it.
    const SLOWEST: Duration = Duration::from_millis(1500);
    let mock = upstream().await;
    mock.fault(Fault::Delay(SLOWEST));
    let (mut binary, _) = Binary::proxy(mock.addr()).await;
    let began = Instant::now();
    binary.stderr_line("cache warmed up: the default token and common values are cached").await;
    assert!(began.elapsed() < 2 * SLOWEST, "all are requested at once: {:?}", began.elapsed());
    assert_eq!(mock.log().len(), 1 + Leaf::all().count(), "each is requested once");
}

#[tokio::test]
async fn a_missing_value_is_kept_as_missing_and_delays_nothing() {
    let mock = upstream().await;
    mock.remove("instance/attributes/cluster-name");
    let proxy = Proxy::start(mock.addr()).await;
    for _ in 0..3 {
        let answer = get(proxy.addr, CLUSTER_NAME).await;
        assert_eq!((answer.status, answer.header("server")), (404, Some("Metadata Server for VM")));
    }
    assert_eq!(requests_for(&mock, CLUSTER_NAME), 1);
    proxy.stop().await;
}

#[tokio::test]
async fn what_gcloud_cloud_logging_opentelemetry_and_libcloud_ask_first_is_known_while_the_upstream_is_away() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    let mut before = Vec::new();
    for leaf in Leaf::all() {
        before.push(get(proxy.addr, &leaf.to_string()).await);
    }
    mock.stop().await;
    for (leaf, before) in Leaf::all().zip(before) {
        let answer = get(proxy.addr, &leaf.to_string()).await;
        assert_eq!((answer.status, &answer.body), (200, &before.body), "{leaf}");
        assert!(answer.header("age").is_some_and(|age| age.parse::<u64>().is_ok()), "{leaf}: {answer:?}");
    }
    let page = get(proxy.metrics_addr, "/statusz?format=json").await.body;
    let status: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let values = status["values"].as_array().expect("a list");
    let paths: Vec<&str> = values.iter().filter_map(|value| value["path"].as_str()).collect();
    assert_eq!(paths, Leaf::all().map(|leaf| leaf.to_string()).collect::<Vec<_>>());
    assert!(values.iter().all(|value| value["status"] == 200 && value["age_seconds"].is_u64()), "{values:?}");
    proxy.stop().await;
}

#[tokio::test]
async fn a_directory_without_its_slash_needs_no_upstream() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.stop().await;
    for directory in [
        "v1",
        "v1/instance",
        "v1/instance/attributes",
        "v1/instance/service-accounts",
        "v1/instance/service-accounts/default",
        "v1/project",
    ] {
        let target = format!("/computeMetadata/{directory}");
        let answer = get(proxy.addr, &target).await;
        let location = format!("http://{}{target}/", proxy.addr);
        assert_eq!((answer.status, answer.header("location")), (301, Some(location.as_str())), "{target}");
    }
    proxy.stop().await;
}

/// A policy that conceals a value also conceals it while it is cached.
#[tokio::test]
async fn a_concealed_value_is_not_served_from_memory() {
    let mock = upstream().await;
    let mut config = config(mock.addr());
    config.policy = Choice { source: Source::parse("strict"), recursive: None };
    let proxy = Proxy::with(config).await;
    assert_eq!(get(proxy.addr, "/computeMetadata/v1/instance/machine-type").await.status, 404);
    assert_eq!(get(proxy.addr, CLUSTER_NAME).await.status, 200);
    proxy.stop().await;
}

/// A mock whose [`LEAF`] hangs, and a proxy whose seats are taken by requests for it.
async fn all_seats_taken() -> (Handle, Proxy, JoinSet<Outcome>) {
    let mock = upstream().await;
    let mut config = config(mock.addr());
    config.max_in_flight = 2;
    let proxy = Proxy::with(config).await;
    mock.reset_counters();
    mock.fault_next(2, Fault::Hang);
    let addr = proxy.addr;
    let held = (0..2).map(|_| async move { Connection::open(addr).await.ask(LEAF).await }).collect();
    eventually("all seats are taken", || mock.in_flight() == 2).await;
    (mock, proxy, held)
}

async fn ask_from(pod: Ipv4Addr, addr: SocketAddr, target: String) -> Outcome {
    Connection::open_from(pod, addr).await.ask(&target).await
}

#[tokio::test]
async fn a_token_that_is_not_known_needs_no_seat() {
    let (mock, proxy, held) = all_seats_taken().await;
    mock.fault(Fault::Delay(Duration::from_millis(300)));
    let mut crowd = JoinSet::new();
    for pod in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)] {
        for _ in 0..50 {
            crowd.spawn(ask_from(pod, proxy.addr, format!("{}?scopes=a", path_of(BUILDER_ACCOUNT))));
        }
    }
    for outcome in crowd.join_all().await {
        assert!(outcome.is_status(200), "{outcome:?}");
    }
    assert_eq!(mock.requests(), 2 + 1);
    assert_eq!(held.len(), 2);
    proxy.stop().await;
}

#[tokio::test]
async fn a_newcomer_waits_for_a_seat_as_long_as_an_answer_may_take() {
    let (_mock, proxy, _held) = all_seats_taken().await;
    let began = Instant::now();
    let outcome = ask_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr, LEAF.to_owned()).await;
    assert!(outcome.is_status(200), "{outcome:?}");
    assert!(began.elapsed() > Duration::from_secs(2), "the seats were held until the upstream timeout");
    proxy.stop().await;
}

/// `object_store` (Rust) sends an audience with its request for an access token.
#[tokio::test]
async fn the_default_token_is_also_that_of_a_request_with_an_audience() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.stop().await;
    let target = format!("{}?audience=https%3A%2F%2Fwww.googleapis.com%2Foauth2%2Fv4%2Ftoken", path_of("default"));
    assert_eq!(get(proxy.addr, &target).await.status, 200);
    proxy.stop().await;
}

/// The directories whose trees are cached.
const TREES: [&str; 3] = ["/computeMetadata/v1/", "/computeMetadata/v1/instance/", "/computeMetadata/v1/project/"];

/// All formats of a tree are made from the same value.
#[tokio::test]
async fn a_herd_of_tree_readers_is_one_upstream_request_and_needs_no_upstream_afterwards() {
    const READERS: usize = 110;
    for tree in TREES {
        let mock = upstream().await;
        // A second less than the proxy waits for it.
        mock.fault(Fault::Delay(Duration::from_millis(1500)));
        let (_binary, addr) = Binary::proxy(mock.addr()).await;
        let formats = ["", "&alt=json", "&alt=text"].map(|format| format!("{tree}?recursive=true{format}"));
        let read = async || {
            let answers = crowd(addr, formats.iter().cycle().take(READERS).cloned()).await;
            assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
            answers.into_iter().map(|answer| answer.body).collect::<BTreeSet<_>>()
        };
        let cold = read().await;
        assert_eq!(cold.len(), 2, "as JSON and as text");
        let asked = mock.log().iter().filter(|seen| seen.target.starts_with(&format!("{tree}?"))).count();
        assert_eq!(asked, 1, "{tree}");
        mock.stop().await;
        assert_eq!(read().await, cold, "{tree}");
    }
}

#[tokio::test]
async fn a_kept_tree_needs_no_seat() {
    let (_mock, proxy, _held) = all_seats_taken().await;
    for tree in TREES {
        for format in ["", "&alt=json", "&alt=text"] {
            let answer = get(proxy.addr, &format!("{tree}?recursive=true{format}")).await;
            assert_eq!(answer.status, 200, "{tree} {format}: {answer:?}");
        }
    }
    proxy.stop().await;
}

/// Each client reads a large tree separately, because of its size.
#[tokio::test]
async fn a_tree_that_is_large_when_redacted_is_not_kept() {
    let mock = upstream().await;
    mock.set("instance/attributes/large", &"x".repeat(MAX_BUFFERED_BYTES));
    let proxy = Proxy::start(mock.addr()).await;
    mock.reset_counters();
    for number in 1..=2 {
        let answer = get(proxy.addr, &format!("{}?recursive=true", TREES[1])).await;
        assert_eq!((answer.status, mock.requests()), (200, number));
        assert!(answer.body.len() > MAX_BUFFERED_BYTES && !answer.body.contains(SECRET_OF_COMPAT));
    }
    proxy.stop().await;
}

/// In audit mode clients see everything, so no redacted tree is cached for them.
#[tokio::test]
async fn no_tree_is_kept_where_none_is_redacted() {
    let mock = upstream().await;
    let proxy = Proxy::with(Config { policy_mode: Mode::Audit, ..config(mock.addr()) }).await;
    mock.reset_counters();
    let answer = get(proxy.addr, &format!("{}?recursive=true", TREES[1])).await;
    assert!(answer.body.contains(SECRET_OF_COMPAT) && mock.requests() == 1, "{answer:?}");
    proxy.stop().await;
}
