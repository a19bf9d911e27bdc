//! [`NodeName`]: the name of this node.

use std::str::FromStr;
use std::sync::Arc;

use crate::text::{is_made_of, texts};

/// Maximum length of a name in Kubernetes.
const MAX_LENGTH: usize = 253;

/// The name of this node, as the API server knows it. A DNS subdomain, so that it needs no escaping anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeName(Arc<str>);

/// A name that no node can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the name of a node as `kubectl get nodes` prints it: lowercase letters, digits, `-` and `.`")]
pub struct NodeNameError;

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(name: &str) -> Result<Self, NodeNameError> {
        is_dns_subdomain(name).then(|| Self(name.into())).ok_or(NodeNameError)
    }
}

/// Whether Kubernetes accepts this name where it wants a DNS subdomain.
pub fn is_dns_subdomain(name: &str) -> bool {
    let is_label = |label: &str| is_made_of(label, b"-") && !label.starts_with('-') && !label.ends_with('-');
    name.len() <= MAX_LENGTH && name.split('.').all(is_label)
}

texts!(NodeName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_dns_subdomain() {
        for name in ["node-1", "gke-a-pool-1.europe-west3-a.c.project.internal", "10.0.0.1", &"a".repeat(253)] {
            assert_eq!(name.parse::<NodeName>().map(|name| name.to_string()), Ok(name.to_owned()));
        }
        for name in ["", "Node", "a..b", "-a", "a-", "a.-b", "a_b", "a,metadata.name=b", "a\r\nb", &"a".repeat(254)] {
            assert_eq!(name.parse::<NodeName>(), Err(NodeNameError), "{name:?}");
        }
    }
}
