//! [`Scanner`]: finds the anchor of each pod among the node's processes.
//!
//! The *anchor* of a pod is its oldest process outside the node's network: pause. A process can unshare a network and give
//! itself any address, but cannot be older than pause. A process that was seen while its pod had an anchor is *barred*: it does
//! not become the anchor when pause ends, since it may have waited for that.
//!
//! While a sandbox is made, a process changes its group and its network, and short-lived ones precede pause (runc's and crun's
//! `init`). So a process is read again while it is young, and a young anchor bars only processes in other networks than its own.
//!
//! # What a pod can make it cost
//!
//! Each scan lists all processes, and reads those that are new. For most of them that is one file, `cgroup`: a pod's process that
//! was not there at the last scan began after it, so it is younger than an anchor that was [`SETTLED`] then, and is barred
//! unread. A pod without such an anchor has [`BUDGET`] processes read in full by each scan. The others are read by the next ones,
//! and until then **the pod gets no anchor**: one that is not read yet may be pause. So a pod that starts many processes before it
//! is known stays unknown for longer, and never has the network of a process that is not its oldest. If it has an anchor already,
//! what exceeds the budget is barred if it is younger, which its `stat` file says.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use super::PodUid;
use super::host_proc::{HostProc, Listed, Network, Pid, Process, unless_ended};
use base::clock::BootTime;

/// The age from which on a process stays in its pod and network, and an anchor is no forerunner of pause.
pub(super) const SETTLED: Duration = Duration::from_secs(10);

/// Processes of a pod whose anchor is not settled that a scan reads in full: what a scan takes for a pod is bounded.
pub(super) const BUDGET: usize = 512;

/// Processes of a node at most, so that what is remembered of them stays below 17 MiB. A scan of more fails.
const MAX_PROCESSES: usize = 200_000;

/// UIDs of pods that are remembered although no process of theirs is.
const MAX_IDLE_PODS: usize = 1024;

/// What is known of a process. There may be tens of thousands: 40 bytes.
#[derive(Debug, Clone, Copy)]
struct Known {
    inode: u64,
    /// `None` as [`UNREAD`].
    start: u64,
    place: Place,
    /// Whether it was seen beside the anchor of its pod.
    is_barred: bool,
    /// Of the last scan that listed it.
    turn: bool,
}

/// The start of a process whose `stat` was not read.
const UNREAD: u64 = u64::MAX;

/// Stands for a pod's UID, in less memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Number(u32);

/// When a process began, in clock ticks since boot, and its ID. The order is that of age, the oldest first.
pub(super) type Age = (u64, Pid);

/// Where a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Could not be read.
    Unknown,
    /// In no pod, or it has ended and nobody has noticed.
    Outside,
    /// In the group of a pod, and in the node's network.
    NodesNetwork(Number),
    /// In a pod, and in another network than the node's.
    Pod(Number, Network),
    /// In a pod. Nothing else was read.
    Unread(Number),
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
    numbers: HashMap<PodUid, Number>,
    next: u32,
    /// When the last scan began.
    began: Option<BootTime>,
    turn: bool,
}

/// The pod of a process, if it is of one, and its network, unless that is the node's.
type Seen = Option<(PodUid, Option<Network>)>;

/// The anchor of a pod when a scan begins.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    age: Age,
    /// Whether all processes that the last scan did not find are younger.
    is_settled: bool,
}

/// A scan that is under way.
struct Round<'a> {
    proc: &'a HostProc,
    now: BootTime,
    anchors: HashMap<Number, Anchor>,
    /// How many processes of a pod were read in full.
    read: HashMap<Number, usize>,
    /// The oldest of a pod's processes that were read by an earlier scan, if it has no anchor.
    oldest: HashMap<Number, Age>,
    /// Pods that have processes which are not read yet, and no anchor.
    held: HashSet<Number>,
    found: Found,
}

impl Scanner {
    /// Reads the processes that were not there before, or were not settled. `anchors`: those that run.
    pub(super) fn scan(&mut self, proc: &HostProc, anchors: &HashMap<PodUid, Age>) -> io::Result<Found> {
        let listed = proc.list(MAX_PROCESSES)?;
        let now = BootTime::now();
        let anchors = self.numbered(anchors);
        let found = Found { processes: listed.len(), ..Found::default() };
        let (read, oldest, held) = (HashMap::new(), HashMap::new(), HashSet::new());
        let mut round = Round { proc, now, anchors, read, oldest, held, found };
        self.turn = !self.turn;
        for listed in listed {
            self.visit(listed, &mut round);
        }
        let turn = self.turn;
        self.known.retain(|_, known| known.turn == turn);
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

    fn visit(&mut self, listed: Listed, round: &mut Round<'_>) {
        let Listed { pid, inode } = listed;
        let turn = self.turn;
        let last = self.known.get_mut(&pid);
        let before = last.as_deref().copied().filter(|last| last.inode == inode);
        if let (Some(known), true) = (last, before.is_some_and(|before| round.has_read(pid, before))) {
            known.turn = turn;
            return;
        }
        let last = self.known.get(&pid).copied();
        round.found.new += usize::from(before.is_none_or(|before| before.place == Place::Unknown));
        let read = self.read(listed, last, round).unwrap_or_else(|_| {
            round.found.unreadable += 1;
            let unknown = Known { inode, start: UNREAD, place: Place::Unknown, is_barred: false, turn };
            Some(last.filter(|last| last.is_barred).unwrap_or(unknown))
        });
        if let Some(known) = read {
            self.known.insert(pid, Known { turn, ..known });
        }
    }

    /// Reads as much of a process as is needed. `last`: what was known of the one that had its ID. `None` if it has ended.
    ///
    /// What is read is of the process that was listed, or of a later one with its ID, which has another inode: then the next scan
    /// reads it again.
    fn read(&mut self, listed: Listed, last: Option<Known>, round: &mut Round<'_>) -> io::Result<Option<Known>> {
        let Listed { pid, inode } = listed;
        let turn = self.turn;
        let known = |place, start, is_barred| Some(Known { inode, start, place, is_barred, turn });
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
        for (pod, (start, pid)) in std::mem::take(&mut round.oldest) {
            if round.held.contains(&pod) {
                continue;
            }
            // It is tried again by the next scan.
            let Ok(Some((seen, process))) = read(round.proc, pid) else { continue };
            let place = self.place(seen);
            // Another process may have its ID by now.
            if process.start == start && place.pod() == Some(pod) {
                self.known.entry(pid).and_modify(|known| known.place = place);
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
            let used: HashSet<Number> = self.known.values().filter_map(|known| known.place.pod()).collect();
            self.numbers.retain(|_, number| used.contains(number));
        }
    }

    /// Bars the processes that were seen beside an anchor. `anchors`: those that still run after the scan.
    pub(super) fn bar(&mut self, anchors: &HashMap<PodUid, Age>) {
        let now = BootTime::now();
        let place_of = |age: &Age| self.known.get(&age.1).map(|known| known.place);
        let numbers = &self.numbers;
        let places: HashMap<Number, (bool, Option<Place>)> = anchors
            .iter()
            .filter_map(|(uid, age)| Some((*numbers.get(uid)?, (is_old(age.0, now), place_of(age)))))
            .collect();
        for known in self.known.values_mut() {
            let (Place::Pod(pod, _) | Place::Unread(pod)) = known.place else { continue };
            if let Some((is_old, place)) = places.get(&pod) {
                known.is_barred |= *is_old || *place != Some(known.place);
            }
        }
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
    /// Whether there is nothing to learn by reading a process again.
    fn has_read(&mut self, pid: Pid, before: Known) -> bool {
        match before.place {
            Place::Unknown => false,
            Place::Outside | Place::NodesNetwork(_) => is_old(before.start, self.now),
            Place::Unread(_) => before.is_barred,
            Place::Pod(pod, _) => {
                if !before.is_barred && !self.anchors.contains_key(&pod) {
                    let age = (before.start, pid);
                    self.oldest.entry(pod).and_modify(|oldest| *oldest = age.min(*oldest)).or_insert(age);
                }
                true
            }
        }
    }

    /// Keeps a process if it is older than the anchor of its pod and than all that were proposed before.
    fn propose(&mut self, seen: Seen, place: Place, process: Process) {
        let (Some((uid, _)), Place::Pod(pod, _)) = (seen, place) else { return };
        let is_older = self.anchors.get(&pod).is_none_or(|anchor| process.age() < anchor.age);
        if is_older && self.found.anchors.get(&uid).is_none_or(|best| process.age() < best.age()) {
            self.found.anchors.insert(uid, process);
        }
    }
}

/// Whether the process that had an ID was barred in this pod. Another one with its ID began after the last scan.
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

/// When a process began. 0 if it has ended: then nothing more becomes of it.
fn start_of(proc: &HostProc, pid: Pid) -> io::Result<u64> {
    Ok(proc.process(pid)?.map_or(0, |process| process.start))
}

/// Where a process is. `None` if it has ended.
fn read(proc: &HostProc, pid: Pid) -> io::Result<Option<(Seen, Process)>> {
    let Some(process) = proc.process(pid)? else { return Ok(None) };
    let Some(seen) = unless_ended(see(proc, pid))? else { return Ok(None) };
    // What was read by the ID was of this process only if it still has the ID.
    Ok(process.is_running()?.then_some((seen, process)))
}

fn see(proc: &HostProc, pid: Pid) -> io::Result<Seen> {
    let Some(uid) = proc.pod_of(pid)? else { return Ok(None) };
    let network = proc.network_of(pid)?;
    Ok(Some((uid, (!proc.is_nodes(network)).then_some(network))))
}
