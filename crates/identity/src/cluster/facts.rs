//! [`NodeFacts`]: what a node is called.

use serde::Deserialize;

/// The taint of a node whose cloud has not described it yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// What a node's object says of the machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    uid: String,
    labels: Option<Labels>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Labels {
    #[serde(rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Deserialize)]
struct Taint {
    key: String,
}

impl NodeFacts {
    /// Its UID.
    pub fn uid(&self) -> Option<&str> {
        Some(&*self.metadata.uid).filter(|uid| !uid.is_empty())
    }

    /// The zone that its labels name.
    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.zone.as_deref().filter(|zone| !zone.is_empty())
    }

    /// Whether its labels may still come. Until then no ordinary pod is scheduled on it.
    pub fn is_uninitialized(&self) -> bool {
        self.spec.taints.iter().flatten().any(|taint| taint.key == UNINITIALIZED)
    }
}
