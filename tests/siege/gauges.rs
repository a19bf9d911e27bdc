//! The gauges of `/metrics`, which must return to their values at rest.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use mock::Handle;
use tokio::time::{Instant, sleep};

use crate::scene::is_emulated;
use crate::support::request;
use crate::support::switch::is_full_size;
use crate::visit::{self, Pod, connect, visit};

/// Maximum time for that. An emulated processor is many times slower, and at CI size other tests run on the same
/// processors.
fn patience() -> Duration {
    Duration::from_secs(if is_full_size() && !is_emulated() { 10 } else { 30 })
}

/// Interval between looks at the gauges. A page takes a millisecond of CPU or more, and a proxy may have 30 per second.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which the processor time of a proxy at rest is measured, at full size, and the maximum that it may use: two
/// of the kernel's clock ticks, and less than a third tick.
const IDLE_TIME: Duration = Duration::from_secs(2);
const MAX_IDLE_SECONDS: f64 = 0.025;

/// The gauge that tells why a memory level is held.
const MEMORY_USAGE: &str = "metadata_proxy_memory_usage_bytes";

/// Maximum excess of a gauge over its value at rest, by the beginning of its name. All others must return to that
/// value.
const MAY_STAY_ABOVE: &[(&str, f64)] = &[
    // These count what is kept on purpose, or only grow.
    ("metadata_proxy_in_flight_peak", f64::INFINITY),
    ("metadata_proxy_token_entries", f64::INFINITY),
    ("process_resident_memory_bytes", f64::INFINITY),
    (MEMORY_USAGE, f64::INFINITY),
    // Upstream connections that are kept for later requests (upstream/pool.rs).
    ("process_open_fds", 32.0),
];

/// The values of all gauges, by series.
pub(crate) type Gauges = BTreeMap<String, f64>;

/// A proxy at rest.
pub(crate) struct Rested {
    /// Time until all gauges were back.
    pub(crate) took: Duration,
    /// Memory that the proxy says it uses, in MiB.
    mib: f64,
}

impl fmt::Display for Rested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms ({:.1} MiB)", self.took.as_millis(), self.mib)
    }
}

/// The load shed so far, by reason: the lines of these metrics.
pub(crate) async fn sheds(metrics_addr: SocketAddr) -> Result<String, String> {
    let page = page(metrics_addr).await?;
    let sheds = page.lines().filter_map(|line| line.strip_prefix("metadata_proxy_sheds_total"));
    Ok(sheds.filter(|shed| !shed.ends_with(" 0")).collect::<Vec<_>>().join(", "))
}

async fn page(metrics_addr: SocketAddr) -> Result<String, String> {
    Ok(visit(connect(Pod::OPERATOR, metrics_addr), &request("/metrics"), visit::patience()).await?.body)
}

/// Reads the gauges, and the number of requests that the upstream is answering.
pub(crate) async fn read(metrics_addr: SocketAddr, mock: &Handle) -> Result<Gauges, String> {
    Ok(gauges_of(&page(metrics_addr).await?, mock))
}

fn gauges_of(page: &str, mock: &Handle) -> Gauges {
    let names: HashSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge")).collect();
    let mut gauges: Gauges = page
        .lines()
        .filter(|line| names.contains(line.split(['{', ' ']).next().unwrap_or_default()))
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?)))
        .collect();
    gauges.insert(
        "upstream requests in flight".to_owned(),
        f64::from(u32::try_from(mock.in_flight()).unwrap_or(u32::MAX)),
    );
    gauges
}

/// Waits until all gauges are back at their values at rest. Returns the time that this took, and the memory that is used
/// then. The error lists those that are not.
pub(crate) async fn come_to_rest(metrics_addr: SocketAddr, mock: &Handle, rest: &Gauges) -> Result<Rested, String> {
    let (began, cpu_before) = (Instant::now(), cpu_seconds(metrics_addr).await?);
    loop {
        let page = page(metrics_addr).await?;
        let now = gauges_of(&page, mock);
        let above: Vec<String> = now
            .iter()
            .filter_map(|(series, value)| {
                let rest = rest.get(series).copied().unwrap_or(0.0);
                (*value > rest + may_stay_above(series)).then(|| format!("{series} is {value}, was {rest}"))
            })
            .collect();
        let mib = now.get(MEMORY_USAGE).copied().unwrap_or_default() / f64::from(1 << 20);
        let (took, mut busy) = (began.elapsed(), None);
        if above.is_empty() && is_full_size() && !is_emulated() {
            busy = be_idle(metrics_addr).await?;
        }
        let amiss: Vec<String> = above.into_iter().chain(busy).collect();
        if amiss.is_empty() {
            return Ok(Rested { took, mib });
        }
        if took > patience() {
            let (used, amiss) = (cpu_of(&page)? - cpu_before, amiss.join(", "));
            return Err(format!("not at rest after {took:?} and {used:.2} s of CPU, with {mib:.1} MiB: {amiss}"));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Describes the processor time that the proxy uses now, unless it is within the maximum.
async fn be_idle(metrics_addr: SocketAddr) -> Result<Option<String>, String> {
    let before = cpu_seconds(metrics_addr).await?;
    sleep(IDLE_TIME).await;
    let used = cpu_seconds(metrics_addr).await? - before;
    let is_busy = used > MAX_IDLE_SECONDS;
    Ok(is_busy.then(|| format!("{used:.3} s of CPU in {IDLE_TIME:?} at rest, at most {MAX_IDLE_SECONDS} allowed")))
}

pub(crate) async fn cpu_seconds(metrics_addr: SocketAddr) -> Result<f64, String> {
    cpu_of(&page(metrics_addr).await?)
}

fn cpu_of(page: &str) -> Result<f64, String> {
    let value = page.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total ")?.parse().ok());
    value.ok_or_else(|| "no process_cpu_seconds_total".to_owned())
}

fn may_stay_above(series: &str) -> f64 {
    MAY_STAY_ABOVE.iter().find(|(name, _)| series.starts_with(name)).map_or(0.0, |(_, excess)| *excess)
}
