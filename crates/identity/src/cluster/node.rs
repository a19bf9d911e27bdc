//! [`Node`]: a node's UID, zone and taints.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The taint of a node that its cloud has not described yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// One version of a node: the fields of its object that describe the machine, and its taints.
#[derive(Debug, Deserialize)]
pub struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    uid: String,
    resource_version: String,
    labels: Option<Labels>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Labels {
    #[serde(rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

/// A taint. A node may have several of one key, with an effect each. The fields that are not read are kept as they are.
#[derive(Debug, Deserialize, Serialize)]
struct Taint {
    key: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Node {
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

    /// The node without its taints of this key. `None` if no taint has it.
    pub fn without_taint(mut self, key: &str) -> Option<Self> {
        let taints = self.spec.taints.as_mut()?;
        let all = taints.len();
        taints.retain(|taint| taint.key != key);
        (taints.len() < all).then_some(self)
    }

    /// The patch that gives a node of this version these taints.
    pub(super) fn patch_of_taints(&self) -> Value {
        let metadata = json!({"resourceVersion": self.metadata.resource_version});
        json!({"metadata": metadata, "spec": {"taints": self.spec.taints}})
    }
}
