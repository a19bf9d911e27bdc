//! Shared by the tests: a proxy, its clients, and its metrics.

use std::net::SocketAddr;

use gce_metadata_proxy::config::Config;
use mock::{Fault, Handle};
use tokio::task::JoinSet;

use crate::support::{Binary, Connection, Outcome, Proxy, config, eventually, release, upstream};

/// A value that the proxy does not cache.
pub const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

pub const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

pub const IN_FLIGHT: &str = "metadata_proxy_in_flight";
pub const CONNECTIONS: &str = "metadata_proxy_connections";
pub const HANGING: &str = "metadata_proxy_hanging";
pub const RESETS: &str = "metadata_proxy_resets_total";

pub fn sheds(reason: &str) -> String {
    format!("metadata_proxy_sheds_total{{reason=\"{reason}\"}}")
}

/// Starts a mock, and a proxy in this process in front of it.
pub async fn start(change: impl FnOnce(&mut Config)) -> (Handle, Proxy) {
    let mock = upstream().await;
    let mut config = config(mock.addr());
    change(&mut config);
    let proxy = Proxy::with(config).await;
    mock.reset_counters();
    (mock, proxy)
}

/// Starts a mock, and the binary in front of it. Also returns the binary's addresses for pods and for operators.
pub async fn start_binary(args: &[&str]) -> (Handle, Binary, SocketAddr, SocketAddr) {
    let mock = upstream().await;
    let (binary, addr, metrics_addr) = Binary::ready_of(release(), None, mock.addr(), args).await;
    mock.reset_counters();
    (mock, binary, addr, metrics_addr)
}

/// Starts this many clients that request a target, each on its own connection.
pub fn clients(count: usize, addr: SocketAddr, target: &'static str) -> JoinSet<Outcome> {
    (0..count).map(|_| async move { Connection::open(addr).await.ask(target).await }).collect()
}

/// Makes the upstream hang and starts this many requests, which wait for it. They time out after 2.5 s.
pub async fn fill(mock: &Handle, addr: SocketAddr, count: usize) -> JoinSet<Outcome> {
    mock.fault(Fault::Hang);
    let waiting = clients(count, addr, LEAF);
    let wanted = u64::try_from(count).expect("a small number");
    eventually("all seats are taken", || mock.in_flight() == wanted).await;
    waiting
}

pub async fn all_are_200(clients: JoinSet<Outcome>) {
    for outcome in clients.join_all().await {
        assert!(outcome.is_status(200), "{outcome:?}");
    }
}
