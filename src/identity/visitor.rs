//! [`Visitor`]: the client of one connection.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Caller, Identity, MAX_SCAN_AGE};
use crate::metadata::{CallingPod, Missing, Principal, ServiceAccount, Unidentified};
use crate::pods::owners::NoOwner;
use crate::server::Arrival;

/// Maximum wait for a pod to become known. Client libraries give up after 3 s.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// First and longest intervals between attempts. An attempt looks for new processes.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// The client of one connection. Without Workload Identity it is the node.
#[derive(Debug)]
pub struct Visitor {
    pub(super) arrival: Arrival,
    /// `None` without Workload Identity.
    identity: Option<Arc<Identity>>,
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
    pub fn new(identity: Option<Arc<Identity>>, arrival: Arrival) -> Arc<Self> {
        Arc::new(Self { arrival, identity, caller: OnceLock::new() })
    }

    /// Whether clients are identified.
    pub fn is_identified(&self) -> bool {
        self.identity.is_some()
    }

    /// Whether a principal may get a token of this account: it is a workload's own, or that is not known yet. The
    /// source of tokens looks again when it knows.
    pub fn may_have_token_of(&self, principal: Principal, account: &ServiceAccount) -> bool {
        let Principal::Workload(number) = principal else { return false };
        let workloads = self.identity.as_ref().map(|identity| &identity.workloads);
        let workloads = workloads.filter(|workloads| workloads.federation().is_some());
        workloads.is_some_and(|workloads| workloads.is_own(number, account) != Some(false))
    }

    /// Who sends requests on this connection: [`Principal::Unknown`] if that is not known yet.
    pub fn sender(&self) -> Result<Sender, Outdated> {
        let Some(identity) = &self.identity else { return Ok((Principal::Node, None)) };
        if let Some(caller) = self.caller.get() {
            return caller.sender();
        }
        match identity.identify(self.arrival, MAX_SCAN_AGE) {
            Ok(caller) => self.caller.get_or_init(|| caller).sender(),
            Err(NoOwner::Unidentified(_)) => Ok((Principal::Unknown, None)),
            Err(NoOwner::Outdated) => Err(Outdated),
        }
    }

    /// Waits until the client is known, up to two seconds: for the API server to report its pod, or for its processes.
    pub async fn wait(&self) -> Result<Result<Sender, Unidentified>, Outdated> {
        let Some(identity) = &self.identity else { return Ok(Ok((Principal::Node, None))) };
        let waiting = identity.let_wait(self.arrival.addr());
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
            if left.is_zero() || waiting.is_none() {
                return Ok(Err(self.unidentified(identity, why)));
            }
            // A change of the API server's view, or the time for another look at the processes.
            let _ = timeout(interval.min(left), changes.changed()).await;
            interval = (interval * 2).min(MAX_INTERVAL);
        }
    }

    fn unidentified(&self, identity: &Identity, why: Missing) -> Unidentified {
        identity.refused(&why);
        Unidentified { addr: self.arrival.addr(), why }
    }
}

impl Caller {
    fn sender(&self) -> Result<Sender, Outdated> {
        if self.is_gone.load(Relaxed) {
            return Err(Outdated);
        }
        Ok((self.principal(), self.pod.as_ref().map(|(_, pod)| Arc::clone(pod))))
    }
}
