//! [`Scanner`]: finds the anchor of each pod among the node's processes.
//!
//! The *anchor* of a pod is its oldest process outside the node's network: pause. A process can unshare a network and give
//! itself any address, but cannot be older than pause. A process that was seen while its pod had an anchor is *barred*: it does
//! not become the anchor when pause ends, since it may have waited for that.
//!
//! While a sandbox is made, a process changes its group and its network, and short-lived ones precede pause (runc's and crun's
//! `init`). So a process is read again while it is young, and a young anchor bars only processes in other networks than its own.
//!
//! # The cost that a pod can cause
//!
//! Each scan lists all processes, and reads those that are new. For most of them that is one file, `cgroup`: a pod's process
//! that was not there at the last scan began after it. So it is younger than an anchor that was [`SETTLED`] then, and is
//! barred unread. For a pod without such an anchor, each scan reads [`BUDGET`] processes in full, and the next scans read
//! the others. Until then **the pod gets no anchor**: an unread process may be pause. So a pod that starts many processes
//! before it is known stays unknown for longer, and never gets the network of a process that is not its oldest. If it has an
//! anchor already, processes beyond the budget are barred if they are younger, which their `stat` files say.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use super::PodUid;
use super::host_proc::{HostProc, Listed, Network, Pid, Process, unless_ended};
use base::clock::BootTime;

/// Age from which on a process stays in its pod and network, and an anchor is pause itself, not a forerunner of it.
pub(super) const SETTLED: Duration = Duration::from_secs(10);

/// Maximum number of processes that a scan reads in full, of a pod without a settled anchor. It bounds the cost of a pod.
pub(super) const BUDGET: usize = 512;

/// Maximum number of processes on a node, so that the memory for them stays below 20 MiB. A scan that finds more fails.
const MAX_PROCESSES: usize = 200_000;

/// Maximum number of UIDs remembered of pods without a remembered process.
const MAX_IDLE_PODS: usize = 1024;

/// A known process, in 40 bytes: there may be tens of thousands.
#[derive(Debug, Clone, Copy)]
struct Known {
    pid: Pid,
    inode: u64,
    /// [`UNREAD`] if not known.
    start: u64,
    place: Place,
    /// Set if it was seen beside its pod's anchor: it cannot become the anchor.
    is_barred: bool,
}

const _: () = assert!(size_of::<Known>() == 40 && size_of::<Listed>() == 16, "docs/identity.md says how large");

/// The start of a process whose `stat` was not read.
const UNREAD: u64 = u64::MAX;

/// A short stand-in for a pod's UID, to save memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Number(u32);

/// Start of a process, in clock ticks since boot, and its ID. Orders by age, the oldest first.
pub(super) type Age = (u64, Pid);

/// The pod and network of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Could not be read.
    Unknown,
    /// In no pod, or ended but still listed.
    Outside,
    /// In the group of a pod, and in the node's network.
    NodesNetwork(Number),
    /// In a pod, and in another network than the node's.
    Pod(Number, Network),
    /// In a pod. Its network was not read.
    Unread(Number),
}

/// Result of a scan.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// New anchors, of pods that had none or a younger one.
    pub(super) anchors: HashMap<PodUid, Process>,
    pub(super) processes: usize,
    pub(super) new: usize,
    pub(super) unreadable: usize,
}

/// The processes of the node.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// Those of the last scan, by ID. The kernel lists them by ID, too, so a scan compares the two lists side by side.
    known: Vec<Known>,
    numbers: HashMap<PodUid, Number>,
    next: u32,
    /// Beginning of the last scan.
    began: Option<BootTime>,
}

/// The pod of a process, if it has one, and its network, unless that is the node's.
type Seen = Option<(PodUid, Option<Network>)>;

/// The anchor of a pod when a scan begins.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    age: Age,
    /// Whether all processes that the last scan did not find are younger than this anchor.
    is_settled: bool,
}

/// A scan in progress.
struct Round<'a> {
    proc: &'a HostProc,
    now: BootTime,
    anchors: HashMap<Number, Anchor>,
    /// Number of processes read in full, for each pod.
    read: HashMap<Number, usize>,
    /// The oldest process that an earlier scan read, for each pod without an anchor.
    oldest: HashMap<Number, Age>,
    /// Pods that have unread processes, and no anchor.
    held: HashSet<Number>,
    found: Found,
}

impl Scanner {
    /// Reads the processes that are new since the last scan, or were not settled then. `anchors`: the running ones.
    pub(super) fn scan(&mut self, proc: &HostProc, anchors: &HashMap<PodUid, Age>) -> io::Result<Found> {
        let listed = proc.list(MAX_PROCESSES)?;
        let now = BootTime::now();
        let anchors = self.numbered(anchors);
        let found = Found { processes: listed.len(), ..Found::default() };
        let (read, oldest, held) = (HashMap::new(), HashMap::new(), HashSet::new());
        let mut round = Round { proc, now, anchors, read, oldest, held, found };
        self.visit_all(listed, &mut round);
        self.reconsider(&mut round);
        self.tidy();
        self.began = Some(now);
        let Round { mut found, held, .. } = round;
        found.anchors.retain(|uid, _| !self.numbers.get(uid).is_some_and(|pod| held.contains(pod)));
        Ok(found)
    }

    fn numbered(&mut self, anchors: &HashMap<PodUid, Age>) -> HashMap<Number, Anchor> {
        let began = self.began;
        let anchor = |age: Age| Anchor { age, is_settled: began.is_some_and(|began| is_old(age.0, began)) };
        anchors.iter().map(|(uid, age)| (self.number(*uid), anchor(*age))).collect()
    }

    /// Replaces the known processes by those that are listed. Until all are visited, the known ones stay: a panic loses nothing.
    fn visit_all(&mut self, listed: Vec<Listed>, round: &mut Round<'_>) {
        let mut known = Vec::with_capacity(listed.len());
        let mut next = 0;
        for listed in listed {
            while self.known.get(next).is_some_and(|known| known.pid < listed.pid) {
                next += 1;
            }
            let last = self.known.get(next).copied().filter(|last| last.pid == listed.pid);
            known.extend(self.visit(listed, last, round));
        }
        self.known = known;
    }

    /// Reads a listed process, as far as needed. `last`: the last known process with its ID. `None` if the process has ended.
    fn visit(&mut self, listed: Listed, last: Option<Known>, round: &mut Round<'_>) -> Option<Known> {
        let Listed { pid, inode } = listed;
        let before = last.filter(|last| last.inode == inode);
        if let Some(before) = before
            && round.has_read(before)
        {
            return Some(before);
        }
        round.found.new += usize::from(before.is_none_or(|before| before.place == Place::Unknown));
        self.read(listed, last, round).unwrap_or_else(|_| {
            round.found.unreadable += 1;
            let unknown = Known { pid, inode, start: UNREAD, place: Place::Unknown, is_barred: false };
            Some(last.filter(|last| last.is_barred).unwrap_or(unknown))
        })
    }

    /// Reads as much of a process as needed. `last`: the last known process with its ID. `None` if the process has ended.
    ///
    /// The result belongs to the listed process, or to a later one with its ID. A later one has another inode, so the
    /// next scan reads it again.
    fn read(&mut self, listed: Listed, last: Option<Known>, round: &mut Round<'_>) -> io::Result<Option<Known>> {
        let Listed { pid, inode } = listed;
        let known = |place, start, is_barred| Some(Known { pid, inode, start, place, is_barred });
        let same = last.filter(|last| last.inode == inode);
        let pod = match same.map(|same| same.place) {
            Some(Place::Unread(pod)) => pod,
            _ => match unless_ended(round.proc.pod_of(pid))? {
                None => return Ok(None),
                Some(Some(uid)) => self.number(uid),
                Some(None) => {
                    let before = same.filter(|same| same.place == Place::Outside).map(|same| same.start);
                    let start = before.map_or_else(|| start_of(round.proc, pid), Ok)?;
                    return Ok(known(Place::Outside, start, was_barred(last, start, None)));
                }
            },
        };
        let anchor = round.anchors.get(&pod).copied();
        let is_younger = last.is_none() || is_barred_in(last, pod);
        if is_younger && anchor.is_some_and(|anchor| anchor.is_settled) {
            return Ok(known(Place::Unread(pod), UNREAD, true));
        }
        let in_full = round.read.entry(pod).or_default();
        if *in_full >= BUDGET {
            let Some(anchor) = anchor else {
                round.held.insert(pod);
                return Ok(known(Place::Unread(pod), UNREAD, is_barred_in(last, pod)));
            };
            let start = start_of(round.proc, pid)?;
            if (start, pid) > anchor.age {
                return Ok(known(Place::Unread(pod), start, true));
            }
        }
        *in_full += 1;
        let Some((seen, process)) = read(round.proc, pid)? else { return Ok(known(Place::Outside, 0, false)) };
        let (place, start) = (self.place(seen), process.start);
        let is_barred = was_barred(last, start, place.pod());
        if !is_barred {
            round.propose(seen, place, process);
        }
        Ok(known(place, start, is_barred))
    }

    /// Proposes processes that were read by earlier scans, while their pod was held or had a younger anchor.
    fn reconsider(&mut self, round: &mut Round<'_>) {
        for (pod, (start, pid)) in mem::take(&mut round.oldest) {
            if round.held.contains(&pod) {
                continue;
            }
            // The next scan tries again.
            let Ok(Some((seen, process))) = read(round.proc, pid) else { continue };
            let place = self.place(seen);
            // Another process may have its ID by now.
            if process.start == start && place.pod() == Some(pod) {
                if let Ok(at) = self.position(pid) {
                    self.known[at].place = place;
                }
                round.propose(seen, place, process);
            }
        }
    }

    /// Gives back memory that is no longer needed.
    fn tidy(&mut self) {
        if self.known.capacity() / 8 > self.known.len() {
            self.known.shrink_to_fit();
        }
        if self.numbers.len() > self.known.len().min(MAX_IDLE_PODS) {
            let used: HashSet<Number> = self.known.iter().filter_map(|known| known.place.pod()).collect();
            self.numbers.retain(|_, number| used.contains(number));
        }
    }

    /// Bars the processes that were seen beside an anchor. `anchors`: those that still run after the scan.
    pub(super) fn bar(&mut self, anchors: &HashMap<PodUid, Age>) {
        let now = BootTime::now();
        let place_of = |age: &Age| self.position(age.1).ok().map(|at| self.known[at].place);
        let numbers = &self.numbers;
        let places: HashMap<Number, (bool, Option<Place>)> = anchors
            .iter()
            .filter_map(|(uid, age)| Some((*numbers.get(uid)?, (is_old(age.0, now), place_of(age)))))
            .collect();
        for known in self.known.iter_mut().filter(|known| !known.is_barred) {
            let (Place::Pod(pod, _) | Place::Unread(pod)) = known.place else { continue };
            if let Some((is_old, place)) = places.get(&pod) {
                known.is_barred = *is_old || *place != Some(known.place);
            }
        }
    }

    fn position(&self, pid: Pid) -> Result<usize, usize> {
        self.known.binary_search_by_key(&pid, |known| known.pid)
    }

    fn number(&mut self, uid: PodUid) -> Number {
        *self.numbers.entry(uid).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            Number(self.next)
        })
    }

    fn place(&mut self, seen: Seen) -> Place {
        match seen {
            None => Place::Outside,
            Some((uid, None)) => Place::NodesNetwork(self.number(uid)),
            Some((uid, Some(network))) => Place::Pod(self.number(uid), network),
        }
    }

    /// The number of processes that are remembered.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.known.len()
    }
}

impl Place {
    fn pod(self) -> Option<Number> {
        match self {
            Self::Unknown | Self::Outside => None,
            Self::NodesNetwork(pod) | Self::Pod(pod, _) | Self::Unread(pod) => Some(pod),
        }
    }
}

impl Round<'_> {
    /// Whether reading a process again would show nothing new.
    fn has_read(&mut self, before: Known) -> bool {
        match before.place {
            Place::Unknown => false,
            Place::Outside | Place::NodesNetwork(_) => is_old(before.start, self.now),
            Place::Unread(_) => before.is_barred,
            Place::Pod(pod, _) => {
                if !before.is_barred && !self.anchors.contains_key(&pod) {
                    let age = (before.start, before.pid);
                    self.oldest.entry(pod).and_modify(|oldest| *oldest = age.min(*oldest)).or_insert(age);
                }
                true
            }
        }
    }

    /// Keeps a process if it is older than its pod's anchor and than all those proposed before.
    fn propose(&mut self, seen: Seen, place: Place, process: Process) {
        let (Some((uid, _)), Place::Pod(pod, _)) = (seen, place) else { return };
        let is_older = self.anchors.get(&pod).is_none_or(|anchor| process.age() < anchor.age);
        if is_older && self.found.anchors.get(&uid).is_none_or(|best| process.age() < best.age()) {
            self.found.anchors.insert(uid, process);
        }
    }
}

/// Whether the last process with an ID was barred in this pod. If another process has the ID now, it began after the
/// last scan.
fn is_barred_in(last: Option<Known>, pod: Number) -> bool {
    last.is_some_and(|last| last.is_barred && last.place.pod() == Some(pod))
}

/// Whether a process is one that was barred. The kernel may give the same process another inode.
fn was_barred(last: Option<Known>, start: u64, pod: Option<Number>) -> bool {
    let is_in_same = || pod.is_some_and(|pod| is_barred_in(last, pod));
    last.is_some_and(|last| last.is_barred && (last.start == start || last.start == UNREAD && is_in_same()))
}

/// The time of a tick, rounded down to nanoseconds.
pub(super) fn time_of(ticks: u64) -> BootTime {
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(clock_ticks_per_second());
    BootTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn is_old(start: u64, now: BootTime) -> bool {
    now.since(time_of(start)) >= SETTLED
}

/// Start of a process, in clock ticks. 0 if it has ended: it counts as old, and is not read again.
fn start_of(proc: &HostProc, pid: Pid) -> io::Result<u64> {
    Ok(proc.process(pid)?.map_or(0, |process| process.start))
}

/// Reads the pod and network of a process. `None` if it has ended.
fn read(proc: &HostProc, pid: Pid) -> io::Result<Option<(Seen, Process)>> {
    let Some(process) = proc.process(pid)? else { return Ok(None) };
    let Some(seen) = unless_ended(see(proc, pid))? else { return Ok(None) };
    // The values read by ID belong to this process only if it still has the ID.
    Ok(process.is_running()?.then_some((seen, process)))
}

fn see(proc: &HostProc, pid: Pid) -> io::Result<Seen> {
    let Some(uid) = proc.pod_of(pid)? else { return Ok(None) };
    let network = proc.network_of(pid)?;
    Ok(Some((uid, (!proc.is_nodes(network)).then_some(network))))
}
