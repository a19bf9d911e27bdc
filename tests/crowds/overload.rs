//! Requests above the limit: which ones are refused, how, and which are not.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use mock::Fault;
use proxy::layers::rescue::OnOverload;
use proxy::policy::{Choice, Source};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::stage::{
    CONNECTIONS, IN_FLIGHT, LEAF, RESETS, TOKEN, all_are_200, clients, fill, sheds, start, start_binary,
};
use crate::support::{Connection, Outcome, Scratch, eventually, get, metric, metric_becomes, request};
use crate::turn;

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
        Connection::open(proxy.addr).await.ask(LEAF).await.assert_reset();
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
        Connection::open(proxy.addr).await.ask(LEAF).await.assert_reset();
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
        Connection::open(proxy.addr).await.ask(LEAF).await.assert_reset();
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

#[tokio::test]
async fn a_request_whose_wait_the_policy_leaves_out_takes_a_seat() {
    let _turn = turn().await;
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                queryKeys: [alt]\notherQueryKeys: drop\n";
    let scratch = Scratch::new("no-wait");
    let file = scratch.file("policy.yaml", text);
    let (mock, proxy) = start(|config| {
        config.max_in_flight = 2;
        config.policy = Choice { source: Source::File(file.clone().into()), recursive: None };
    })
    .await;
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
