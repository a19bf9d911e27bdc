//! Shared by the scenarios: a proxy in this process, the real binary as a process, and requests as bytes.

mod binary;
pub mod cgroup;
pub mod needs;
mod release;
mod scratch;
pub mod stall;
pub mod switch;
pub mod tokens;
pub mod turn;
mod upstream;
pub mod vm;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use gce_metadata_proxy::app::{App, StartError};
use gce_metadata_proxy::config::Config;
use mock::{Fault, Handle};
use proxy::upstream::Upstream;
use telemetry::logging::Format;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub use binary::Binary;
pub use release::{release, release_build};
pub use scratch::Scratch;
pub use upstream::upstream;
pub use wire::ask;
pub use wire::{Answer, Connection, Outcome, get, raw, request};

/// Raises the limit of open files, which is often 1,024 by default.
pub fn open_many_files() {
    gce_metadata_proxy::app::allow_files(u64::MAX).expect("the limit of open files can be raised");
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waited = Instant::now();
    while !holds() {
        // Twice the longest time that a caller expects.
        assert!(waited.elapsed() < Duration::from_secs(20), "not in time: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Repeats a request until the response is as wanted, and returns it.
pub async fn get_until(addr: SocketAddr, target: &str, is_wanted: impl Fn(&Answer) -> bool) -> Answer {
    let waited = Instant::now();
    loop {
        let answer = get(addr, target).await;
        if is_wanted(&answer) {
            return answer;
        }
        assert!(waited.elapsed() < Duration::from_secs(20), "not in time: {target} is {answer:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// The value of a metric, by its name and labels as they are printed.
pub async fn metric(metrics_addr: SocketAddr, series: &str) -> Option<f64> {
    let page = get(metrics_addr, "/metrics").await;
    let line = page.body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// Waits until a metric has a value.
pub async fn metric_becomes(metrics_addr: SocketAddr, series: &str, wanted: u32) {
    let began = Instant::now();
    loop {
        let value = metric(metrics_addr, series).await;
        if value == Some(f64::from(wanted)) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{series} is {value:?} and does not become {wanted}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// A proxy in this process, on its own ports.
pub struct Proxy {
    pub addr: SocketAddr,
    pub metrics_addr: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), StartError>>,
}

impl Proxy {
    /// Starts a proxy in front of this upstream, and waits until it is ready.
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::with(config(upstream)).await
    }

    /// The same with an upstream of its own.
    pub async fn of_a_mock() -> (Handle, Self) {
        let mock = upstream().await;
        let proxy = Self::start(mock.addr()).await;
        (mock, proxy)
    }

    /// Starts a proxy with this configuration, and waits until it is ready.
    pub async fn with(config: Config) -> Self {
        let proxy = Self::with_cold(config).await;
        get_until(proxy.metrics_addr, "/readyz", |answer| answer.status == 200).await;
        proxy
    }

    /// Starts a proxy in front of this upstream, which may be unavailable.
    pub async fn start_cold(upstream: SocketAddr) -> Self {
        Self::with_cold(config(upstream)).await
    }

    async fn with_cold(config: Config) -> Self {
        let app = App::bind(config).await.expect("free ports on loopback");
        let addr = app.addrs().expect("bound")[0];
        let metrics_addr = app.metrics_addr().expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(app.run(async {
            // A dropped proxy stops as well.
            let _ = stopped.await;
        }));
        Self { addr, metrics_addr, stop, running }
    }

    /// The value of a metric, by its name and labels as they are printed.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        metric(self.metrics_addr, series).await
    }

    /// Stops it and waits until it has ended.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        self.running.await.expect("the proxy does not panic").expect("it could serve");
        // The task that holds the listener of the operators has been told to end. A process would end with it.
        tokio::task::yield_now().await;
    }
}

/// Closes the pooled connections to the upstream that the warmup leaves, and resets the mock's counters. Each request takes
/// one of them, and is sent again on a new one.
pub async fn close_pooled(mock: &Handle, proxy: &Proxy) {
    mock.fault(Fault::Reset);
    while mock.open_connections() > 0 {
        get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
    }
    mock.heal();
    mock.reset_counters();
}

/// The default configuration, on ports picked by the system.
pub fn config(upstream: SocketAddr) -> Config {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        addrs: vec![loopback],
        metrics_addr: loopback,
        upstream: Upstream::at(&format!("http://{upstream}")).expect("an address is a target"),
        log: (Format::Text, "off".parse().expect("a level")),
        ..Config::default()
    }
}
