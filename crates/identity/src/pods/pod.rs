//! [`Pod`]: a pod as the API server describes it.

use std::net::IpAddr;
use std::sync::Arc;

use super::PodUid;

/// A pod of this node, as the API server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub uid: PodUid,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Its Kubernetes service account, in the same namespace.
    pub account: Arc<str>,
    /// Whether it shares the node's network. The kernel cannot tell such pods from the node.
    pub host_network: bool,
    /// Whether all its containers have ended for good: its phase is Succeeded or Failed. Its address may be another pod's.
    pub ended: bool,
    /// Whether its deletion was requested. It keeps its identity until its sandbox ends.
    pub terminating: bool,
    /// Creation time, as the digits of the API server's timestamp: 20260131235959. Only for comparisons; 0 if unknown.
    pub created: u64,
    /// Its addresses. The kubelet reports them late; with a slow image or hook, minutes after the first container began.
    pub addresses: Vec<IpAddr>,
}

/// Namespace and name of a service account.
pub type AccountKey = (Arc<str>, Arc<str>);

impl Pod {
    pub(crate) fn account_key(&self) -> AccountKey {
        (Arc::clone(&self.namespace), Arc::clone(&self.account))
    }

    /// Whether requests can come from an address of its own.
    pub fn has_network(&self) -> bool {
        !self.host_network && !self.ended
    }

    /// Whether it may send requests in the name of its service account. Static pods have none.
    pub fn has_identity(&self) -> bool {
        self.has_network() && !self.account.is_empty()
    }
}
