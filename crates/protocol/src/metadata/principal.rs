//! [`Principal`]: the identity on whose behalf a request is answered.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

/// The caller as the proxy knows it.
///
/// Everything cached for a caller, such as a token, is keyed by this type, so that no pod ever receives another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Principal {
    /// The node, whose metadata server is behind the proxy. Without Workload Identity, also each of its pods.
    Node,
    /// The Kubernetes service account of a pod.
    Workload(WorkloadId),
    /// A pod that is not known yet. `identify` waits for it, so later layers do not see this value, except in requests
    /// that are answered in the same way for all callers.
    Unknown,
}

/// A Kubernetes service account with running pods on this node. A number is never reused, so that data cached for one
/// account can never be taken for another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId(pub u64);

/// Formats the name used in logs and on pages.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Workload(WorkloadId(number)) => write!(f, "workload {number}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The pod that sent a request, for logs and for the pod itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallingPod {
    pub namespace: Arc<str>,
    pub service_account: Arc<str>,
    #[serde(rename = "pod")]
    pub name: Arc<str>,
    pub uid: String,
    /// The source of this knowledge: `kernel` or `api`.
    pub evidence: &'static str,
}

/// The sender of a request: the principal on whose behalf it is answered, and the pod, which may act as the node.
pub type Sender = (Principal, Option<Arc<CallingPod>>);

/// Reason why the pod with an address is not known. The text is sent to the client and logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not known which pod has the address {addr}: {why}")]
pub struct Unidentified {
    /// The client's address.
    pub addr: IpAddr,
    /// The missing evidence.
    pub why: Missing,
}

/// The evidence that is missing to identify the pod with an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The node's processes have not been scanned since the connection was accepted.
    #[error(
        "the proxy could not scan the node's processes since this connection was opened; see the proxy's log and /readyz"
    )]
    Scan,
    /// Neither the kernel nor the API server names a pod.
    #[error("no process on this node has it in a pod's network, and the API server reports no pod with it")]
    Claim,
    /// The kernel names a pod that the API server has not reported, or reports as ended.
    #[error("the pod with UID {uid} has it, but the API server reports no running pod of this node with that UID")]
    Pod {
        /// The UID.
        uid: String,
    },
    /// Neither names a pod, or the kernel names a new one, and the API server does not respond.
    #[error("{}, and {}", nobody(.uid.as_deref()), silent(*.silence))]
    Answer {
        /// The UID that the kernel names.
        uid: Option<String>,
        /// Number of seconds for which the API server has not responded. `None` if it never has.
        silence: Option<u64>,
    },
    /// The API server names a pod that has no service account.
    #[error(
        "the API server reports it for the pod {pod}, which has no service account and so no tokens: it is a static pod, which \
         the kubelet reads from a file of the node"
    )]
    Account {
        /// Namespace and name of the pod.
        pod: String,
    },
    /// The API server names a pod that the kernel does not confirm.
    #[error("the API server reports it for the pod {pod}, but {because}")]
    Confirmation {
        /// Namespace and name of the pod.
        pod: String,
        /// Reason why the API server alone is not believed.
        because: Doubt,
    },
    /// Several pods have the address.
    #[error("{claims} pods have it, and the API server does not report which of them it was given to")]
    Decision {
        /// Number of these pods.
        claims: usize,
    },
}

/// Reason why the API server alone is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// The kernel must confirm every pod.
    #[error("no process of that pod has it (--attest=kernel)")]
    Required,
    /// The pod has a network, and the address is not in it.
    #[error("the pod's network has other addresses, or has ended")]
    Contradicted,
    /// The report may be of a sandbox that the pod had before. It counts if the API server is heard after this many seconds.
    #[error("that report may be older than the pod's sandbox; it counts after another {0} s")]
    Unsettled(u64),
    /// The API server has reported nothing about pods for too long.
    #[error("the API server has reported nothing about pods for {0} s")]
    Stale(u64),
}

fn nobody(uid: Option<&str>) -> String {
    match uid {
        Some(uid) => format!("the pod with UID {uid} has it"),
        None => "no process on this node has it in a pod's network".to_owned(),
    }
}

fn silent(seconds: Option<u64>) -> String {
    match seconds {
        Some(seconds) => format!("the API server has not answered for {seconds} s"),
        None => "the API server has not answered yet".to_owned(),
    }
}

impl Missing {
    /// What the client can do. Empty if the same request will not be answered later either.
    pub fn advice(&self) -> &'static str {
        if matches!(self, Self::Account { .. }) { "" } else { "; try again in a second" }
    }

    /// Whether there are several candidates rather than none.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Decision { .. })
    }
}
