//! Overload: which requests are refused, how, and which are not.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gce_metadata_proxy::config::Config;
use gce_metadata_proxy::layers::rescue::OnOverload;
use gce_metadata_proxy::mock::{Fault, Handle};
use gce_metadata_proxy::policy::{Choice, Source};
use rustix::process::Signal;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Answer, Binary, Connection, Outcome, Proxy, config, eventually, get, metric, metric_becomes, release, request,
    upstream,
};
use crate::turn;

/// A value that the proxy does not cache.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

const IN_FLIGHT: &str = "metadata_proxy_in_flight";
const CONNECTIONS: &str = "metadata_proxy_connections";
const HANGING: &str = "metadata_proxy_hanging";
const RESETS: &str = "metadata_proxy_resets_total";

fn sheds(reason: &str) -> String {
    format!("metadata_proxy_sheds_total{{reason=\"{reason}\"}}")
}

/// A mock, and a proxy in this process in front of it.
async fn start(change: impl FnOnce(&mut Config)) -> (Handle, Proxy) {
    let mock = upstream().await;
    let mut config = config(mock.addr());
    change(&mut config);
    let proxy = Proxy::with(config).await;
    mock.reset_counters();
    (mock, proxy)
}

/// A mock, and the binary in front of it: where it serves pods and operators.
async fn start_binary(args: &[&str]) -> (Handle, Binary, SocketAddr, SocketAddr) {
    let mock = upstream().await;
    let (binary, addr, metrics_addr) = Binary::ready_of(release(), None, mock.addr(), args).await;
    mock.reset_counters();
    (mock, binary, addr, metrics_addr)
}

/// Starts this many clients that request a target, each on its own connection.
fn clients(count: usize, addr: SocketAddr, target: &'static str) -> JoinSet<Outcome> {
    (0..count).map(|_| async move { Connection::open(addr).await.ask(target).await }).collect()
}

/// Makes the upstream hang and starts this many requests, which wait for it. They time out after 2.5 s.
async fn fill(mock: &Handle, addr: SocketAddr, count: usize) -> JoinSet<Outcome> {
    mock.fault(Fault::Hang);
    let waiting = clients(count, addr, LEAF);
    let wanted = u64::try_from(count).expect("a small number");
    eventually("all seats are taken", || mock.in_flight() == wanted).await;
    waiting
}

async fn all_are_200(clients: JoinSet<Outcome>) {
    for outcome in clients.join_all().await {
        assert!(outcome.is_status(200), "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_above_the_limit_is_reset_at_once_and_costs_nobody_else_anything() {
    let _turn = turn().await;
    let (mock, _binary, addr, metrics_addr) = start_binary(&[]).await;
    let waiting = fill(&mock, addr, 200).await;
    let full = Instant::now();

    let mut took = Vec::new();
    for _ in 0..200 {
        let mut client = Connection::open(addr).await;
        let sent = Instant::now();
        let outcome = client.ask(LEAF).await;
        took.push(sent.elapsed());
        assert!(outcome.is_reset(), "{outcome:?}");
    }
    took.sort_unstable();
    println!("200 resets: slowest {:?}, median {:?}", took[199], took[100]);
    assert!(took[199] < Duration::from_secs(1), "{:?}", took[199]);

    for target in ["/", TOKEN, "/computeMetadata/v1/instance/zone", "/computeMetadata/v1/instance/id"] {
        assert_eq!(get(addr, target).await.status, 200, "{target} asks nothing of the upstream");
    }
    assert_eq!(get(addr, "/computeMetadata/v1/instance").await.status, 301);
    assert_eq!(get(metrics_addr, "/readyz").await.status, 200);
    assert_eq!(metric(metrics_addr, IN_FLIGHT).await, Some(200.0));
    assert_eq!(metric(metrics_addr, "metadata_proxy_in_flight_peak").await, Some(200.0));
    assert_eq!(metric(metrics_addr, "metadata_proxy_in_flight_limit").await, Some(200.0));
    println!("the upstream held its answers for {:?} more", full.elapsed());

    mock.heal();
    all_are_200(waiting).await;
    assert_eq!(metric(metrics_addr, &sheds("in_flight")).await, Some(200.0));
    assert_eq!(metric(metrics_addr, RESETS).await, Some(200.0));
    assert_eq!((mock.requests(), mock.peak_in_flight()), (200, 200));
    metric_becomes(metrics_addr, IN_FLIGHT, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_is_exact_when_two_thousand_race() {
    let _turn = turn().await;
    let (mock, _binary, addr, metrics_addr) = start_binary(&["--max-connections=3000"]).await;
    mock.fault(Fault::Hang);
    let start = Arc::new(Barrier::new(2001));
    let mut clients = JoinSet::new();
    for _ in 0..2000 {
        let start = Arc::clone(&start);
        clients.spawn(async move {
            let mut client = Connection::open(addr).await;
            start.wait().await;
            client.ask(LEAF).await
        });
    }
    metric_becomes(metrics_addr, CONNECTIONS, 2000).await;
    start.wait().await;
    let raced = Instant::now();
    for refused in 0..1800 {
        let outcome = clients.join_next().await.expect("as many as began").expect("no panic");
        assert!(outcome.is_reset(), "after {refused} resets and {:?}: {outcome:?}", raced.elapsed());
    }
    eventually("those let in are all upstream", || mock.in_flight() == 200).await;
    println!("1,800 of 2,000 were reset in {:?}", raced.elapsed());
    mock.heal();
    all_are_200(clients).await;
    assert_eq!((mock.requests(), mock.peak_in_flight()), (200, 200));
    assert_eq!(metric(metrics_addr, &sheds("in_flight")).await, Some(1800.0));
}

#[tokio::test]
async fn a_limit_of_one_is_one() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_in_flight = 1).await;
    let waiting = fill(&mock, proxy.addr, 1).await;
    for _ in 0..5 {
        assert!(Connection::open(proxy.addr).await.ask(LEAF).await.is_reset());
    }
    mock.heal();
    all_are_200(waiting).await;
    for _ in 0..5 {
        assert_eq!(get(proxy.addr, LEAF).await.status, 200, "the seat was given back");
    }
}

#[tokio::test]
async fn a_pod_that_has_all_seats_is_refused_and_another_gets_the_next() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_in_flight = 2).await;
    let waiting = fill(&mock, proxy.addr, 2).await;
    let mut other = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
    other.send(request(LEAF)).await;
    for _ in 0..5 {
        assert!(Connection::open(proxy.addr).await.ask(LEAF).await.is_reset());
    }
    assert_eq!(mock.in_flight(), 2);
    mock.heal();
    assert_eq!(other.outcome().await.answer().status, 200);
    all_are_200(waiting).await;
    assert_eq!(proxy.metric(&sheds("in_flight")).await, Some(5.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_five_thousand_lets_six_hundred_in() {
    let _turn = turn().await;
    let limits = ["--max-in-flight=5000", "--max-connections=6000"];
    let (mock, _binary, addr, metrics_addr) = start_binary(&limits).await;
    let waiting = fill(&mock, addr, 600).await;
    mock.heal();
    all_are_200(waiting).await;
    assert_eq!(metric(metrics_addr, &sheds("in_flight")).await, Some(0.0));
}

#[tokio::test]
async fn overload_unavailable_is_a_503_that_closes() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| {
        config.max_in_flight = 1;
        config.on_overload = OnOverload::Unavailable;
    })
    .await;
    let waiting = fill(&mock, proxy.addr, 1).await;
    let mut client = Connection::open(proxy.addr).await;
    let answer = client.ask(LEAF).await.answer();
    assert_eq!(answer.status, 503);
    for (name, value) in [("retry-after", "1"), ("metadata-flavor", "Google"), ("connection", "close")] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    assert_eq!(answer.body.lines().count(), 1, "{}", answer.body);
    assert!(answer.body.ends_with(".\n"), "{}", answer.body);
    assert!(matches!(client.outcome().await, Outcome::Closed), "and no reset");
    mock.heal();
    all_are_200(waiting).await;
    assert_eq!(proxy.metric(&sheds("in_flight")).await, Some(1.0));
    assert_eq!(proxy.metric(RESETS).await, Some(0.0));
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_gives_its_seat_back() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_in_flight = 1).await;
    let waiting = fill(&mock, proxy.addr, 1).await;
    drop(waiting);
    metric_becomes(proxy.metrics_addr, IN_FLIGHT, 0).await;
    mock.heal();
    assert_eq!(get(proxy.addr, LEAF).await.status, 200);
}

#[tokio::test]
async fn the_seat_rides_the_body() {
    const LARGE: &str = "/computeMetadata/v1/instance/attributes/large";
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_in_flight = 1).await;
    let value = "0123456789".repeat(25 * 1024);
    mock.set("instance/attributes/large", &value);
    mock.fault(Fault::SlowBody { chunk: 32 * 1024, every: Duration::from_millis(50) });

    for leaves in [true, false] {
        let mut client = Connection::open(proxy.addr).await;
        client.send(request(LARGE)).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("Content-Length: 256000"), "{head}");
        assert_eq!(proxy.metric(IN_FLIGHT).await, Some(1.0), "the body is under way");
        assert!(Connection::open(proxy.addr).await.ask(LEAF).await.is_reset());
        if leaves {
            drop(client);
        } else {
            assert_eq!(client.bytes(value.len()).await, value.as_bytes());
        }
        metric_becomes(proxy.metrics_addr, IN_FLIGHT, 0).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_keeps_its_seat() {
    const LARGE: &str = "/computeMetadata/v1/instance/attributes/large";
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_in_flight = 1).await;
    mock.fault_at(LARGE, Fault::HugeBody { bytes: 32 * 1024 * 1024 });
    let mut client = Connection::open_narrow(proxy.addr).await;
    client.send(request(LARGE)).await;
    client.head().await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(proxy.metric(IN_FLIGHT).await, Some(1.0));
    drop(client);
    metric_becomes(proxy.metrics_addr, IN_FLIGHT, 0).await;
}

/// What other connections do during a test.
#[derive(Debug, Clone, Copy)]
enum Idle {
    /// Never sent a byte.
    Silent,
    /// Got a response and is idle.
    Between,
    /// Sends its head one byte at a time.
    Trickling,
}

/// Opens this many connections that do this, and reopens them when they are closed, until the set is dropped.
fn herd(count: u64, addr: SocketAddr, idle: Idle) -> JoinSet<()> {
    let one = move |number: u64| async move {
        loop {
            let mut connection = Connection::open(addr).await;
            match idle {
                Idle::Silent => drop(connection.rest().await),
                Idle::Between => {
                    connection.ask("/").await;
                    connection.rest().await;
                }
                Idle::Trickling => {
                    for byte in request(LEAF).as_bytes().iter().take(60) {
                        connection.send([*byte]).await;
                        if timeout(Duration::from_millis(50), connection.outcome()).await.is_ok() {
                            break;
                        }
                    }
                }
            }
            sleep(Duration::from_millis(250 + 2 * number)).await;
        }
    };
    (0..count).map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_herd_of_useless_connections_locks_nobody_out() {
    let _turn = turn().await;
    for idle in [Idle::Silent, Idle::Between, Idle::Trickling] {
        let (_mock, _binary, addr, metrics_addr) = start_binary(&["--max-connections=50"]).await;
        let herd = herd(200, addr, idle);
        while metric(metrics_addr, CONNECTIONS).await != Some(50.0) {
            sleep(Duration::from_millis(1)).await;
        }
        for request in 0..100 {
            let target = if request % 2 == 0 { LEAF } else { TOKEN };
            let outcome = Connection::open(addr).await.ask(target).await;
            assert!(outcome.is_status(200), "request {request} among 200 that are {idle:?}: {outcome:?}");
            sleep(Duration::from_millis(5)).await;
        }
        let closed = metric(metrics_addr, &sheds("idle_connection")).await.expect("it is counted");
        assert!(closed >= 150.0, "{closed}");
        assert_eq!(metric(metrics_addr, &sheds("connections")).await, Some(0.0));
        println!("{idle:?}: {closed} connections gave way to 100 requests and to each other");
        drop(herd);
    }
}

/// Connections that arrive together are accepted together. A request that has already arrived must be read
/// before its connection can be considered useless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_newcomers_does_not_push_out_a_request_that_has_arrived() {
    let _turn = turn().await;
    let (_mock, binary, addr, _) = start_binary(&["--max-connections=50"]).await;
    binary.signal(Signal::STOP);
    let mut honest = Connection::open(addr).await;
    honest.send(request(LEAF)).await;
    let mut burst = Vec::new();
    for _ in 0..200 {
        burst.push(Connection::open(addr).await);
    }
    binary.signal(Signal::CONT);
    let outcome = honest.outcome().await;
    assert!(outcome.is_status(200), "{outcome:?}");
}

/// A throttled proxy reads nothing. A connection does not become useless by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_proxy_stands_still_no_connection_becomes_useless() {
    let _turn = turn().await;
    let (_mock, binary, addr, metrics_addr) = start_binary(&["--max-connections=50"]).await;
    let mut honest = Connection::open(addr).await;
    metric_becomes(metrics_addr, CONNECTIONS, 1).await;
    binary.signal(Signal::STOP);
    // The kernel reports them first, so they are accepted before the request is read.
    let mut burst = Vec::new();
    for _ in 0..200 {
        burst.push(Connection::open(addr).await);
    }
    honest.send(request(LEAF)).await;
    sleep(Duration::from_millis(1200)).await;
    binary.signal(Signal::CONT);
    let outcome = honest.outcome().await;
    assert!(outcome.is_status(200), "{outcome:?}");
}

#[tokio::test]
async fn the_connection_that_gives_way_is_closed_and_is_the_one_that_got_nowhere_for_longest() {
    let _turn = turn().await;
    let (_mock, proxy) = start(|config| config.max_connections = 3).await;
    let mut silent = Connection::open(proxy.addr).await;
    metric_becomes(proxy.metrics_addr, CONNECTIONS, 1).await;
    let mut idle = Connection::open(proxy.addr).await;
    assert_eq!(idle.ask("/").await.answer().status, 200);
    sleep(Duration::from_millis(20)).await;
    let mut used = Connection::open(proxy.addr).await;
    assert_eq!(used.ask("/").await.answer().status, 200);

    let mut fillers = Vec::new();
    for gives_way in [&mut silent, &mut idle] {
        assert_eq!(get(proxy.addr, LEAF).await.status, 200);
        // Its own place is free again, so the next one needs two.
        let ended = timeout(Duration::from_secs(5), gives_way.rest()).await;
        assert_eq!(ended.expect("it is closed"), b"");
        fillers.push(Connection::open(proxy.addr).await);
        metric_becomes(proxy.metrics_addr, CONNECTIONS, 3).await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(used.ask("/").await.answer().status, 200, "one that was of use a moment ago is kept");
    assert_eq!(proxy.metric(&sheds("idle_connection")).await, Some(2.0));
}

#[tokio::test]
async fn when_every_connection_is_in_flight_the_newcomer_is_reset() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| {
        config.max_connections = 50;
        config.max_in_flight = 100;
    })
    .await;
    let waiting = fill(&mock, proxy.addr, 50).await;
    for _ in 0..3 {
        let outcome = Connection::open(proxy.addr).await.ask("/").await;
        assert!(outcome.is_reset(), "{outcome:?}");
    }
    let mut silent = Connection::open(proxy.addr).await;
    assert!(silent.outcome().await.is_reset(), "even one that asks nothing");
    assert_eq!(proxy.metric(&sheds("connections")).await, Some(4.0));
    assert_eq!(proxy.metric(RESETS).await, Some(4.0));
    assert_eq!(get(proxy.metrics_addr, "/healthz").await.status, 200);
    mock.heal();
    all_are_200(waiting).await;
    assert_eq!(get(proxy.addr, LEAF).await.status, 200);
}

#[tokio::test]
async fn a_kept_connection_that_was_idle_for_a_while_serves_its_next_request() {
    let _turn = turn().await;
    let (_mock, proxy) = start(|_| {}).await;
    let mut client = Connection::open(proxy.addr).await;
    for target in [LEAF, TOKEN, "/"] {
        assert_eq!(client.ask(target).await.answer().status, 200);
        sleep(Duration::from_millis(1300)).await;
    }
    // Bytes of a head before and after.
    let whole = request(LEAF);
    let (begun, rest) = whole.split_at(20);
    client.send(begun).await;
    sleep(Duration::from_millis(1300)).await;
    client.send(rest).await;
    assert_eq!(client.outcome().await.answer().status, 200);
}

const WATCHED: &str = "/computeMetadata/v1/instance/attributes/watched";

fn watch(query: &str) -> String {
    format!("{WATCHED}?wait_for_change=true{query}")
}

/// Starts this many watchers, each of which reports its outcome.
fn watchers(count: usize, addr: SocketAddr, target: &str) -> JoinSet<(Outcome, Instant)> {
    let one = |target: String| async move {
        let outcome = Connection::open(addr).await.ask(&target).await;
        (outcome, Instant::now())
    };
    (0..count).map(|_| one(target.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watchers_of_one_path_are_one_upstream_request() {
    let _turn = turn().await;
    let (mock, _binary, addr, metrics_addr) = start_binary(&["--max-connections=1500"]).await;
    mock.set("instance/attributes/watched", "old");
    let watchers = watchers(1000, addr, &watch(""));
    metric_becomes(metrics_addr, CONNECTIONS, 1000).await;
    // All are connected; the last request is read well before this has passed.
    sleep(Duration::from_millis(500)).await;
    assert_eq!((mock.requests(), mock.in_flight()), (1, 1));
    assert_eq!(metric(metrics_addr, HANGING).await, Some(1.0));
    assert_eq!(metric(metrics_addr, IN_FLIGHT).await, Some(0.0));
    assert!(clients(200, addr, LEAF).join_all().await.iter().all(|outcome| outcome.is_status(200)));

    let changed = Instant::now();
    mock.set("instance/attributes/watched", "new");
    let mut slowest = Duration::ZERO;
    for (outcome, at) in watchers.join_all().await {
        assert_eq!(outcome.answer().body, "new");
        slowest = slowest.max(at - changed);
    }
    println!("1,000 watchers: the last had the change after {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert_eq!(mock.requests_to(WATCHED), 1);
    metric_becomes(metrics_addr, HANGING, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_comes_again_at_once_waits_for_the_next_change() {
    let _turn = turn().await;
    let (mock, _binary, addr, metrics_addr) = start_binary(&[]).await;
    mock.set("instance/attributes/watched", "old");
    let mut watchers = JoinSet::new();
    for _ in 0..200 {
        watchers.spawn(async move {
            let mut connection = Connection::open(addr).await;
            let first = connection.ask(&watch("")).await.answer();
            (first, connection.ask(&watch("")).await.answer())
        });
    }
    metric_becomes(metrics_addr, CONNECTIONS, 200).await;
    sleep(Duration::from_millis(300)).await;
    mock.set("instance/attributes/watched", "new");
    sleep(Duration::from_millis(500)).await;
    mock.set("instance/attributes/watched", "newer");
    let answers = watchers.join_all().await;
    assert!(answers.iter().all(|(first, _)| first.body == "new"));
    let early = answers.iter().filter(|(_, second)| second.body != "newer").count();
    assert_eq!(early, 0, "of 200 got the change that they had seen a second time");
}

#[tokio::test]
async fn watchers_that_have_different_values_are_different_upstream_requests() {
    let _turn = turn().await;
    let (mock, proxy) = start(|_| {}).await;
    mock.set("instance/attributes/watched", "old");
    let etag = get(proxy.addr, WATCHED).await.header("etag").expect("values have one").to_owned();
    mock.reset_counters();
    let mut here = watchers(2, proxy.addr, &watch(""));
    let with_etag = watchers(2, proxy.addr, &watch(&format!("&last_etag={etag}")));
    eventually("two requests are held", || mock.in_flight() == 2).await;
    let stale = Connection::open(proxy.addr).await.ask(&watch("&last_etag=0123456789abcdef")).await.answer();
    assert_eq!((stale.status, stale.body.as_str()), (200, "old"), "one that has another value hears at once");
    assert_eq!(mock.requests(), 3);
    mock.set("instance/attributes/watched", "new");
    while let Some(watcher) = here.join_next().await {
        assert_eq!(watcher.expect("no panic").0.answer().body, "new");
    }
    assert!(with_etag.join_all().await.into_iter().all(|(outcome, _)| outcome.answer().body == "new"));
    assert_eq!(mock.requests(), 3);
}

fn assert_no_room(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert_eq!((answer.header("retry-after"), answer.header("metadata-flavor")), (Some("1"), Some("Google")));
    assert_eq!(answer.body.lines().count(), 1, "{}", answer.body);
}

#[tokio::test]
async fn a_watch_above_the_limit_is_refused_with_503_and_its_place_is_free_when_all_watchers_left() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_hanging = 2).await;
    for name in ["a", "b", "c"] {
        mock.set(&format!("instance/attributes/{name}"), "old");
    }
    let target = |name: &str| format!("/computeMetadata/v1/instance/attributes/{name}?wait_for_change=true");
    let mut first = watchers(3, proxy.addr, &target("a"));
    let second = watchers(1, proxy.addr, &target("b"));
    eventually("two requests are held", || mock.in_flight() == 2).await;
    for _ in 0..3 {
        assert_no_room(&Connection::open(proxy.addr).await.ask(&target("c")).await.answer());
    }
    assert_eq!(proxy.metric(&sheds("hanging")).await, Some(3.0));
    assert_eq!(proxy.metric(RESETS).await, Some(0.0));

    metric_becomes(proxy.metrics_addr, CONNECTIONS, 4).await;
    first.abort_all();
    while first.join_next().await.is_some() {}
    eventually("the upstream is left too", || mock.in_flight() == 1).await;
    metric_becomes(proxy.metrics_addr, HANGING, 1).await;
    let third = watchers(1, proxy.addr, &target("c"));
    eventually("there is room again", || mock.in_flight() == 2).await;
    for name in ["b", "c"] {
        mock.set(&format!("instance/attributes/{name}"), "new");
    }
    for watcher in [second, third] {
        assert!(watcher.join_all().await.into_iter().all(|(outcome, _)| outcome.answer().body == "new"));
    }
    metric_becomes(proxy.metrics_addr, HANGING, 0).await;
}

#[tokio::test]
async fn one_watcher_that_leaves_takes_nobody_with_it() {
    let _turn = turn().await;
    let (mock, proxy) = start(|_| {}).await;
    mock.set("instance/attributes/watched", "old");
    let mut first = Connection::open(proxy.addr).await;
    first.send(request(&watch(""))).await;
    eventually("the first is held", || mock.in_flight() == 1).await;
    let others = watchers(5, proxy.addr, &watch(""));
    metric_becomes(proxy.metrics_addr, CONNECTIONS, 6).await;
    drop(first);
    metric_becomes(proxy.metrics_addr, CONNECTIONS, 5).await;
    mock.set("instance/attributes/watched", "new");
    assert!(others.join_all().await.into_iter().all(|(outcome, _)| outcome.answer().body == "new"));
    assert_eq!(mock.requests(), 1);
}

/// Distinct watches of one value: each has a different timeout.
fn distinct(number: usize) -> String {
    watch(&format!("&timeout_sec={}", 4_000_000_000_usize + number))
}

#[tokio::test]
async fn one_pod_cannot_hold_all_watches() {
    let _turn = turn().await;
    let (mock, proxy) = start(|config| config.max_hanging = 4).await;
    mock.set("instance/attributes/watched", "old");
    let mut hostile = JoinSet::new();
    for number in 0..4 {
        let addr = proxy.addr;
        hostile.spawn(async move { Connection::open(addr).await.ask(&distinct(number)).await });
    }
    eventually("all watches are taken", || mock.in_flight() == 4).await;
    let mut others = Vec::new();
    for number in 4..6 {
        let mut other = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
        other.send(request(&distinct(number))).await;
        others.push(other);
        let ended = hostile.join_next().await.expect("one gives way").expect("no panic").answer();
        assert_no_room(&ended);
        assert!(ended.body.contains("ended in favor of another pod"), "{}", ended.body);
    }
    let mut third = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
    assert_no_room(&third.ask(&distinct(6)).await.answer());
    // The ones that gave way may still be counted as in flight.
    let is_upstream =
        || mock.requests_to("/computeMetadata/v1/instance/attributes/watched") == 6 && mock.in_flight() == 4;
    eventually("the others' watches are upstream", is_upstream).await;
    mock.set("instance/attributes/watched", "new");
    for mut other in others {
        assert_eq!(other.outcome().await.answer().body, "new");
    }
    metric_becomes(proxy.metrics_addr, HANGING, 0).await;
}

/// Each of these responses is available immediately and never read.
#[tokio::test]
async fn large_answers_to_watches_that_nobody_reads_are_cut_when_others_need_their_room() {
    let _turn = turn().await;
    let (mock, proxy) = start(|_| {}).await;
    mock.set("instance/attributes/watched", &"0123456789".repeat(20 * 1024));
    let mut unread = Vec::new();
    for number in 0..20 {
        let mut slow = Connection::open_narrow(proxy.addr).await;
        slow.send(request(&format!("{}&last_etag=0", distinct(number)))).await;
        unread.push(slow);
    }
    unread[0].head().await;
    // Each of the other's requests is answered. On a busy computer the first may find that there is still room.
    let waited = Instant::now();
    while proxy.metric(&sheds("unread_answer")).await.expect("it is counted") < 1.0 {
        assert!(waited.elapsed() < Duration::from_secs(20), "nothing was cut");
        let mut other = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
        let answer = other.ask(&watch("&last_etag=0")).await.answer();
        assert_eq!((answer.status, answer.body.len()), (200, 200 * 1024));
    }
}

#[tokio::test]
async fn a_request_whose_wait_the_policy_leaves_out_takes_a_seat() {
    let _turn = turn().await;
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                queryKeys: [alt]\notherQueryKeys: drop\n";
    let file = std::env::temp_dir().join(format!("metadata-proxy-no-wait-{}.yaml", std::process::id()));
    std::fs::write(&file, text).expect("written");
    let (mock, proxy) = start(|config| {
        config.max_in_flight = 2;
        config.policy = Choice { source: Source::File(file.clone()), recursive: None };
    })
    .await;
    std::fs::remove_file(&file).expect("removed");
    mock.fault(Fault::Hang);
    let waiting = clients(2, proxy.addr, "/computeMetadata/v1/instance/cpu-platform?wait_for_change=true");
    eventually("both are upstream", || mock.in_flight() == 2).await;
    assert_eq!(proxy.metric(IN_FLIGHT).await, Some(2.0));
    let above = Connection::open(proxy.addr).await.ask(&format!("{LEAF}?wait_for_change=true")).await;
    assert!(above.is_reset(), "{above:?}");
    assert_eq!(mock.in_flight(), 2);
    mock.heal();
    all_are_200(waiting).await;
}
