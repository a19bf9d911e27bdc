//! [`read`]: converts the API server's object into a [`Pod`].

use super::{Pod, PodUid};
use crate::cluster::{NodeName, PodObject};

/// The pod that an object describes. `None` if it is not one of this node's, or has no UID or names: no client may be
/// identified as it.
pub fn read(object: &PodObject, node: &NodeName) -> Option<Pod> {
    let metadata = &object.metadata;
    let has_names = !metadata.namespace.is_empty() && !metadata.name.is_empty();
    // Only this node's pods were requested.
    let is_here = object.spec.node_name == node.as_str();
    let uid = PodUid::parse(&metadata.uid).filter(|_| has_names && is_here)?;
    Some(Pod {
        uid,
        namespace: metadata.namespace.as_str().into(),
        name: metadata.name.as_str().into(),
        account: object.spec.service_account_name.as_str().into(),
        host_network: object.spec.host_network,
        ended: object.has_ended(),
        terminating: object.is_terminating(),
        created: object.created(),
        addresses: object.addresses(),
    })
}
