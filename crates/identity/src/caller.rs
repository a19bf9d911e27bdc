//! [`Caller`]: an identified client.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::metrics::Identified;
use crate::pods::PodUid;
use crate::pods::owners::{Owner, Witness};
use crate::workloads::Account;
use protocol::metadata::{CallingPod, Principal};

/// An identified client.
#[derive(Debug)]
pub struct Caller {
    pub(super) role: Role,
    /// `None` for the node.
    pub(super) pod: Option<KnownPod>,
    /// Whether its pod has ended, or lost the address.
    pub(super) is_gone: AtomicBool,
}

/// The pod of a client.
#[derive(Debug)]
pub(super) struct KnownPod {
    pub(super) uid: PodUid,
    /// The source of the decision.
    pub(super) by: Witness,
    pub(super) calling: Arc<CallingPod>,
}

/// The identity with which a client acts.
#[derive(Debug)]
pub(super) enum Role {
    Node,
    Account(Arc<Account>),
}

impl Caller {
    pub(super) fn new(role: Role, pod: Option<KnownPod>) -> Self {
        Self { role, pod, is_gone: false.into() }
    }

    /// Its current principal: an account's number changes with its annotations.
    pub(super) fn principal(&self) -> Principal {
        match &self.role {
            Role::Node => Principal::Node,
            Role::Account(account) => account.principal(),
        }
    }

    pub(super) fn is_node(&self) -> bool {
        matches!(self.role, Role::Node)
    }

    pub(super) fn is(&self, owner: &Owner) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.uid == owner.pod.uid && pod.by == owner.by)
    }

    pub(super) fn witness(&self) -> Identified {
        self.pod.as_ref().map_or(Identified::Node, |pod| witness(pod.by))
    }
}

pub(super) fn witness(witness: Witness) -> Identified {
    match witness {
        Witness::Kernel => Identified::Kernel,
        Witness::Api => Identified::Api,
    }
}
