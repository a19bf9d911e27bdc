//! Workload Identity: finds out which pod sent a request.
//!
//! [`Identity`] identifies the clients of all connections; a [`Visitor`] is the client of one. [`pods`] decides.
//!
//! A pod is identified at its first request on a connection: by a scan of the processes that began after the connection was
//! accepted, or by the interface that the connection came in by, if that leads to a known pod alone ([`pods::Leads`]). The
//! connection is then the pod's until the pod ends, also while it is parked: an address can change hands, a connection cannot.
//! When an address changes hands, its connections are reset. While two pods have an address, it is attributed to neither, unless
//! an interface or the API server says which of them has it.
//!
//! An older scan is not enough to attribute a connection by its address, although most addresses still belong to the pod that had
//! them last. A pod may keep its network after its address has passed to another pod: its teardown got stuck, or it gave itself
//! the address. The state of the older pod does not show that: a `deletionTimestamp` may be reported late, and the kernel confirms
//! that it has the address. Only a scan can show that there is no younger pod.

#![forbid(unsafe_code)]

pub mod accounts;
mod caller;
mod certificates;
pub mod cluster;
mod credential;
mod explain;
pub mod identify;
pub mod kin;
mod metrics;
pub mod pods;
mod settings;
mod status;
mod tend;
mod text;
pub mod tokens;
mod visitor;
mod waiting;
pub mod workloads;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::pods::owners::{self, Attest, Evidence, NoOwner, Owner};
use crate::pods::{Pod, PodUid, Pods, Sandbox, Sandboxes, Scans};
use crate::workloads::Workloads;
use base::clock::BootTime;
use base::hook::Hook;
use protocol::metadata::{CallingPod, Missing, Principal};
use proxy::server::Arrival;
use telemetry::labels::Label;
use telemetry::{Registry, table};

pub use caller::Caller;
use caller::{KnownPod, Role, witness};
use certificates::Certificates;
pub use credential::{CredentialBoard, CredentialState, CredentialStatus};
pub use explain::{Taken, Whois};
pub use metrics::Identified;
use metrics::IdentityMetrics;
pub use settings::{AccountName, Settings};
pub use status::{CallerRow, STALE, Summary};
pub use visitor::{Outdated, Visitor};

/// Resets the connections from an address that were accepted before a moment. Returns their number.
pub type CutFrom = Hook<dyn Fn(IpAddr, BootTime) -> usize + Send + Sync>;

/// Deletes the state of a principal that no longer exists.
pub type Forget = Hook<dyn Fn(Principal) + Send + Sync>;

/// Identifies the clients of connections.
#[derive(Debug)]
pub struct Identity {
    attest: Attest,
    passthrough: Vec<AccountName>,
    /// Pods, as the kernel shows them.
    scans: Scans,
    /// Pods, as the API server reports them.
    pods: Arc<Pods>,
    workloads: Arc<Workloads>,
    callers: Mutex<HashMap<IpAddr, Arc<Caller>>>,
    /// Requests that wait to be identified, by address.
    waiting: Mutex<HashMap<IpAddr, usize>>,
    node: Arc<Caller>,
    /// The certificates that pods' tokens were bound to, until a pod's object is gone.
    certificates: Mutex<HashMap<PodUid, Certificates>>,
    cut_from: CutFrom,
    forget: Forget,
    metrics: IdentityMetrics,
    credential: CredentialBoard,
    /// Set once the API server is followed.
    api_server: OnceLock<Cluster>,
    /// Why the last attempt to follow it failed, until it succeeds.
    watch_error: Mutex<Option<String>>,
    /// Why the last write to the state directory failed, until one succeeds.
    state_error: Mutex<Option<String>>,
}

impl Identity {
    /// Starts without pods: [`Identity::pods`] must be filled.
    pub fn new(
        settings: &Settings,
        workloads: Arc<Workloads>,
        scans: Scans,
        cut_from: CutFrom,
        forget: Forget,
        registry: &Registry,
    ) -> Arc<Self> {
        scans.export(registry);
        let identity = Arc::new(Self {
            attest: settings.attest,
            passthrough: settings.passthrough.clone(),
            scans,
            pods: Arc::default(),
            workloads,
            callers: Mutex::default(),
            waiting: Mutex::default(),
            node: Arc::new(Caller::new(Role::Node, None)),
            certificates: Mutex::default(),
            cut_from,
            forget,
            metrics: IdentityMetrics::new(registry),
            credential: CredentialBoard::new(registry),
            api_server: OnceLock::new(),
            watch_error: Mutex::default(),
            state_error: Mutex::default(),
        });
        identity.observe(registry);
        identity
    }

    fn observe(self: &Arc<Self>, registry: &Registry) {
        let observe = |row, read: fn(Summary) -> Option<u64>| {
            let identity = Arc::clone(self);
            registry.observe(row, move || read(identity.summary()));
        };
        observe(&table::IDENTITY_PODS, |summary| Some(summary.pods as u64));
        observe(&table::IDENTITY_SANDBOXES, |summary| Some(summary.sandboxes as u64));
        observe(&table::IDENTITY_API_AGE, |summary| summary.api_age);
    }

    /// The client of a connection, as of the last scan.
    fn identify(&self, arrival: Arrival) -> Result<Arc<Caller>, NoOwner> {
        let caller = self.look_up(arrival);
        match &caller {
            Ok(caller) => self.metrics.results.of(caller.witness()).inc(),
            Err(NoOwner::Outdated) => self.metrics.results.of(Identified::Outdated).inc(),
            // It may be known in a moment.
            Err(NoOwner::Unidentified(_)) => {}
        }
        caller
    }

    fn look_up(&self, arrival: Arrival) -> Result<Arc<Caller>, NoOwner> {
        let addr = arrival.addr();
        // First, because a pod can give itself the node's address, but not send from it. This needs no scan: it is read
        // from the kernel.
        if self.sandboxes().is_of_node(addr) {
            return Ok(Arc::clone(&self.node));
        }
        // Read before the results of the scan. The scan's age does not matter: a throttled process may get here long
        // after its end.
        let is_scanned = self.scans.last().began >= arrival.accepted;
        let lead = arrival.interface.and_then(|interface| self.sandboxes().leads().to(interface));
        if !is_scanned && lead.is_none() {
            return Err(Missing::Scan.into());
        }
        let holders = self.sandboxes().holders(addr);
        match self.owner(arrival, lead, holders.as_deref()) {
            Ok(owner) if !is_scanned && lead != owner.sandbox() => Err(Missing::Scan.into()),
            Ok(owner) => {
                if let (Some(interface), Some(sandbox), true) = (arrival.interface, owner.sandbox(), is_scanned) {
                    self.sandboxes().leads().learn(interface, sandbox, arrival.accepted);
                }
                Ok(self.caller(addr, &owner))
            }
            Err(_) if !is_scanned => Err(Missing::Scan.into()),
            Err(why) => {
                self.disown(addr, &why, holders.as_deref(), arrival.accepted);
                Err(why)
            }
        }
    }

    /// The owner of a connection's address, as of the last scan. It is the connection's if the scan began after the connection
    /// was accepted, or if it is `lead`, to which the connection's interface leads. `holders`: of the address, read now.
    fn owner(&self, arrival: Arrival, lead: Option<Sandbox>, holders: Option<&[Sandbox]>) -> Result<Owner, NoOwner> {
        let addr = arrival.addr();
        // The age first: what is reported is at most as old.
        let api_age = self.pods.age().unwrap_or(Duration::MAX);
        let (holders, reported) = (holders.ok_or(Missing::Scan)?, self.pods.with_address(addr));
        // After the holders: those that have ended or lost the address since the scan are among these.
        let mut recent = self.sandboxes().recent_holders(addr);
        recent.retain(|had| !self.pods.is_elsewhere(had.uid, addr));
        let evidence = Evidence {
            addr,
            holders,
            lead,
            recent: &recent,
            reported: &reported,
            api_age,
            is_answered: self.pods.is_answered(),
            attest: self.attest,
            accepted: arrival.accepted,
            now: BootTime::now(),
        };
        owners::decide(&evidence, |uid| self.pods.get(uid), |uid| self.sandboxes().anchor(uid))
    }

    /// The caller for the owner of an address. Connections of an earlier owner are reset.
    fn caller(&self, addr: IpAddr, owner: &Owner) -> Arc<Caller> {
        let mut callers = self.callers.lock();
        let known = callers.get(&addr).filter(|known| known.is(owner) && !known.is_gone.load(Relaxed));
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let caller = Arc::new(self.new_caller(owner));
        if let Some(before) = callers.insert(addr, Arc::clone(&caller)) {
            before.is_gone.store(true, Relaxed);
        }
        drop(callers);
        self.cut(addr, owner.began + owners::TICK);
        caller
    }

    fn new_caller(&self, owner: &Owner) -> Caller {
        let pod = &owner.pod;
        let role = if self.is_passed_through(pod) { Role::Node } else { Role::Account(self.workloads.of_pod(pod)) };
        let calling = CallingPod {
            namespace: Arc::clone(&pod.namespace),
            service_account: Arc::clone(&pod.account),
            name: Arc::clone(&pod.name),
            uid: pod.uid.to_string(),
            evidence: witness(owner.by).label(),
        };
        let pod = KnownPod { uid: pod.uid, by: owner.by, calling: Arc::new(calling) };
        Caller::new(role, Some(pod))
    }

    /// Whether a pod acts as the node.
    fn is_passed_through(&self, pod: &Pod) -> bool {
        let is_its = |account: &AccountName| *account.namespace == *pod.namespace && *account.name == *pod.account;
        self.passthrough.iter().any(is_its)
    }

    /// Takes an address away from a known pod if another pod has it as well and the API server does not decide between
    /// them. Resets its connections from before this moment. Those of a pod with an interface of its own are told apart by that.
    fn disown(&self, addr: IpAddr, why: &NoOwner, holders: Option<&[Sandbox]>, before: BootTime) {
        if !matches!(why, NoOwner::Unidentified(why) if why.is_ambiguous()) {
            return;
        }
        let Some(known) = self.callers.lock().get(&addr).cloned() else { return };
        if known.pod.as_ref().is_some_and(|pod| self.has_lead(pod, holders)) {
            return;
        }
        self.callers.lock().retain(|_, caller| !Arc::ptr_eq(caller, &known));
        known.is_gone.store(true, Relaxed);
        self.cut(addr, before);
    }

    fn cut(&self, addr: IpAddr, before: BootTime) {
        let cut = (self.cut_from)(addr, before);
        if cut > 0 {
            self.metrics.cut.inc_by(cut as u64);
            tracing::debug!(%addr, connections = cut, "an address has changed hands; resetting its connections");
        }
    }

    fn sandboxes(&self) -> &Sandboxes {
        self.scans.sandboxes()
    }

    /// Sets the API server that is followed.
    pub fn follows(&self, api_server: Cluster) {
        // A process follows only one.
        let _ = self.api_server.set(api_server);
    }

    /// The pods that the API server reports.
    pub fn pods(&self) -> &Arc<Pods> {
        &self.pods
    }

    /// The accounts of this node's pods.
    pub fn workloads(&self) -> &Arc<Workloads> {
        &self.workloads
    }

    /// The rights of the proxy's credential for the API server.
    pub fn credential(&self) -> &CredentialBoard {
        &self.credential
    }
}

#[cfg(test)]
pub(crate) mod tests;
