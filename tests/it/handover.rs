//! A new process takes over the address of a running one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mock::Fault;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{Answer, Binary, Connection, Outcome, ask, eventually, request, upstream};

const REQUEST: &str = "GET /computeMetadata/v1/instance/service-accounts/default/token HTTP/1.1\r\n\
                       Host: metadata\r\nMetadata-Flavor: Google\r\n\r\n";

/// Clients with kept-alive connections that send requests continuously until stopped. When a response announces that
/// the connection will be closed, they open another, as every client does.
struct Load {
    clients: JoinSet<()>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl Load {
    fn begin(addr: SocketAddr, clients: usize) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut running = JoinSet::new();
        for _ in 0..clients {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            running.spawn(async move {
                while !stop.load(Relaxed) {
                    ask_until_closed(addr, &stop, &answered).await;
                }
            });
        }
        Self { clients: running, stop, answered }
    }

    /// Stops the clients and returns the number of responses. A failed request has failed the test.
    async fn end(mut self) -> u64 {
        self.stop.store(true, Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("no request failed");
        }
        self.answered.load(Relaxed)
    }
}

async fn ask_until_closed(addr: SocketAddr, stop: &AtomicBool, answered: &AtomicU64) {
    let mut connection = Connection::open(addr).await;
    while !stop.load(Relaxed) {
        connection.send(REQUEST).await;
        let answer: Answer = connection.answer().await.expect("a request that was sent is answered");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answered.fetch_add(1, Relaxed);
        if answer.header("connection") == Some("close") {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Starts the binary on this shared address.
fn start(addr: &str, upstream: &str) -> Binary {
    Binary::start(&["--addr", addr, "--metrics-addr=127.0.0.1:0", "--upstream", upstream, "--reuse-port"])
}

/// The same, and waits until it serves pods. One that is the first may not be warm yet.
async fn process(addr: &str, upstream: &str) -> (Binary, SocketAddr) {
    let mut binary = start(addr, upstream);
    let addr = Binary::addr_in(&binary.stderr_line("serving pods").await);
    (binary, addr)
}

#[tokio::test]
async fn a_new_process_takes_over_without_a_failed_request() {
    let mock = upstream().await;
    let upstream = format!("http://{}", mock.addr());
    let (mut old, addr) = process("127.0.0.1:0", &upstream).await;
    old.stderr_line("cache warmed up").await;
    let load = Load::begin(addr, 20);
    sleep(Duration::from_millis(300)).await;
    let (mut new, _) = process(&addr.to_string(), &upstream).await;
    old.terminate();
    assert_eq!(old.ended().await.code(), Some(0));
    let before = load.answered.load(Relaxed);
    sleep(Duration::from_millis(300)).await;
    let after = load.end().await;
    assert!(before > 0 && after > before, "the load went on: {before}, then {after}");
    new.terminate();
    assert_eq!(new.ended().await.code(), Some(0));
}

/// The old process may have tokens that the new one cannot get. A wrong flag would take them from all nodes.
#[tokio::test]
async fn a_new_process_whose_server_does_not_answer_leaves_pods_to_the_old_one() {
    let mock = upstream().await;
    let (mut old, addr) = process("127.0.0.1:0", &format!("http://{}", mock.addr())).await;
    old.stderr_line("cache warmed up").await;
    let load = Load::begin(addr, 5);
    // Nothing listens there.
    let mut new = start(&addr.to_string(), "http://127.0.0.1:1");
    let line = new.stderr_line("Another process serves pods").await;
    assert!(line.contains("the metadata server issued no token of the node's account ("), "{line}");
    assert_eq!(new.ended().await.code(), Some(1));
    assert!(load.end().await > 0);
    old.terminate();
    assert_eq!(old.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_new_process_whose_server_does_not_give_a_value_takes_over() {
    tokio::join!(takes_over_without_a_value(403), takes_over_without_a_value(503));
}

async fn takes_over_without_a_value(status: u16) {
    let mock = upstream().await;
    let upstream = format!("http://{}", mock.addr());
    let (_old, addr) = process("127.0.0.1:0", &upstream).await;
    mock.fault_at("/computeMetadata/v1/project/project-id", Fault::Status(status, String::new()));
    process(&addr.to_string(), &upstream).await;
}

#[tokio::test]
async fn a_new_process_whose_predecessor_has_gone_serves_what_it_can() {
    let mock = upstream().await;
    let (mut old, addr) = process("127.0.0.1:0", &format!("http://{}", mock.addr())).await;
    let mut new = start(&addr.to_string(), "http://127.0.0.1:1");
    new.stderr_line("another process serves pods").await;
    old.terminate();
    assert_eq!(old.ended().await.code(), Some(0));
    assert_eq!(Binary::addr_in(&new.stderr_line("serving pods").await), addr);
}

/// With the node's network, both have one address for operators, and the kernel lets either answer a probe.
#[tokio::test]
async fn an_old_process_that_drains_leaves_probes_to_the_new_one() {
    const LARGE: &str = "/computeMetadata/v1/instance/attributes/large";
    let mock = upstream().await;
    let (mut old, addr, admin) = Binary::ready(None, mock.addr(), &["--reuse-port", "--drain-timeout=60s"]).await;
    // It lasts longer than the drain.
    mock.set("instance/attributes/large", &"x".repeat(256_000));
    mock.fault_at(LARGE, Fault::SlowBody { chunk: 4096, every: Duration::from_secs(1) });
    let mut client = Connection::open(addr).await;
    client.send(request(LARGE)).await;
    eventually("the request is upstream", || mock.in_flight() == 1).await;
    let [addr, admin_flag] = [format!("--addr={addr}"), format!("--metrics-addr={admin}")];
    let mut new = Binary::start(&[&addr, &admin_flag, "--reuse-port", &format!("--upstream=http://{}", mock.addr())]);
    new.stderr_line("serving pods").await;
    old.terminate();
    old.stderr_line("SIGTERM: draining").await;
    // It may still answer those that are in its queue.
    let mut in_a_row = 0;
    for _ in 0..1000 {
        let is_ready = matches!(ask(admin, "/readyz").await, Outcome::Answered(answer) if answer.status == 200);
        in_a_row = if is_ready { in_a_row + 1 } else { 0 };
        if in_a_row == 30 {
            return;
        }
    }
    panic!("the old process answers probes while it drains");
}

#[tokio::test]
async fn without_reuse_port_an_address_that_is_in_use_is_refused() {
    let mock = upstream().await;
    let (_binary, addr) = Binary::proxy(mock.addr()).await;
    let (code, text) = Binary::run(&["--addr", &addr.to_string(), "--metrics-addr=127.0.0.1:0"]).await;
    assert_eq!(code, Some(1), "{text}");
}
