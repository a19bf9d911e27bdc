//! [`Visitor`]: the client of one connection.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::metrics::Identified;
use super::{Caller, Identity};
use crate::pods::PodUid;
use crate::pods::owners::NoOwner;
use base::clock::BootTime;
use protocol::metadata::{
    BoundTo, Doubt, Fingerprint, Missing, NotBound, Principal, Request, RequestError, Sender, Unidentified,
};
use proxy::error::{Error, Overload};
use proxy::server::Arrival;

/// Maximum time to wait until a pod is known. Client libraries give up after 3 s.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);

/// Initial and maximum interval between attempts. A further attempt uses a scan that is not older than the initial interval.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// The client of one connection, also while it is parked. Without Workload Identity there is none: all clients act as the node.
#[derive(Debug)]
pub struct Visitor {
    pub(super) arrival: Arrival,
    identity: Arc<Identity>,
    /// Set once it is identified.
    caller: OnceLock<Arc<Caller>>,
}

/// The connection does not belong to the pod that now has its address, or its pod has ended.
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

    /// The sender of the requests on this connection: [`Principal::Unknown`] if it is not known yet.
    pub fn sender(&self) -> Result<Sender, Outdated> {
        if let Some(caller) = self.caller.get() {
            return self.identity.still(caller);
        }
        match self.identity.identify(self.arrival) {
            Ok(caller) => self.caller.get_or_init(|| caller).sender(),
            Err(NoOwner::Unidentified(_)) => Ok((Principal::Unknown, None)),
            Err(NoOwner::Outdated) => Err(Outdated),
        }
    }

    /// Waits until the client is known, up to two seconds: for the API server to report its pod, or for its processes.
    ///
    /// Any number of requests may wait for the scan that begins after their connection was accepted: it ends soon, and shows
    /// most clients. Only a few may wait longer.
    pub async fn wait(&self) -> Result<Result<Sender, Unidentified>, Outdated> {
        let Self { identity, arrival, .. } = self;
        let deadline = Instant::now() + MAX_WAIT;
        if timeout_at(deadline, identity.scans.since(arrival.accepted)).await.is_err() {
            return Ok(Err(self.unidentified(Missing::Scan)));
        }
        let mut waiting = None;
        let mut changes = identity.pods.subscribe();
        let mut interval = FIRST_INTERVAL;
        loop {
            let why = match identity.identify(*arrival) {
                Ok(caller) => return self.caller.get_or_init(|| caller).sender().map(Ok),
                Err(NoOwner::Outdated) => return Err(Outdated),
                Err(NoOwner::Unidentified(why)) => why,
            };
            match why {
                Missing::Pod { .. } | Missing::Answer { uid: Some(_), .. } => identity.pods.missed(),
                Missing::Confirmation { because: Doubt::Unsettled(0), .. } => identity.pods.doubted(),
                _ => {}
            }
            if waiting.is_none() {
                waiting = identity.let_wait(arrival.addr());
            }
            if waiting.is_none() || Instant::now() >= deadline {
                return Ok(Err(self.unidentified(why)));
            }
            // Until the API server's view changes, or it is time for another scan.
            let _ = timeout_at(deadline.min(Instant::now() + interval), changes.changed()).await;
            interval = (interval * 2).min(MAX_INTERVAL);
            if timeout_at(deadline, identity.scans.within(FIRST_INTERVAL)).await.is_err() {
                return Ok(Err(self.unidentified(why)));
            }
        }
    }

    /// Whether a request of its pod may have a token bound to this certificate. The pod is known by now.
    pub fn may_bind(&self, request: &Request, bound_to: &BoundTo) -> Result<(), Error> {
        let pod = request.pod.as_ref().filter(|_| matches!(request.principal, Principal::Workload(_)));
        let known = self.caller.get().and_then(|caller| caller.pod.as_ref());
        let (pod, known) = pod.zip(known).ok_or(NotBound::Node).map_err(RequestError::from)?;
        if !bound_to.is_of(&pod.namespace, &pod.service_account) {
            return Err(RequestError::from(NotBound::Foreign).into());
        }
        let is_admitted = self.identity.admits(known.uid, &bound_to.fingerprint);
        if is_admitted { Ok(()) } else { Err(Overload::Certificates.into()) }
    }

    fn unidentified(&self, why: Missing) -> Unidentified {
        self.identity.refused(&why);
        Unidentified { addr: self.arrival.addr(), why }
    }
}

impl Identity {
    /// Whether a token of this pod may be bound to this certificate.
    pub(super) fn admits(&self, pod: PodUid, certificate: &Fingerprint) -> bool {
        self.certificates.lock().entry(pod).or_default().admit(certificate, BootTime::now())
    }

    /// Counts a request that got 503.
    fn refused(&self, why: &Missing) {
        let result = if why.is_ambiguous() { Identified::Ambiguous } else { Identified::Unknown };
        self.metrics.results.of(result).inc();
    }

    /// The sender on a connection that was identified before, if its pod still runs. Reads the pod's oldest process, so that the
    /// connection ends with the pod and not at the next check.
    fn still(&self, caller: &Caller) -> Result<Sender, Outdated> {
        let runs = caller.pod.as_ref().is_none_or(|pod| self.sandboxes().is_alive(pod.uid));
        if !runs {
            caller.is_gone.store(true, Relaxed);
        }
        caller.sender()
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
