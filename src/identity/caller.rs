//! [`Caller`]: an identified client.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::metrics::Identified;
use crate::metadata::{CallingPod, Principal};
use crate::pods::PodUid;
use crate::pods::owners::{Owner, Witness};
use crate::telemetry::labels::Label;
use crate::workloads::Account;

/// An identified client.
#[derive(Debug)]
pub struct Caller {
    pub(super) role: Role,
    /// `None` for the node.
    pub(super) pod: Option<(PodUid, Arc<CallingPod>)>,
    /// Whether its pod has ended, or lost the address.
    pub(super) is_gone: AtomicBool,
}

/// As whom a client acts.
#[derive(Debug)]
pub(super) enum Role {
    Node,
    Account(Arc<Account>),
}

impl Caller {
    /// As whom it acts now: an account's number changes with its annotations.
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
        let evidence = witness(owner.by).label();
        self.pod.as_ref().is_some_and(|(uid, pod)| *uid == owner.pod.uid && pod.evidence == evidence)
    }

    pub(super) fn witness(&self) -> Identified {
        match &self.pod {
            None => Identified::Node,
            Some((_, pod)) if pod.evidence == Identified::Api.label() => Identified::Api,
            Some(_) => Identified::Kernel,
        }
    }
}

pub(super) fn witness(witness: Witness) -> Identified {
    match witness {
        Witness::Kernel => Identified::Kernel,
        Witness::Api => Identified::Api,
    }
}
