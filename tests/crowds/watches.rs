//! Requests that wait for a change (`wait_for_change`): how many reach the upstream, and which ones are refused.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::stage::{CONNECTIONS, HANGING, IN_FLIGHT, LEAF, RESETS, clients, sheds, start, start_binary};
use crate::support::{Answer, Connection, Outcome, eventually, get, metric, metric_becomes, request};
use crate::turn;

const WATCHED: &str = "/computeMetadata/v1/instance/attributes/watched";

/// Time in which requests that were sent are read, on a busy computer as well. One that is read after a change waits for the
/// next.
const READ: Duration = Duration::from_secs(2);

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
    // All are connected; the last request is read well within this time.
    sleep(READ).await;
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
    sleep(READ).await;
    mock.set("instance/attributes/watched", "new");
    sleep(READ).await;
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
    eventually("two requests are held", || mock.watchers() == 2).await;
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
    eventually("two requests are held", || mock.watchers() == 2).await;
    for _ in 0..3 {
        // A refusal arrives when the client expects an answer.
        let target = target("c") + "&timeout_sec=1";
        assert_no_room(&Connection::open(proxy.addr).await.ask(&target).await.answer());
    }
    assert_eq!(proxy.metric(&sheds("hanging")).await, Some(3.0));
    assert_eq!(proxy.metric(RESETS).await, Some(0.0));

    metric_becomes(proxy.metrics_addr, CONNECTIONS, 4).await;
    first.abort_all();
    while first.join_next().await.is_some() {}
    eventually("the upstream is left too", || mock.in_flight() == 1).await;
    metric_becomes(proxy.metrics_addr, HANGING, 1).await;
    let third = watchers(1, proxy.addr, &target("c"));
    eventually("there is room again", || mock.watchers() == 2).await;
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
    eventually("the first is held", || mock.watchers() == 1).await;
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
    eventually("all watches are taken", || mock.watchers() == 4).await;
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
    // The watches that were ended may still be counted.
    let is_upstream =
        || mock.requests_to("/computeMetadata/v1/instance/attributes/watched") == 6 && mock.watchers() == 4;
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
    // Each of the other client's requests is answered. On a busy machine the first ones may still find room.
    let waited = Instant::now();
    while proxy.metric(&sheds("unread_answer")).await.expect("it is counted") < 1.0 {
        assert!(waited.elapsed() < Duration::from_secs(20), "nothing was cut");
        let mut other = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
        let answer = other.ask(&watch("&last_etag=0")).await.answer();
        assert_eq!((answer.status, answer.body.len()), (200, 200 * 1024));
    }
}
