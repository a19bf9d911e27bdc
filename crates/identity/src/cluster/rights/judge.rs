//! [`judge`]: derives findings from the facts about a credential. It sends no requests.

use super::facts::{Attempt, Facts, Outcome, Way};
use super::finding::{Danger, Finding, Lack};
use super::right::{
    ACT_AS_ACCOUNTS, ACT_AS_ANY_NODE, ACT_AS_NODE, ACT_AS_USERS, CREATE_TOKENS, FOLLOW, FOLLOW_AS_NODE, GET_ACCOUNTS,
    GET_SECRETS, PATCH_NODES, Right, TOKENS_AS_NODE,
};
use crate::cluster::Acting;

/// The rights of a user to review: those that the proxy needs, and those that are too many.
pub(super) fn questions(way: Way, has_tokens: bool) -> Vec<Right> {
    let mut rights = needs(way, has_tokens);
    let excess =
        [&[CREATE_TOKENS, ACT_AS_USERS, ACT_AS_ACCOUNTS, GET_SECRETS, PATCH_NODES][..], &ACT_AS_ANY_NODE].concat();
    rights.extend(excess.into_iter().filter(|right| !rights.contains(right)).collect::<Vec<_>>());
    rights
}

/// The rights that the proxy's own account needs, including those for tokens of pods.
pub(super) fn needed(acting: Acting) -> Vec<Right> {
    match acting {
        Acting::AsItsNode => needs(Way::OwnNode, true),
        Acting::AsItself => needs(Way::Itself, true),
    }
}

/// The rights that the proxy needs.
fn needs(way: Way, has_tokens: bool) -> Vec<Right> {
    let (follow, tokens) = match way {
        Way::OwnNode => ([&[ACT_AS_NODE][..], &FOLLOW_AS_NODE].concat(), TOKENS_AS_NODE),
        Way::Itself => (FOLLOW.to_vec(), [GET_ACCOUNTS, CREATE_TOKENS]),
        // The Node authorizer gives a node its rights, pod by pod. They cannot be reviewed.
        Way::Kubelet => return Vec::new(),
    };
    if has_tokens { [follow, tokens.to_vec()].concat() } else { follow }
}

/// The findings about a credential, the worst first. Empty if it is confined to its node and lacks nothing.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = dangers(facts).into_iter().map(Finding::Danger).collect();
    findings.extend(lacks(facts).into_iter().map(|lack| Finding::Lack { user: facts.user.name.clone(), lack }));
    if facts.may(CREATE_TOKENS) && !facts.user.is_node() && is_fenced(facts) {
        findings.push(Finding::LastResort);
    }
    if findings.is_empty() && facts.way != Way::Itself && facts.outcome(Attempt::UnboundAsNode).is_none() {
        findings.push(Finding::Untried);
    }
    findings
}

fn dangers(facts: &Facts) -> Vec<Danger> {
    let mut dangers = Vec::new();
    if facts.passed(Attempt::UnboundAsNode) {
        dangers.push(Danger::NodesAreNotConfined);
    }
    // The other rights of a node are confined by NodeRestriction, which was tested.
    if facts.may(CREATE_TOKENS) && !facts.user.is_node() && !is_fenced(facts) {
        dangers.push(Danger::AllTokens {
            for_the_api_server: !is_refused(facts, Attempt::ForTheApiServer),
            bound_to_no_pod: !is_refused(facts, Attempt::BoundToNoPod),
            for_hours: !is_refused(facts, Attempt::ForHours),
        });
    }
    if ACT_AS_ANY_NODE.into_iter().all(|right| facts.may(right)) {
        dangers.push(Danger::ActsAsAnyNode);
    }
    if facts.may(ACT_AS_USERS) || facts.may(ACT_AS_ACCOUNTS) {
        dangers.push(Danger::ActsAsOthers);
    }
    if facts.may(GET_SECRETS) {
        dangers.push(Danger::AllSecrets);
    }
    if facts.change == Some(Outcome::Passed) {
        dangers.push(Danger::ChangesNodes);
    }
    dangers
}

/// Whether an admission policy refuses everything that the proxy does not need. An attempt that was not made counts as
/// not refused.
fn is_fenced(facts: &Facts) -> bool {
    [Attempt::ForTheApiServer, Attempt::BoundToNoPod, Attempt::ForHours]
        .into_iter()
        .all(|attempt| is_refused(facts, attempt))
}

fn is_refused(facts: &Facts, attempt: Attempt) -> bool {
    matches!(facts.outcome(attempt), Some(Outcome::Refused(_)))
}

fn lacks(facts: &Facts) -> Vec<Lack> {
    if let Some(lack) = wrong_node(facts) {
        // All other findings follow from it.
        return vec![lack];
    }
    let needs = needs(facts.way, facts.has_tokens);
    let mut lacks: Vec<Lack> = needs
        .into_iter()
        .filter(|right| !facts.may(*right))
        .map(|right| Lack::Right { right, way: facts.way.manifest() })
        .collect();
    if lacks.is_empty() && facts.has_tokens {
        lacks.extend(refusal(facts));
    }
    lacks
}

/// The credential's node must be the one that the proxy is configured to be on.
fn wrong_node(facts: &Facts) -> Option<Lack> {
    match &facts.user.node {
        Some(node) if node == facts.node.as_str() => None,
        Some(node) => Some(Lack::OtherNode { theirs: node.clone(), ours: facts.node.to_string() }),
        None if facts.way == Way::OwnNode => Some(Lack::NoNode),
        None => None,
    }
}

/// The reason why tokens are refused although the user has all rights of its own.
fn refusal(facts: &Facts) -> Option<Lack> {
    let attempt = if facts.way == Way::Itself { Attempt::AsAsked } else { Attempt::AsNode };
    let Some(Outcome::Refused(message)) = facts.outcome(attempt) else { return None };
    let message = message.clone();
    Some(match facts.way {
        Way::Itself => Lack::RefusedByPolicy { message },
        _ if message.contains("audience") => Lack::Audience { message, way: facts.way.manifest() },
        // Servers without this feature require the right to impersonate any user.
        Way::OwnNode if message.contains("impersonate") => Lack::Impersonation { message },
        _ => Lack::Refused { message },
    })
}

impl Way {
    /// The component that grants its rights.
    fn manifest(self) -> &'static str {
        match self {
            Self::OwnNode => "identity-own-node",
            Self::Kubelet => "identity-kubelet",
            Self::Itself => "identity-fenced",
        }
    }
}

#[cfg(test)]
mod tests;
