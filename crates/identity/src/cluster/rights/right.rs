//! [`Right`]: a verb for a kind of object, as in RBAC; and the rights that matter here.

use std::fmt;

use serde_json::{Value, json};

/// A verb for all objects of a kind in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    pub verb: &'static str,
    /// The kind, as RBAC names it: `serviceaccounts/token`.
    pub resource: &'static str,
    /// The API group. The core group has no name.
    pub group: &'static str,
}

/// The API group of nodes as users to impersonate.
const AUTHENTICATION: &str = "authentication.k8s.io";

const fn core(verb: &'static str, resource: &'static str) -> Right {
    Right { verb, resource, group: "" }
}

/// Needed to act as the node that the account runs on, besides the rights for its requests.
pub(super) const ACT_AS_NODE: Right =
    Right { verb: "impersonate:associated-node", resource: "nodes", group: AUTHENTICATION };
/// Needed as the node, to follow its pods.
pub(super) const FOLLOW_AS_NODE: [Right; 2] =
    [core("impersonate-on:associated-node:list", PODS), core("impersonate-on:associated-node:watch", PODS)];
/// Needed as the node, to read accounts and request their tokens.
pub(super) const TOKENS_AS_NODE: [Right; 2] =
    [core("impersonate-on:associated-node:get", ACCOUNTS), core("impersonate-on:associated-node:create", TOKENS)];

/// The same for an account that acts as itself.
pub(super) const FOLLOW: [Right; 2] = [core("list", PODS), core("watch", PODS)];
pub(super) const GET_ACCOUNTS: Right = core("get", ACCOUNTS);
/// Gives tokens of all accounts, unless something limits it.
pub(super) const CREATE_TOKENS: Right = core("create", TOKENS);

/// Never needed: to act as other nodes, which takes both rights.
pub(super) const ACT_AS_ANY_NODE: [Right; 2] = [
    Right { verb: "impersonate:arbitrary-node", resource: "nodes", group: AUTHENTICATION },
    core("impersonate-on:arbitrary-node:create", TOKENS),
];
/// Never needed: to act as other users.
pub(super) const ACT_AS_USERS: Right = core("impersonate", "users");
/// Never needed: to act as other service accounts.
pub(super) const ACT_AS_ACCOUNTS: Right = core("impersonate", ACCOUNTS);
/// Never needed: to read Secrets, some of which hold tokens.
pub(super) const GET_SECRETS: Right = core("get", "secrets");

/// Changes to all nodes. The container `redirect` needs it for the startup taint, and an admission policy must bound it.
pub(super) const PATCH_NODES: Right = core("patch", "nodes");

const PODS: &str = "pods";
const ACCOUNTS: &str = "serviceaccounts";
const TOKENS: &str = "serviceaccounts/token";

impl Right {
    /// The review that asks the API server whether the user has the right for all objects, in all namespaces.
    pub(super) fn review(self) -> Value {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let attributes = json!({
            "verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource,
            // The name that the API server itself checks for nodes that are impersonated.
            "name": if self.group == AUTHENTICATION { "*" } else { "" },
        });
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        })
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} in the API group {:?}", self.verb, self.resource, self.group)
    }
}
