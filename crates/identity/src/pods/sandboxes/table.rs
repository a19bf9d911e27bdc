//! [`Table`]: the sandboxes as of the last scan, and the addresses that they have lost.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::MAX_ADDRESSES;
use crate::pods::PodUid;
use crate::pods::host_proc::Process;
use crate::pods::sandbox::Sandbox;
use crate::pods::scanner::{SETTLED, time_of};
use base::clock::BootTime;

/// Interval at which addresses that have not changed for [`SETTLED`] are read again. Connections wait for scans, which should be
/// short: they must find the pods that are new since the last one. An address that an older pod gives itself can wait.
pub(super) const REREAD: Duration = Duration::from_secs(1);

/// Time for which a network that was small, or new, is considered small. A pod that may configure its network adds some 90,000
/// routes a second.
const SMALL_FOR: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) sandboxes: HashMap<PodUid, Known>,
    /// Addresses that the sandboxes of each pod have lost, the latest last.
    pub(super) lost: HashMap<PodUid, Vec<Lost>>,
    /// The addresses of the node's network, sorted.
    pub(super) node: Vec<IpAddr>,
}

/// An address that a sandbox lost, either while it ran or when it ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub(super) addr: IpAddr,
    pub(super) by: Sandbox,
    pub(super) noticed: BootTime,
}

/// Time for which a lost address is remembered. A pod's containers may live on for a while when its sandbox has died.
pub(in super::super) const REMEMBERED: Duration = Duration::from_secs(300);

/// Maximum number of lost addresses that are remembered of a pod. A pod that may configure its network can lose any number.
pub(super) const MAX_LOST: usize = 2 * MAX_ADDRESSES;

/// A sandbox as of the last scan.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// The oldest process of the pod.
    pub(super) anchor: Arc<Process>,
    pub(super) addresses: SmallVec<[IpAddr; 2]>,
    /// Time of the last read, and of the last change.
    pub(super) read: BootTime,
    pub(super) changed: BootTime,
    /// Whether it had an address when it was complete. Some runtimes take a pod's addresses before
    /// they end its processes: then the address may be another pod's, and the API server's report does not count.
    pub(super) had_addresses: bool,
    /// Whether the last read failed, as without a free file descriptor. It may have addresses.
    pub(super) is_unread: bool,
    /// Its network has too many routes, or ended proxies that read it. It is not read again.
    pub(super) is_closed: bool,
}

/// Why a network is closed that has more routes than are read.
pub(super) const TOO_MANY_ROUTES: &str = "this pod has too many routes (more than about 500), so its network is no longer read and it \
     gets 503 until it is deleted and created again; check who may add routes there (NET_ADMIN)";

/// Age from which on a sandbox is complete. gVisor takes the addresses out of a pod's network when it starts, after the
/// network plugin has put them there: some tenths of a second later, on a busy node some seconds.
const COMPLETE: Duration = Duration::from_secs(10);

/// Age by which a sandbox that loses its addresses at its beginning must have been seen without them. An older pod that
/// loses them is ending.
const SEEN_WITHOUT: Duration = Duration::from_secs(60);

impl Known {
    pub(super) fn new(anchor: Process) -> Self {
        let never = BootTime::from_nanos(0);
        Self {
            anchor: Arc::new(anchor),
            addresses: SmallVec::new(),
            read: never,
            changed: never,
            had_addresses: false,
            is_unread: false,
            is_closed: false,
        }
    }

    /// Whether a scan that begins now must read its addresses.
    pub(super) fn is_due(&self, now: BootTime) -> bool {
        // Some runtimes start the sandbox before its network is ready.
        !self.is_closed
            && (self.addresses.is_empty() || now.since(self.changed) < SETTLED || now.since(self.read) >= REREAD)
    }

    /// Whether its network was small a short time ago.
    pub(super) fn is_small(&self, now: BootTime) -> bool {
        now.since(self.read.max(time_of(self.anchor.start))) < SMALL_FOR
    }

    /// Ignores its network from now on. The pod is unknown, and what it claims to have is nobody's. `why`: for the log.
    pub(super) fn close(&mut self, uid: PodUid, why: &str) {
        if !mem::replace(&mut self.is_closed, true) {
            tracing::warn!(%uid, "{why}");
        }
        // The API server's report does not count, either.
        self.had_addresses = true;
        self.addresses = SmallVec::new();
    }

    pub(super) fn has(&mut self, addresses: Vec<IpAddr>, now: BootTime) {
        let age = now.since(time_of(self.anchor.start));
        let has_lost_them = !self.addresses.is_empty() && addresses.is_empty();
        self.is_unread = false;
        self.had_addresses |= !addresses.is_empty() && age >= COMPLETE || has_lost_them && age >= SEEN_WITHOUT;
        self.read = now;
        if *self.addresses != *addresses {
            self.changed = now;
            self.addresses = addresses.into();
            self.addresses.shrink_to_fit();
        }
    }

    pub(super) fn may_have_addresses(&self) -> bool {
        self.had_addresses || self.is_unread || !self.addresses.is_empty()
    }

    pub(super) fn sandbox(&self, uid: PodUid) -> Sandbox {
        Sandbox { uid, began: time_of(self.anchor.start) }
    }

    /// `false` only if its anchor has certainly ended.
    pub(super) fn may_be_alive(&self) -> bool {
        self.anchor.is_running().unwrap_or(true)
    }
}

impl Table {
    /// Remembers the addresses that a sandbox had, except those that it still has.
    pub(super) fn lose(&mut self, uid: PodUid, had: &Known, has: &[IpAddr]) {
        let (by, noticed) = (had.sandbox(uid), BootTime::now());
        for addr in had.addresses.iter().copied().filter(|addr| !has.contains(addr)) {
            let lost = self.lost.entry(uid).or_default();
            lost.retain(|lost| lost.by != by || lost.addr != addr);
            if lost.len() >= MAX_LOST {
                lost.remove(0);
            }
            lost.push(Lost { addr, by, noticed });
        }
    }

    /// Replaces the sandboxes by those of a scan. `ended`: those that have ended since it found them.
    pub(super) fn renew(
        &mut self,
        sandboxes: HashMap<PodUid, Known>,
        ended: &HashMap<PodUid, Known>,
    ) -> HashMap<PodUid, Known> {
        let before = mem::replace(&mut self.sandboxes, sandboxes);
        let now = BootTime::now();
        self.lost.retain(|_, lost| {
            lost.retain(|lost| now.since(lost.noticed) < REMEMBERED);
            !lost.is_empty()
        });
        for (uid, had) in before.iter().filter(|(_, had)| had.is_closed) {
            // Closed while the scan ran.
            if let Some(has) = self.sandboxes.get_mut(uid).filter(|has| has.anchor.age() == had.anchor.age()) {
                has.close(*uid, TOO_MANY_ROUTES);
            }
        }
        for (uid, had) in before.iter().chain(ended) {
            let has = self.sandboxes.get(uid).filter(|has| has.anchor.age() == had.anchor.age());
            let has = has.map(|has| has.addresses.clone()).unwrap_or_default();
            self.lose(*uid, had, &has);
        }
        before
    }
}
