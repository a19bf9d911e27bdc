//! One test from beginning to end.

use std::fs::{self, File};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mock::Handle;
use tokio::runtime::Handle as Threads;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::gauges::{self, Rested};
use crate::honest::{self, Honest, Tally};
use crate::support::Binary;
use crate::support::cgroup::{Bounds, Cgroup, Usage};
use crate::support::switch::{is_full_size, is_on};
use crate::table::{Attack, Limits, Siege};
use crate::{burden, crowd};

/// Memory limit of the proxy's control group, in bytes.
const LIMIT: u64 = 25 * 1024 * 1024;

/// Maximum memory of the proxy at any time, in bytes, socket buffers included.
pub(crate) const MOST_MEMORY: u64 = 20 * 1024 * 1024;

/// Maximum 99th percentile of the response times for [`Honest::Steady`]: under a CPU limit, which stops a process for
/// up to 97 ms at a time, and without a limit. At CI size, other tests run on the same processors, and two requests of
/// the first second decide.
const MAX_P99_LIMITED: Duration = Duration::from_millis(500);
const MAX_P99: Duration = Duration::from_millis(50);
const MAX_P99_CI: Duration = Duration::from_secs(1);

/// The same on an emulated processor, which the hostile pod, the honest pods, the upstream and the proxy share.
const MAX_P99_EMULATED: Duration = Duration::from_secs(2);

/// Processor time of a known token on a kept connection, on the processors that CPU limits are meant for.
const TOKEN_HIT: Duration = Duration::from_micros(12);

/// Number of requests for comparing an emulated processor with these.
const COMPARED: u32 = 300;

/// Maximum CPU time of the proxy on an emulated processor, in milliseconds per 100 ms.
const MAX_EMULATED_CPU: u32 = 90;

/// Copies a program, and makes the kernel drop its pages. The process that runs the copy reads them from disk.
fn cold_copy(program: &Path) -> io::Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let copy = program.with_file_name(format!("siege-{}-{number}", std::process::id()));
    fs::copy(program, &copy)?;
    let file = File::open(&copy)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(copy)
}

/// The size of a test.
struct Size {
    /// Duration of the load once all of its connections have begun.
    time: Duration,
    /// Requests of a crowd, per client.
    requests: usize,
    /// Interval between honest requests.
    honest_every: Duration,
}

impl Size {
    fn chosen() -> Self {
        let (time, requests) = if is_full_size() { (60, 60) } else { (4, 10) };
        // An emulated processor cannot handle 50 honest requests a second and the load as well.
        let (slower, requests, honest_every) = if is_emulated() { (2, 2, 200) } else { (1, requests, 20) };
        Self { time: Duration::from_secs(time * slower), requests, honest_every: Duration::from_millis(honest_every) }
    }
}

/// The environment variable that is set if the processor is emulated.
pub(crate) const EMULATED: &str = "SIEGE_EMULATED";

/// Continuation of a line, after a test's name, that states how slow the processor is.
pub(crate) const SLOWNESS: &str = ": the processor is ";

/// Whether the processor is emulated, which makes everything many times slower.
pub(crate) fn is_emulated() -> bool {
    is_on(EMULATED)
}

/// A completed test.
pub(crate) struct Played {
    /// Row in the table.
    pub(crate) row: String,
    /// An error lists everything that went wrong.
    pub(crate) judged: Result<(), String>,
}

/// Runs a test with this proxy and this upstream. The load runs on the threads of `hostile`.
pub(crate) async fn play(siege: &Siege, proxy: &Path, mock: &Handle, hostile: &Threads) -> Result<Played, String> {
    let cpu = match siege.limits {
        Limits::Cpu(cpu) => Some(cpu),
        Limits::Memory => None,
    };
    let group = Cgroup::new(Bounds { memory: Some(LIMIT), cpu: cpu.filter(|_| !is_emulated()) });
    let group = group.map_err(|error| format!("no control group can be made here: {error}"))?;
    let size = Size::chosen();
    burden::prepare(mock);
    let cold = cpu.map(|_| cold_copy(proxy)).transpose();
    let cold = cold.map_err(|error| format!("cannot copy the proxy: {error}"))?;
    let proxy = cold.as_deref().unwrap_or(proxy);
    let (binary, addr, metrics_addr) = Binary::ready_of(proxy, Some(&group), mock.addr(), siege.arguments).await;
    if let Some(cpu) = cpu.filter(|_| is_emulated()) {
        let slower = slowness(addr, metrics_addr).await?;
        let cpu = cpu.saturating_mul(slower).min(MAX_EMULATED_CPU);
        println!("{}{SLOWNESS}{slower} times slower; {cpu} ms of CPU in every 100", siege.name);
        group.limit_cpu(cpu).map_err(|error| format!("no CPU limit: {error}"))?;
    }
    let rest = gauges::read(metrics_addr, mock).await?;

    let over = CancellationToken::new();
    let siege_over = over.clone().drop_guard();
    let attack = async {
        let outcome = attack(&siege.attack, addr, burden::change(mock), &size, hostile).await;
        drop(siege_over);
        outcome
    };
    let (pods, operator, (mut flood, crowd)) = tokio::join!(
        honest::pods(siege.honest, mock, addr, size.honest_every, &over),
        honest::operator(metrics_addr, &over),
        attack,
    );
    // Only after the last honest request has its response.
    flood.shutdown().await;
    let rested = gauges::come_to_rest(metrics_addr, mock, &rest).await;
    let sheds = gauges::sheds(metrics_addr).await;
    let usage = group.usage().ok_or("the control group does not tell what was used")?;
    drop(binary);
    if let Some(cold) = cold {
        let _ = fs::remove_file(cold);
    }

    let judged = Judged { siege: *siege, pods, operator, crowd, rested, sheds, usage };
    println!("{}: {}", siege.name, judged.summary());
    let faults = judged.faults();
    let outcome = if faults.is_empty() { Ok(()) } else { Err(format!("{}: {}", siege.name, faults.join("\n  "))) };
    Ok(Played { row: judged.row(), judged: outcome })
}

/// The factor by which a known token takes longer on this processor than [`TOKEN_HIT`].
async fn slowness(addr: SocketAddr, metrics_addr: SocketAddr) -> Result<u32, String> {
    let before = gauges::cpu_seconds(metrics_addr).await?;
    honest::ask_for_token(addr, COMPARED).await?;
    let took = Duration::from_secs_f64(gauges::cpu_seconds(metrics_addr).await? - before);
    let times = took.as_nanos() / (TOKEN_HIT * COMPARED).as_nanos();
    Ok(u32::try_from(times).map_or(u32::MAX, |times| times.max(1)))
}

/// Puts load on a proxy that another process has started and judges. Returns the number of connections.
pub(crate) async fn burden_alone(siege: &Siege, addr: SocketAddr, hostile: &Threads) -> usize {
    let (mut flood, _) = attack(&siege.attack, addr, pending(), &Size::chosen(), hostile).await;
    let connections = flood.len();
    flood.shutdown().await;
    connections
}

/// Attacks for the duration of a test, while `meanwhile` runs. Returns the load's tasks, which are still running, and
/// the failed requests of a crowd.
async fn attack(
    attack: &Attack,
    addr: SocketAddr,
    meanwhile: impl Future<Output = ()>,
    size: &Size,
    threads: &Threads,
) -> (JoinSet<()>, crowd::Outcome) {
    let mut flood = JoinSet::new();
    let burdens = match attack {
        Attack::Burdens(burdens) => *burdens,
        Attack::Crowd(clients) => return (flood, crowd::gather(addr, *clients, size.requests, threads).await),
    };
    let begun = Arc::new(Semaphore::new(0));
    for (connections, burden) in burdens {
        for number in 0..*connections {
            flood.spawn_on(burden.last(addr, number, Arc::clone(&begun)), threads);
        }
    }
    let all = u32::try_from(flood.len()).expect("a few thousand");
    // The time also passes if the proxy is down.
    let _ = timeout(size.time * 10, begun.acquire_many(all)).await;
    let _ = timeout(size.time, meanwhile).await;
    (flood, crowd::Outcome::default())
}

struct Judged {
    siege: Siege,
    pods: Tally,
    operator: Tally,
    crowd: crowd::Outcome,
    rested: Result<Rested, String>,
    sheds: Result<String, String>,
    usage: Usage,
}

impl Judged {
    fn memory(&self) -> u64 {
        self.usage.peak + self.usage.sockets
    }

    fn summary(&self) -> String {
        let served = |tally: &Tally| {
            let served = tally.asked - tally.failed.len();
            let again = if tally.retried > 0 { format!(" ({} sent again)", tally.retried) } else { String::new() };
            format!(
                "{served} of {}{again}, p50 {} ms, p99 {} ms, slowest {} ms ({})",
                tally.asked,
                tally.percentile(50).as_millis(),
                tally.percentile(99).as_millis(),
                tally.slowest.as_millis(),
                tally.slowest_asked
            )
        };
        let apart = match self.usage.sockets {
            0 => String::new(),
            sockets => format!(" (sockets {})", mib(sockets)),
        };
        let late = match self.crowd.late {
            0 => String::new(),
            late => format!("; {late} of the crowd late and sent again"),
        };
        format!(
            "peak {}{apart}, killed {}; honest {}; pages {}; at rest after {}{late}",
            mib(self.memory()),
            self.usage.killed,
            served(&self.pods),
            served(&self.operator),
            self.rested.as_ref().map_or_else(|_| "never".to_owned(), ToString::to_string),
        )
    }

    /// The columns of the table.
    fn row(&self) -> String {
        let rest = self
            .rested
            .as_ref()
            .map_or_else(|_| "never".to_owned(), |rested| format!("{:.1}", rested.took.as_secs_f64()));
        let millis = |time: Duration| time.as_millis().to_string();
        let Tally { asked, failed, slowest, .. } = &self.pods;
        let peak = mib(self.memory());
        [
            format!("`{}`", self.siege.name),
            asked.to_string(),
            failed.len().to_string(),
            millis(self.pods.percentile(50)),
            millis(self.pods.percentile(99)),
            millis(*slowest),
            peak.trim_end_matches(" MiB").to_owned(),
            rest,
        ]
        .join(" | ")
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.usage.killed > 0 {
            faults.push(format!("killed {} times for want of memory", self.usage.killed));
        }
        // The program's own pages, which the kernel can reclaim, are charged to a group that read them first.
        if self.siege.limits == Limits::Memory && self.memory() > MOST_MEMORY {
            faults.push(format!("{} of memory, at most {} allowed", mib(self.memory()), mib(MOST_MEMORY)));
        }
        let requests =
            [("honest requests", &self.pods.failed), ("pages", &self.operator.failed), ("crowd", &self.crowd.failed)];
        for (what, failed) in requests.into_iter().filter(|(_, failed)| !failed.is_empty()) {
            faults.push(format!("{what}: {} failed, as {:?}", failed.len(), &failed[..failed.len().min(3)]));
        }
        let slowest = match self.siege.limits {
            _ if is_emulated() => MAX_P99_EMULATED,
            _ if !is_full_size() => MAX_P99_CI,
            Limits::Cpu(_) => MAX_P99_LIMITED,
            Limits::Memory => MAX_P99,
        };
        if matches!(self.siege.honest, Honest::Steady) && self.pods.percentile(99) > slowest {
            let p99 = self.pods.percentile(99);
            faults.push(format!("p99 of honest requests: {p99:?}, at most {slowest:?} allowed"));
        }
        faults.extend(self.rested.as_ref().err().cloned());
        if !faults.is_empty() {
            faults.push(format!("shed meanwhile: {:?}", self.sheds));
            faults.push(self.summary());
        }
        faults
    }
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}
