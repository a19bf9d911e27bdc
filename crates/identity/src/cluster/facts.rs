//! [`NodeFacts`]: a node's UID and zone.

use serde::Deserialize;

/// The taint of a node that its cloud has not described yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The fields of a node's object that describe the machine.
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
    pub fn uid(&self) -> Option<&str> {
        Some(&*self.metadata.uid).filter(|uid| !uid.is_empty())
    }

    /// The zone that its labels name.
    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.zone.as_deref().filter(|zone| !zone.is_empty())
    }

    /// Whether its labels may still be missing. While they are, no ordinary pod is scheduled on it.
    pub fn is_uninitialized(&self) -> bool {
        self.spec.taints.iter().flatten().any(|taint| taint.key == UNINITIALIZED)
    }
}
