//! [`Scanner`]: finds the anchor of each pod among the node's processes.
//!
//! The *anchor* of a pod is its oldest process outside the node's network: pause. A process can unshare a network and give
//! itself any address, but cannot be older than pause. A process that was seen while its pod had an anchor is *barred*: it does
//! not become the anchor when pause ends, since it may have waited for that.
//!
//! While a sandbox is made, a process changes its group and its network, and short-lived ones precede pause (runc's and crun's
//! `init`). So a process is read again while it is young, and a young anchor bars only processes in other networks than its own.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use super::PodUid;
use super::host_proc::{HostProc, Listed, Network, Pid, Process, unless_ended};
use crate::clock::BootTime;

/// The age from which on a process stays in its pod and network, and an anchor is no forerunner of pause.
pub(super) const SETTLED: Duration = Duration::from_secs(10);

/// What is known of a process.
#[derive(Debug, Clone, Copy)]
struct Known {
    inode: u64,
    start: u64,
    place: Place,
    /// Whether it was seen beside the anchor of its pod.
    is_barred: bool,
}

/// When a process began, in clock ticks since boot, and its ID. The order is that of age, the oldest first.
pub(super) type Age = (u64, Pid);

/// Where a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In no pod.
    Outside,
    /// In the group of a pod, and in the node's network.
    NodesNetwork,
    /// In a pod, and in another network than the node's.
    Pod(PodUid, Network),
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Pods that had no anchor, or had a younger one, and their anchors.
    pub(super) anchors: HashMap<PodUid, Process>,
    pub(super) processes: usize,
    pub(super) new: usize,
    pub(super) unreadable: usize,
}

/// The processes of the node.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    known: HashMap<Pid, Known>,
}

impl Scanner {
    /// Reads the processes that were not there before, or were not settled. `anchors`: those that run.
    pub(super) fn scan(&mut self, proc: &HostProc, anchors: &HashMap<PodUid, Age>) -> io::Result<Found> {
        let listed = proc.list()?;
        let now = BootTime::now();
        let mut found = Found { processes: listed.len(), ..Found::default() };
        let mut known = HashMap::with_capacity(listed.len());
        for Listed { pid, inode } in listed {
            let last = self.known.get(&pid);
            let before = last.filter(|last| last.inode == inode);
            if let Some(before) = before.filter(|before| before.is_settled(now, anchors)) {
                known.insert(pid, *before);
                continue;
            }
            found.new += usize::from(before.is_none());
            match read(proc, pid) {
                Ok(Some((place, process))) => {
                    let start = process.start;
                    // The kernel may give the same process another inode.
                    let is_barred = last.is_some_and(|last| last.start == start && last.is_barred);
                    known.insert(pid, Known { inode, start, place, is_barred });
                    if let Place::Pod(uid, _) = place {
                        propose(&mut found.anchors, anchors.get(&uid), uid, process, is_barred);
                    }
                }
                Ok(None) => {}
                Err(_) => {
                    found.unreadable += 1;
                    if let Some(barred) = last.filter(|last| last.is_barred) {
                        known.insert(pid, *barred);
                    }
                }
            }
        }
        self.known = known;
        Ok(found)
    }

    /// Bars the processes that were seen beside an anchor. `anchors`: those that still run after the scan.
    pub(super) fn bar(&mut self, anchors: &HashMap<PodUid, Age>) {
        let now = BootTime::now();
        let place_of = |age: &Age| self.known.get(&age.1).map(|known| known.place);
        let places: HashMap<PodUid, (bool, Option<Place>)> =
            anchors.iter().map(|(uid, age)| (*uid, (is_old(age.0, now), place_of(age)))).collect();
        for known in self.known.values_mut() {
            let Place::Pod(uid, _) = known.place else { continue };
            if let Some((is_old, place)) = places.get(&uid) {
                known.is_barred |= *is_old || *place != Some(known.place);
            }
        }
    }

    /// The number of processes that are remembered.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.known.len()
    }
}

impl Known {
    /// Whether there is nothing to learn by reading it again.
    fn is_settled(&self, now: BootTime, anchors: &HashMap<PodUid, Age>) -> bool {
        match self.place {
            Place::Outside | Place::NodesNetwork => is_old(self.start, now),
            Place::Pod(uid, _) => self.is_barred || anchors.contains_key(&uid),
        }
    }
}

/// Keeps a process if it is older than the anchor of its pod and than all that were proposed before.
fn propose(
    proposed: &mut HashMap<PodUid, Process>,
    anchor: Option<&Age>,
    uid: PodUid,
    process: Process,
    is_barred: bool,
) {
    let may_be = !is_barred && anchor.is_none_or(|anchor| process.age() < *anchor);
    if may_be && proposed.get(&uid).is_none_or(|best| process.age() < best.age()) {
        proposed.insert(uid, process);
    }
}

/// The time of a tick, rounded down to nanoseconds.
pub(super) fn time_of(ticks: u64) -> BootTime {
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(clock_ticks_per_second());
    BootTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn is_old(start: u64, now: BootTime) -> bool {
    now.since(time_of(start)) >= SETTLED
}

/// Where a process is. `None` if it has ended.
fn read(proc: &HostProc, pid: Pid) -> io::Result<Option<(Place, Process)>> {
    let Some(process) = proc.process(pid)? else { return Ok(None) };
    let Some(place) = unless_ended(place(proc, pid))? else { return Ok(None) };
    // What was read by the ID was of this process only if it still has the ID.
    Ok(process.is_running()?.then_some((place, process)))
}

fn place(proc: &HostProc, pid: Pid) -> io::Result<Place> {
    let Some(uid) = proc.pod_of(pid)? else { return Ok(Place::Outside) };
    let network = proc.network_of(pid)?;
    Ok(if proc.is_nodes(network) { Place::NodesNetwork } else { Place::Pod(uid, network) })
}
