//! [`Identity::tend`]: notices when pods end.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::Identity;
use super::caller::KnownPod;
use crate::pods::owners::{self, Witness};
use base::clock::BootTime;
use protocol::metadata::Principal;
use proxy::server::Arrival;

/// Interval between checks that identified pods still live.
pub(super) const VERIFY_INTERVAL: Duration = Duration::from_millis(250);

impl Identity {
    /// Notices when pods end, while polled.
    pub async fn tend(self: Arc<Self>) {
        let mut changes = self.pods.subscribe();
        let mut left = Vec::new();
        let mut checking: Option<JoinHandle<()>> = None;
        loop {
            tokio::select! {
                _ = changes.changed() => self.expect_pods(),
                // Their addresses may have new owners.
                _ = self.scans.since(BootTime::now()), if !left.is_empty() => {}
                () = sleep(VERIFY_INTERVAL) => {}
            }
            self.verify(&mut left);
            if checking.as_ref().is_none_or(JoinHandle::is_finished) && self.sandboxes().leads().has_new() {
                let identity = Arc::clone(&self);
                checking = Some(spawn_blocking(move || identity.sandboxes().leads().check()));
            }
        }
    }

    /// Reads the accounts of new pods in advance, so that their first requests need not wait for them.
    fn expect_pods(&self) {
        for pod in self.pods.all() {
            if pod.has_identity() && !self.is_passed_through(&pod) {
                self.workloads.of_pod(&pod);
            }
        }
    }

    /// Forgets the pods that have ended, and resets their connections. `left`: addresses with connections that are still to be
    /// reset, and when the end of their pod was noticed.
    fn verify(&self, left: &mut Vec<(IpAddr, BootTime)>) {
        let now = BootTime::now();
        self.callers.lock().retain(|addr, caller| {
            let lives = caller.pod.as_ref().is_none_or(|pod| self.lives(pod, *addr));
            if !lives {
                caller.is_gone.store(true, Relaxed);
                left.push((*addr, now));
            }
            lives
        });
        let scan = self.scans.last();
        left.retain(|(addr, noticed)| {
            // Connections that were accepted before the scan, and before a sandbox that it found, belong to the pod that has
            // ended. Later ones may belong to a pod that was not found yet.
            let holders = self.sandboxes().holders(*addr).unwrap_or_default();
            let next = holders.iter().map(|next| next.began + owners::TICK).min();
            self.cut(*addr, next.unwrap_or(scan.began).min(scan.began));
            scan.began < *noticed
        });
        self.settle_claims(scan.began);
        self.workloads.tend(now);
        for number in self.workloads.retain(|| self.pods.all()) {
            (self.forget)(Principal::Workload(number));
        }
    }

    /// Decides again about addresses of known pods that another pod had as well when this scan began.
    fn settle_claims(&self, began: BootTime) {
        for addr in self.sandboxes().contested() {
            let known = self.callers.lock().get(&addr).cloned();
            // Connections of a pod with an interface of its own are told apart by that.
            if known.is_none_or(|known| known.pod.as_ref().is_some_and(|pod| self.has_lead(pod, addr))) {
                continue;
            }
            match self.owner(Arrival::now((addr, 0).into()), None) {
                // This resets the connections of the pod that had it before.
                Ok(owner) => drop(self.caller(addr, &owner)),
                Err(why) => self.disown(addr, &why, began),
            }
        }
    }

    /// Whether an interface leads to this pod, which has this address now.
    pub(super) fn has_lead(&self, known: &KnownPod, addr: IpAddr) -> bool {
        let holders = self.sandboxes().holders(addr).unwrap_or_default();
        holders.iter().any(|holder| holder.uid == known.uid && self.sandboxes().leads().has(*holder))
    }

    /// Whether a pod still runs and had this address at the last scan.
    fn lives(&self, known: &KnownPod, addr: IpAddr) -> bool {
        let Some(pod) = self.pods.get(known.uid).filter(|pod| pod.has_network()) else { return false };
        let has_address = match known.by {
            Witness::Api => pod.addresses.contains(&addr),
            Witness::Kernel => self.sandboxes().addresses(known.uid).contains(&addr),
        };
        has_address && self.sandboxes().is_alive(known.uid)
    }
}
