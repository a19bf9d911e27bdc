//! [`Visitor`]: the client of one connection.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Caller, Identity};
use crate::metadata::{CallingPod, Missing, Principal, Unidentified};
use crate::pods::owners::NoOwner;
use crate::server::Arrival;

/// Maximum wait for a pod to become known. Client libraries give up after 3 s.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);

/// First and longest intervals between attempts. An attempt is by a look that is not older than the first interval.
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
        match self.identity.identify(self.arrival) {
            Ok(caller) => self.caller.get_or_init(|| caller).sender(),
            Err(NoOwner::Unidentified(_)) => Ok((Principal::Unknown, None)),
            Err(NoOwner::Outdated) => Err(Outdated),
        }
    }

    /// Waits until the client is known, up to two seconds: for the API server to report its pod, or for its processes.
    ///
    /// Any number of requests may wait for the next look at the processes: it ends soon, and most clients are known then.
    /// Only a few may wait longer.
    pub async fn wait(&self) -> Result<Result<Sender, Unidentified>, Outdated> {
        let Self { identity, arrival, .. } = self;
        let mut waiting = None;
        // Until a look has said more.
        let mut why = Missing::Look;
        let mut changes = identity.pods.subscribe();
        let deadline = Instant::now() + MAX_WAIT;
        let mut interval = FIRST_INTERVAL;
        loop {
            // A client that was known before needs no more than a recent look.
            let Ok(look) = timeout_at(deadline, identity.lookout.within(FIRST_INTERVAL)).await else { break };
            match identity.identify(*arrival) {
                Ok(caller) => return self.caller.get_or_init(|| caller).sender().map(Ok),
                Err(NoOwner::Outdated) => return Err(Outdated),
                Err(NoOwner::Unidentified(missing)) => why = missing,
            }
            if matches!(why, Missing::Pod { .. }) {
                identity.pods.missed();
            }
            let now = Instant::now();
            if now >= deadline {
                break;
            }
            if look.tried < arrival.accepted {
                let _ = timeout_at(deadline, identity.lookout.since(arrival.accepted)).await;
                continue;
            }
            if waiting.is_none() {
                waiting = identity.let_wait(arrival.addr());
                if waiting.is_none() {
                    break;
                }
            }
            // A change of the API server's view, or the time for another look at the processes.
            let _ = timeout_at(deadline.min(now + interval), changes.changed()).await;
            interval = (interval * 2).min(MAX_INTERVAL);
        }
        Ok(Err(self.unidentified(why)))
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
