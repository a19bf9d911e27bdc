//! [`NodeTaints`]: the taints of a node.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The taints of a node, as of one version of the node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct NodeTaints {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

/// A taint. The fields that are not read are kept as they are.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Taint {
    /// Its key. A node may have several taints of one key, with an effect each.
    pub key: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl NodeTaints {
    /// The taints without those of this key. `None` if no taint has it.
    pub fn without(&self, key: &str) -> Option<Self> {
        let all = self.spec.taints.as_deref().unwrap_or_default();
        let rest: Vec<Taint> = all.iter().filter(|taint| taint.key != key).cloned().collect();
        let spec = Spec { taints: Some(rest) };
        (spec.taints.as_ref().map(Vec::len) != Some(all.len())).then(|| Self { metadata: self.metadata.clone(), spec })
    }

    /// The patch that gives a node of this version these taints.
    pub(super) fn merge_patch(&self) -> Vec<u8> {
        let metadata = json!({"resourceVersion": self.metadata.resource_version});
        json!({"metadata": metadata, "spec": {"taints": self.spec.taints}}).to_string().into_bytes()
    }
}
