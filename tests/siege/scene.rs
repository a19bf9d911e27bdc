//! One siege from its beginning to its end.

use std::path::Path;
use std::time::Duration;

use gce_metadata_proxy::mock::{Handle, Mock};
use libtest_mimic::Completion;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::gauges;
use crate::honest::{self, Tally};
use crate::support::Binary;
use crate::support::cgroup::{Bounds, Cgroup, Usage};
use crate::table::{Attack, Siege};
use crate::{burden, crowd};

/// The limit that the proxy's control group has, in bytes.
const LIMIT: u64 = 25 * 1024 * 1024;

/// The most memory that the proxy may use at any time, in bytes, sockets' buffers included.
pub(crate) const MOST_MEMORY: u64 = 20 * 1024 * 1024;

/// How large a siege is.
struct Size {
    /// How long burdens last.
    time: Duration,
    /// Requests of a crowd, per client.
    requests: usize,
    /// The time between two honest requests.
    honest_every: Duration,
}

impl Size {
    fn chosen() -> Self {
        let is_set = |name| std::env::var_os(name).is_some();
        let (time, requests) = if is_set("METADATA_PROXY_FULL_SIZE") { (30, 60) } else { (4, 10) };
        // An emulated processor does not get through 50 honest requests a second and the burdens, too.
        let honest_every = if is_set(EMULATED) { 100 } else { 20 };
        Self { time: Duration::from_secs(time), requests, honest_every: Duration::from_millis(honest_every) }
    }
}

/// The environment variable that says that the processor is emulated.
pub(crate) const EMULATED: &str = "SIEGE_EMULATED";

/// Plays a siege with this proxy. An error says everything that went wrong.
pub(crate) async fn play(siege: &Siege, proxy: &Path) -> Result<Completion, String> {
    let group = match Cgroup::new(Bounds { memory: Some(LIMIT), cpu: None }) {
        Ok(group) => group,
        Err(error) => return Ok(Completion::ignored_with(format!("no control group can be made here: {error}"))),
    };
    let size = Size::chosen();
    let mock = Mock::start().await;
    burden::prepare(&mock);
    let (binary, addr, metrics_addr) = Binary::ready_of(proxy, Some(&group), mock.addr(), siege.arguments).await;
    let rest = gauges::read(metrics_addr, &mock).await?;

    let end = Instant::now() + size.time;
    let (pods, operator, crowd_failed) = tokio::join!(
        honest::pods(&mock, addr, size.honest_every, end),
        honest::operator(metrics_addr, end),
        attack(&siege.attack, &mock, addr, &size, end),
    );
    let rested = gauges::come_to_rest(metrics_addr, &mock, &rest).await;
    let usage = group.usage().ok_or("the control group does not tell what was used")?;
    drop(binary);

    let judged = Judged { pods, operator, crowd_failed, rested, usage };
    println!("{}: {}", siege.name, judged.summary());
    let faults = judged.faults();
    if faults.is_empty() { Ok(Completion::Completed) } else { Err(format!("{}: {}", siege.name, faults.join("\n  "))) }
}

/// Attacks until the end. Returns which requests of a crowd failed.
async fn attack(attack: &Attack, mock: &Handle, addr: std::net::SocketAddr, size: &Size, end: Instant) -> Vec<String> {
    match attack {
        Attack::Burdens(burdens) => {
            let mut flood = JoinSet::new();
            for (connections, burden) in *burdens {
                (0..*connections).for_each(|number| drop(flood.spawn(burden.last(addr, number))));
            }
            let _ = tokio::time::timeout_at(end, burden::change(mock)).await;
            flood.shutdown().await;
            Vec::new()
        }
        Attack::Crowd(clients) => crowd::gather(addr, *clients, clients * size.requests).await,
    }
}

struct Judged {
    pods: Tally,
    operator: Tally,
    crowd_failed: Vec<String>,
    rested: Result<Duration, String>,
    usage: Usage,
}

impl Judged {
    fn memory(&self) -> u64 {
        self.usage.peak + self.usage.sockets
    }

    fn summary(&self) -> String {
        let served = |tally: &Tally| {
            let served = tally.asked - tally.failed.len();
            format!("{served} of {}, slowest {} ms", tally.asked, tally.slowest.as_millis())
        };
        format!(
            "peak {} (of which sockets, where counted apart: {}), {} killed; honest {}; pages {}; at rest after {}",
            mib(self.memory()),
            mib(self.usage.sockets),
            self.usage.killed,
            served(&self.pods),
            served(&self.operator),
            self.rested.as_ref().map_or_else(|_| "never".to_owned(), |took| format!("{} ms", took.as_millis())),
        )
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.usage.killed > 0 {
            faults.push(format!("killed {} times for want of memory", self.usage.killed));
        }
        if self.memory() > MOST_MEMORY {
            faults.push(format!("{} of memory, at most {} allowed", mib(self.memory()), mib(MOST_MEMORY)));
        }
        let requests =
            [("honest requests", &self.pods.failed), ("pages", &self.operator.failed), ("crowd", &self.crowd_failed)];
        for (what, failed) in requests.into_iter().filter(|(_, failed)| !failed.is_empty()) {
            faults.push(format!("{what}: {} failed, as {:?}", failed.len(), &failed[..failed.len().min(3)]));
        }
        faults.extend(self.rested.as_ref().err().cloned());
        faults
    }
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}
