//! [`Identity::tend`]: notices when pods end.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::Identity;
use super::caller::KnownPod;
use crate::pods::Sandbox;
use crate::pods::owners::{self, Witness};
use base::clock::BootTime;
use protocol::metadata::Principal;
use proxy::server::Arrival;

/// Interval between checks that the pods of connections still live.
pub(super) const VERIFY_INTERVAL: Duration = Duration::from_millis(250);

impl Identity {
    /// Notices when pods end, while polled.
    pub async fn tend(self: Arc<Self>) {
        let mut changes = self.pods.subscribe();
        let mut left = Vec::new();
        let mut settled = None;
        let mut checking: Option<JoinHandle<()>> = None;
        loop {
            tokio::select! {
                _ = changes.changed() => {
                    self.expect_pods();
                    self.certificates.lock().retain(|pod, _| self.pods.get(*pod).is_some());
                    settled = None;
                }
                // Their addresses may have new owners.
                _ = self.scans.since(BootTime::now()), if !left.is_empty() => {}
                () = sleep(VERIFY_INTERVAL) => {}
            }
            self.verify(&mut left);
            let scanned = self.scans.last().began;
            let forgotten = if settled.replace(scanned) == Some(scanned) {
                self.workloads.replaced()
            } else {
                // Only after `verify`, because it reads the networks of all pods that claim an address, some of them perhaps long.
                self.settle_claims(scanned);
                self.workloads.retain(|| self.pods.all())
            };
            for number in forgotten {
                (self.forget)(Principal::Workload(number));
            }
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
            // Each connection on which it is known has a reference.
            let has_connection = Arc::strong_count(caller) > 1;
            let lives = caller.pod.as_ref().is_none_or(|pod| self.lives(pod, *addr, has_connection));
            if !lives {
                caller.is_gone.store(true, Relaxed);
                left.push((*addr, now));
            }
            lives
        });
        let scan = self.scans.last();
        let of_left: Vec<_> = left.iter().map(|(addr, _)| *addr).collect();
        let holders = self.sandboxes().holders_of(&of_left);
        left.retain(|(addr, noticed)| {
            // Connections that were accepted before the scan, and before a sandbox that it found, belong to the pod that has
            // ended. Later ones may belong to a pod that was not found yet.
            let next = holders.get(addr).into_iter().flatten().flatten().map(|next| next.began + owners::TICK).min();
            self.cut(*addr, next.unwrap_or(scan.began).min(scan.began));
            scan.began < *noticed
        });
        self.workloads.tend(now);
    }

    /// Decides again about addresses of known pods that another pod had as well when this scan began.
    fn settle_claims(&self, began: BootTime) {
        let mut claimed = self.sandboxes().contested();
        claimed.retain(|addr| self.callers.lock().contains_key(addr));
        for (addr, holders) in self.sandboxes().holders_of(&claimed) {
            let holders = holders.as_deref();
            let Some(known) = self.callers.lock().get(&addr).cloned() else { continue };
            // Connections of a pod with an interface of its own are told apart by that.
            if known.pod.as_ref().is_some_and(|pod| self.has_lead(pod, holders)) {
                continue;
            }
            match self.owner(Arrival::now((addr, 0).into()), None, holders) {
                // This resets the connections of the pod that had it before.
                Ok(owner) => drop(self.caller(addr, &owner)),
                Err(why) => self.disown(addr, &why, holders, began),
            }
        }
    }

    /// Whether an interface leads to this pod, which is among the holders of its address.
    pub(super) fn has_lead(&self, known: &KnownPod, holders: Option<&[Sandbox]>) -> bool {
        let is_led_to = |holder: &Sandbox| holder.uid == known.uid && self.sandboxes().leads().has(*holder);
        holders.is_some_and(|holders| holders.iter().any(is_led_to))
    }

    /// Whether a pod had this address at the last scan and still runs. If no connection waits for its end, the last scan says
    /// whether it runs, too.
    fn lives(&self, known: &KnownPod, addr: IpAddr, has_connection: bool) -> bool {
        let Some(pod) = self.pods.get(known.uid).filter(|pod| pod.has_network()) else { return false };
        let (had_address, is_scanned) = match known.by {
            Witness::Api => (pod.addresses.contains(&addr), false),
            Witness::Kernel => (self.sandboxes().had(known.uid, addr), !has_connection),
        };
        had_address && (is_scanned || self.sandboxes().is_alive(known.uid))
    }
}
