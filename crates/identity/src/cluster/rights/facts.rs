//! [`Facts`]: what the API server said about a credential.

use super::right::Right;
use crate::cluster::{NodeName, User};

/// What the API server said about a credential.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The node that the proxy is configured to be on.
    pub(super) node: NodeName,
    /// Whether pods have tokens of their own.
    pub(super) has_tokens: bool,
    /// Whose credential it is.
    pub(super) user: User,
    /// As whom the API server is asked.
    pub(super) way: Way,
    /// What the user may do, of what was asked.
    pub(super) allowed: Vec<Right>,
    /// What became of requests for tokens.
    pub(super) attempts: Vec<(Attempt, Outcome)>,
    /// What became of a change to its node as itself, of which nothing was kept. `None` if it was not tried.
    pub(super) change: Option<Outcome>,
}

/// As whom the API server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As the node that the account runs on.
    OwnNode,
    /// As the node whose credential it is: the kubelet's.
    Kubelet,
    /// As the account itself.
    Itself,
}

/// A request for a token that never gives one: where nothing refuses it earlier, it fails for a reason that the API server
/// finds last. So nothing is minted to find out what could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// As a node: as the proxy asks, but for a second, which is too short.
    AsNode,
    /// As a node: bound to no pod, for a second.
    UnboundAsNode,
    /// As itself: as the proxy asks, but for a pod with another UID.
    AsAsked,
    /// The same for the API server's own audience.
    ForTheApiServer,
    /// The same for ten hours.
    ForHours,
    /// Bound to a Secret that does not exist: to no pod.
    BoundToNoPod,
}

/// What became of an [`Attempt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing refused it, until it failed as it had to.
    Passed,
    /// Refused, in these words of the API server.
    Refused(String),
}

impl Facts {
    /// Whether the user has this right.
    pub(super) fn may(&self, right: Right) -> bool {
        self.allowed.contains(&right)
    }

    /// What became of an attempt. `None` if it was not made.
    pub(super) fn outcome(&self, attempt: Attempt) -> Option<&Outcome> {
        self.attempts.iter().find(|(made, _)| *made == attempt).map(|(_, outcome)| outcome)
    }

    /// Whether nothing refused an attempt that was made.
    pub(super) fn passed(&self, attempt: Attempt) -> bool {
        self.outcome(attempt) == Some(&Outcome::Passed)
    }
}
