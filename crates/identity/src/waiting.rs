//! [`Waiting`]: a request that waits to be identified.

use std::net::IpAddr;
use std::sync::Arc;

use super::Identity;

/// Maximum requests that wait to be identified after a scan did not show their pod, in all and for each address: as many as a
/// client library sends at its start. Above half of the maximum an address may have one, so that a few addresses that stay unknown
/// leave room for a pod that has just started.
pub(super) const MAX_WAITING: usize = 100;
pub(super) const MAX_WAITING_OF_ONE: usize = 8;

/// A request that waits to be identified.
#[derive(Debug)]
pub(super) struct Waiting {
    identity: Arc<Identity>,
    addr: IpAddr,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = self.identity.waiting.lock();
        if let Some(own) = waiting.get_mut(&self.addr) {
            *own -= 1;
            if *own == 0 {
                waiting.remove(&self.addr);
            }
        }
    }
}

impl Identity {
    /// Lets a request from this address wait, unless too many are waiting. Each takes memory and requests further scans.
    pub(super) fn let_wait(self: &Arc<Self>, addr: IpAddr) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        let all: usize = waiting.values().sum();
        let own = waiting.get(&addr).copied().unwrap_or(0);
        let max_own = if all < MAX_WAITING / 2 { MAX_WAITING_OF_ONE } else { 1 };
        if all >= MAX_WAITING || own >= max_own {
            return None;
        }
        waiting.insert(addr, own + 1);
        Some(Waiting { identity: Arc::clone(self), addr })
    }
}
