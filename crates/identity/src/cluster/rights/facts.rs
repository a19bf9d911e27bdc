//! [`Facts`]: the API server's answers about a credential.

use super::right::Right;
use crate::cluster::{NodeName, User};

/// The API server's answers about a credential.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The node that the proxy is configured to be on.
    pub(super) node: NodeName,
    /// Whether pods have tokens of their own.
    pub(super) has_tokens: bool,
    /// The user of the credential.
    pub(super) user: User,
    /// The identity used for requests.
    pub(super) way: Way,
    /// The rights that the user has, of those reviewed.
    pub(super) allowed: Vec<Right>,
    /// Outcomes of requests for tokens.
    pub(super) attempts: Vec<(Attempt, Outcome)>,
    /// Outcome of a dry-run patch of its node without impersonation. `None` if not attempted, or if it showed nothing.
    pub(super) change: Option<Outcome>,
}

/// The identity used for API server requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As the node that the account runs on.
    OwnNode,
    /// As the node whose credential it is: the kubelet's.
    Kubelet,
    /// As the account itself.
    Itself,
}

/// A request for a token that never yields one: if nothing refuses it earlier, it fails a check that the API server
/// makes last. So no token is minted to find out what could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// As a node: like the proxy's own requests, but for a second, which is too short.
    AsNode,
    /// As a node: bound to no pod, for a second.
    UnboundAsNode,
    /// As itself: like the proxy's own requests, but for a pod with another UID.
    AsAsked,
    /// The same for the API server's own audience.
    ForTheApiServer,
    /// The same for ten hours.
    ForHours,
    /// Bound to a Secret that does not exist: to no pod.
    BoundToNoPod,
}

/// Outcome of an [`Attempt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing refused it before its intended failure.
    Passed,
    /// Refused, with this message of the API server.
    Refused(String),
}

impl Facts {
    /// Whether the user has this right.
    pub(super) fn may(&self, right: Right) -> bool {
        self.allowed.contains(&right)
    }

    /// Outcome of an attempt. `None` if it was not made, or if it showed nothing.
    pub(super) fn outcome(&self, attempt: Attempt) -> Option<&Outcome> {
        self.attempts.iter().find(|(made, _)| *made == attempt).map(|(_, outcome)| outcome)
    }

    /// Whether nothing refused an attempt that was made.
    pub(super) fn passed(&self, attempt: Attempt) -> bool {
        self.outcome(attempt) == Some(&Outcome::Passed)
    }
}
