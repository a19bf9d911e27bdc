//! More connections than there is room for: which ones are closed, and which are refused.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::stage::{CONNECTIONS, LEAF, RESETS, TOKEN, all_are_200, fill, sheds, start, start_binary};
use crate::support::{Connection, get, metric, metric_becomes, request};
use crate::turn;

/// Behaviour of other connections during a test.
#[derive(Debug, Clone, Copy)]
enum Idle {
    /// Never sends a byte.
    Silent,
    /// Gets a response and then is idle.
    Between,
    /// Sends its head one byte at a time.
    Trickling,
}

/// Opens this many connections with this behaviour, and reopens them when they are closed, until the set is dropped.
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

/// A throttled proxy reads nothing. That does not make a connection useless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_proxy_stands_still_no_connection_becomes_useless() {
    let _turn = turn().await;
    let (_mock, binary, addr, metrics_addr) = start_binary(&["--max-connections=50"]).await;
    let mut honest = Connection::open(addr).await;
    metric_becomes(metrics_addr, CONNECTIONS, 1).await;
    binary.signal(Signal::STOP);
    // The kernel reports these connections first, so they are accepted before the request is read.
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
        // The request's own place is free again, so the next request needs two.
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
    silent.outcome().await.assert_reset(); // even without a request
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
