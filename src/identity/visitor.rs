//! [`Visitor`]: the client of one connection.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Caller, Identity, MAX_SCAN_AGE};
use crate::metadata::{CallingPod, Missing, Principal, Unidentified};
use crate::pods::owners::NoOwner;
use crate::server::Arrival;

/// Maximum wait for a pod to become known. Client libraries give up after 3 s.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// First and longest intervals between attempts. An attempt looks for new processes.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// The client of one connection. Without Workload Identity there is none: all clients act as the node.
#[derive(Debug)]
pub struct Visitor {
    pub(super) arrival: Arrival,
    identity: Arc<Identity>,
    /// Set when it is identified.
    caller: OnceLock<Arc<Caller>>,
}

/// Who sent a request.
pub type Sender = (Principal, Option<Arc<CallingPod>>);

/// The connection is not that of the pod which now has its address, or its pod has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outdated;

impl Visitor {
    /// The client of this connection.
    pub fn new(identity: Arc<Identity>, arrival: Arrival) -> Arc<Self> {
        Arc::new(Self { arrival, identity, caller: OnceLock::new() })
    }

    /// Whether pods have accounts of their own.
    pub fn has_accounts(&self) -> bool {
        self.identity.workloads.federation().is_some()
    }

    /// Who sends requests on this connection: [`Principal::Unknown`] if that is not known yet.
    pub fn sender(&self) -> Result<Sender, Outdated> {
        if let Some(caller) = self.caller.get() {
            return caller.sender();
        }
        match self.identity.identify(self.arrival, MAX_SCAN_AGE) {
            Ok(caller) => self.caller.get_or_init(|| caller).sender(),
            Err(NoOwner::Unidentified(_)) => Ok((Principal::Unknown, None)),
            Err(NoOwner::Outdated) => Err(Outdated),
        }
    }

    /// Waits until the client is known, up to two seconds: for the API server to report its pod, or for its processes.
    ///
    /// The next look at the processes is waited for by any number, because it comes soon and most clients are known then.
    /// Few go on waiting for what it did not show.
    pub async fn wait(&self) -> Result<Result<Sender, Unidentified>, Outdated> {
        let identity = &self.identity;
        let mut waiting = None;
        let mut changes = identity.pods.subscribe();
        let began = Instant::now();
        let mut interval = FIRST_INTERVAL;
        loop {
            let why = match identity.identify(self.arrival, FIRST_INTERVAL) {
                Ok(caller) => return self.caller.get_or_init(|| caller).sender().map(Ok),
                Err(NoOwner::Outdated) => return Err(Outdated),
                Err(NoOwner::Unidentified(why)) => why,
            };
            let left = MAX_WAIT.saturating_sub(began.elapsed());
            if waiting.is_none() && identity.has_looked_since(self.arrival.accepted) {
                waiting = identity.let_wait(self.arrival.addr());
                if waiting.is_none() {
                    return Ok(Err(self.unidentified(why)));
                }
            }
            if left.is_zero() {
                return Ok(Err(self.unidentified(why)));
            }
            // A change of the API server's view, or the time for another look at the processes.
            let _ = timeout(interval.min(left), changes.changed()).await;
            interval = (interval * 2).min(MAX_INTERVAL);
        }
    }

    fn unidentified(&self, why: Missing) -> Unidentified {
        self.identity.refused(&why);
        Unidentified { addr: self.arrival.addr(), why }
    }
}

impl Caller {
    fn sender(&self) -> Result<Sender, Outdated> {
        if self.is_gone.load(Relaxed) {
            return Err(Outdated);
        }
        Ok((self.principal(), self.pod.as_ref().map(|pod| Arc::clone(&pod.calling))))
    }
}
