//! [`Sandboxes`]: the networks of this node's pods, as the kernel shows them.

mod journal;
mod table;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::PodUid;
use super::host_proc::{HostProc, ProcError, Process, unless_ended};
use super::leads::Leads;
use super::sandbox::Sandbox;
use super::scanner::{Age, Scanner, time_of};
use base::clock::BootTime;
use journal::Journal;
pub(super) use table::REMEMBERED;
use table::{Known, TOO_MANY_ROUTES, Table};

/// Maximum number of addresses of a sandbox. A pod that may configure its network can have any number.
const MAX_ADDRESSES: usize = 32;

/// The sandboxes of this node, from its `/proc`. Needs one open file for each.
///
/// All methods block while the kernel writes the files that they read: some microseconds each, and up to 0.7 ms for the
/// network of a pod that has hundreds of routes. A network with more is not read again. A scan reads files of
/// all sandboxes and of all new processes, and takes milliseconds; [`Scans`](super::Scans) runs it on a thread of its
/// own. The other methods do not wait for it: until it ends, they answer from the results of the scan before.
#[derive(Debug)]
pub struct Sandboxes {
    proc: HostProc,
    /// Locked during a scan, before `table`.
    scanner: Mutex<Scanner>,
    /// Never locked while a file is read.
    table: Mutex<Table>,
    leads: Leads,
    /// `None` if nothing outlives the process.
    journal: Option<Journal>,
}

/// The sandboxes that have an address.
pub(super) type Holders = SmallVec<[Sandbox; 2]>;

/// The state of a pod's anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// No live process in a network of its own.
    None,
    /// A live process in a network that has addresses, or had some when it was complete.
    Networked(Sandbox),
    /// A live process in a network that has no addresses, and had some at its beginning at most, as with a sandboxed
    /// runtime.
    Bare(Sandbox),
}

impl Anchor {
    /// The sandbox, if it is alive.
    pub fn sandbox(self) -> Option<Sandbox> {
        match self {
            Self::None => None,
            Self::Networked(sandbox) | Self::Bare(sandbox) => Some(sandbox),
        }
    }
}

/// Summary of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Number of processes on the node.
    pub processes: usize,
    /// Number of processes that are new since the scan before.
    pub new: usize,
    /// Number of sandboxes after the scan.
    pub sandboxes: usize,
    /// Number of running processes that could not be read; 1 if `/proc` itself could not. The next scan tries them again.
    pub unreadable: usize,
    /// Processor time of the scan; zero if it was not measured.
    pub cost: Duration,
}

impl Sandboxes {
    /// Opens the node's `/proc`. Sandboxes are found by the first scan.
    pub fn open(proc: &Path) -> Result<Self, ProcError> {
        Self::with(proc, Leads::of_node())
    }

    fn with(proc: &Path, leads: Leads) -> Result<Self, ProcError> {
        let proc = HostProc::open(proc)?;
        let node = proc.nodes_addresses().unwrap_or_default();
        let table = Mutex::new(Table { node, ..Table::default() });
        Ok(Self { proc, scanner: Mutex::default(), table, leads, journal: None })
    }

    /// Finds the sandboxes of the node once, to count them. Reads no network of a pod: that can take more memory than there is.
    pub fn count_at(proc: &Path) -> Result<Scanned, ProcError> {
        let proc = HostProc::open(proc)?;
        let Ok(found) = Scanner::default().scan(&proc, &HashMap::new()) else {
            return Ok(Scanned { unreadable: 1, ..Scanned::default() });
        };
        let (sandboxes, cost) = (found.anchors.len(), Duration::ZERO);
        Ok(Scanned { processes: found.processes, new: found.new, sandboxes, unreadable: found.unreadable, cost })
    }

    /// Keeps in this directory which network a scan reads, for the next process: the network of a pod that has ended two
    /// processes, because reading it takes too much memory, is not read again.
    #[must_use]
    pub fn kept_in(self, state_dir: Option<&Path>) -> Self {
        Self { journal: state_dir.map(Journal::open), ..self }
    }

    /// The pods that the node's interfaces lead to.
    pub fn leads(&self) -> &Leads {
        &self.leads
    }

    /// Finds new sandboxes, new addresses, and sandboxes that are gone. Reads only processes that are new since the
    /// last scan, or so young that they may not be in their pod yet.
    pub fn scan(&self) -> Scanned {
        let mut scanner = self.scanner.lock();
        let mut sandboxes = self.table.lock().sandboxes.clone();
        sandboxes.retain(|_, known| known.may_be_alive());
        let Ok(found) = scanner.scan(&self.proc, &ages(&sandboxes)) else {
            return Scanned { sandboxes: self.count(), unreadable: 1, ..Scanned::default() };
        };
        for (uid, anchor) in found.anchors {
            let mut known = Known::new(anchor);
            if let Some(why) = self.journal.as_ref().and_then(|journal| journal.why_closed(uid)) {
                known.close(uid, &why);
            }
            sandboxes.insert(uid, known);
        }
        let now = BootTime::now();
        for (uid, known) in sandboxes.iter_mut().filter(|(_, known)| known.is_due(now)) {
            match self.addresses_of(*uid, known, now) {
                Ok(addresses) => known.has(addresses, now),
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => known.close(*uid, TOO_MANY_ROUTES),
                // The known addresses stay: `holders` does not trust them.
                Err(_) => known.is_unread = true,
            }
        }
        let (sandboxes, ended): (HashMap<_, _>, HashMap<_, _>) =
            sandboxes.into_iter().partition(|(_, known)| known.may_be_alive());
        scanner.bar(&ages(&sandboxes));
        let node = self.proc.nodes_addresses();
        let summary = Scanned {
            processes: found.processes,
            new: found.new,
            sandboxes: sandboxes.len(),
            unreadable: found.unreadable,
            cost: Duration::ZERO,
        };
        let mut table = self.table.lock();
        let before = table.renew(sandboxes, &ended);
        if let Ok(node) = node {
            table.node = node;
        }
        drop(table);
        // This closes files, so not under the lock.
        drop(before);
        if let Some(journal) = &self.journal {
            journal.scanned();
        }
        summary
    }

    fn addresses_of(&self, uid: PodUid, known: &Known, now: BootTime) -> io::Result<Vec<IpAddr>> {
        let is_small = known.is_small(now);
        // Until both files are read: a pod may add routes in between.
        let _reading = self.journal.as_ref().filter(|_| !is_small).map(|journal| journal.reading(uid));
        if !is_small && !self.proc.has_few_routes(known.anchor.pid)? {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.proc.addresses(known.anchor.pid, MAX_ADDRESSES)
    }

    /// The sandboxes that have this address now, confirmed by the kernel. Sandboxes and addresses that are newer than
    /// the last scan are not found. There is more than one if a pod gave itself another pod's address. `None` if a
    /// sandbox that had it cannot be read, because the result would be incomplete.
    pub fn holders(&self, addr: IpAddr) -> Option<Holders> {
        let addr = addr.to_canonical();
        self.holders_of(&[addr]).remove(&addr)?
    }

    /// The [`holders`](Self::holders) of each of these addresses. Reads each network once, whatever it claims.
    pub fn holders_of(&self, addrs: &[IpAddr]) -> HashMap<IpAddr, Option<Holders>> {
        let mut holders: HashMap<_, _> = addrs.iter().map(|addr| (*addr, Some(Holders::new()))).collect();
        for (uid, anchor, had) in self.candidates(addrs) {
            let has = unless_ended(self.proc.has(anchor.pid, &had));
            // The addresses are this process's only if it still has its ID.
            match (anchor.is_running(), has) {
                (Ok(false), _) => self.forget(uid, &anchor),
                (Ok(true), Ok(has)) => {
                    let sandbox = Sandbox { uid, began: time_of(anchor.start) };
                    for addr in has.unwrap_or_default() {
                        holders.entry(addr).and_modify(|holders| holders.iter_mut().for_each(|all| all.push(sandbox)));
                    }
                }
                (_, Err(error)) if error.kind() == io::ErrorKind::FileTooLarge => self.close(uid, &anchor),
                (Err(_), _) | (_, Err(_)) => holders.extend(had.into_iter().map(|addr| (addr, None))),
            }
        }
        holders
    }

    /// The sandboxes that had this address at the last scan, or in the five minutes before, whether they live or not.
    pub fn recent_holders(&self, addr: IpAddr) -> Holders {
        let addr = addr.to_canonical();
        let table = self.table.lock();
        let having = table.sandboxes.iter().filter(|(_, known)| known.addresses.contains(&addr));
        let lost = table.lost.values().flatten().filter(|lost| lost.addr == addr);
        having.map(|(uid, known)| known.sandbox(*uid)).chain(lost.map(|lost| lost.by)).collect()
    }

    /// Whether the sandbox of a pod is alive: its oldest process runs.
    pub fn is_alive(&self, uid: PodUid) -> bool {
        let Some(anchor) = self.table.lock().sandboxes.get(&uid).map(|known| Arc::clone(&known.anchor)) else {
            return false;
        };
        let is_running = anchor.is_running();
        if matches!(is_running, Ok(false)) {
            self.forget(uid, &anchor);
        }
        is_running.unwrap_or(false)
    }

    /// The anchor that the last scan found for a pod, if it still runs.
    pub fn anchor(&self, uid: PodUid) -> Anchor {
        let Some(known) = self.table.lock().sandboxes.get(&uid).cloned() else { return Anchor::None };
        match known.anchor.is_running() {
            Ok(true) if known.may_have_addresses() => Anchor::Networked(known.sandbox(uid)),
            Ok(true) => Anchor::Bare(known.sandbox(uid)),
            _ => Anchor::None,
        }
    }

    /// The addresses of a pod, as of the last scan.
    pub fn addresses(&self, uid: PodUid) -> Vec<IpAddr> {
        self.table.lock().sandboxes.get(&uid).map(|known| known.addresses.to_vec()).unwrap_or_default()
    }

    /// Whether a pod ran and had this address at the last scan.
    pub fn had(&self, uid: PodUid, addr: IpAddr) -> bool {
        self.table.lock().sandboxes.get(&uid).is_some_and(|known| known.addresses.contains(&addr))
    }

    /// The addresses that more than one sandbox had at the last scan.
    pub fn contested(&self) -> Vec<IpAddr> {
        let table = self.table.lock();
        let mut addresses: Vec<IpAddr> = table.sandboxes.values().flat_map(|known| known.addresses.clone()).collect();
        drop(table);
        addresses.sort_unstable();
        let mut contested: Vec<_> =
            addresses.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        contested.dedup();
        contested
    }

    /// Whether an address is in the node's own network, that of process 1. Loopback is. Addresses that are newer than
    /// the last scan are not found.
    pub fn is_of_node(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        if addr.is_loopback() {
            return true;
        }
        // Every network may have it on a link of its own.
        if matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local()) {
            return false;
        }
        let was = self.table.lock().node.binary_search(&addr).is_ok();
        // The node may have lost it, and a pod may have it now.
        was && self.proc.node_has(addr).unwrap_or(false)
    }

    /// The number of sandboxes, as of the last scan.
    pub fn count(&self) -> usize {
        self.table.lock().sandboxes.len()
    }

    /// The sandboxes that had any of these addresses at the last scan, and which.
    fn candidates(&self, addrs: &[IpAddr]) -> Vec<(PodUid, Arc<Process>, Vec<IpAddr>)> {
        let table = self.table.lock();
        let having = table.sandboxes.iter().filter_map(|(uid, known)| {
            let had: Vec<_> = known.addresses.iter().copied().filter(|addr| addrs.contains(addr)).collect();
            (!had.is_empty()).then(|| (*uid, Arc::clone(&known.anchor), had))
        });
        having.collect()
    }

    /// Closes the network of a sandbox, unless it has another anchor by now.
    fn close(&self, uid: PodUid, anchor: &Arc<Process>) {
        let mut table = self.table.lock();
        let Some(known) = table.sandboxes.get_mut(&uid).filter(|known| Arc::ptr_eq(&known.anchor, anchor)) else {
            return;
        };
        let had = known.clone();
        known.close(uid, TOO_MANY_ROUTES);
        table.lose(uid, &had, &[]);
    }

    /// Forgets a sandbox, unless it has another anchor by now.
    fn forget(&self, uid: PodUid, anchor: &Arc<Process>) {
        let mut table = self.table.lock();
        if table.sandboxes.get(&uid).is_some_and(|known| Arc::ptr_eq(&known.anchor, anchor))
            && let Some(ended) = table.sandboxes.remove(&uid)
        {
            table.lose(uid, &ended, &[]);
        }
    }
}

fn ages(sandboxes: &HashMap<PodUid, Known>) -> HashMap<PodUid, Age> {
    sandboxes.iter().map(|(uid, known)| (*uid, known.anchor.age())).collect()
}

#[cfg(any(test, feature = "test-util"))]
pub(super) mod fake_proc;
#[cfg(test)]
mod tests;
