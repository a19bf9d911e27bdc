//! What to do when the API server refuses something, in words that follow its own.

use http::StatusCode;

use super::Credential;

/// What to do about a status.
pub(super) type Hint = fn(StatusCode) -> &'static str;

/// What is asked of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    Pods,
    Accounts,
    Tokens,
    Node,
}

/// What to do about a refusal because of the audience of a token.
pub(super) const AUDIENCE: &str = ". The group system:nodes needs a ClusterRole with the verb \
    request-serviceaccounts-token-audience for a resource (of the API group \"\") that is named as the audience";

/// What to do when this credential is refused.
pub(super) fn hint(credential: &Credential, resource: Resource) -> Hint {
    match credential {
        Credential::Kubeconfig(_) => match resource {
            Resource::Pods => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_KUBECONFIG,
                StatusCode::FORBIDDEN => {
                    ". The kubeconfig must be this node's own (system:node:NODE in the group system:nodes), \
                     or of an account that may list and watch pods"
                }
                _ => "",
            },
            Resource::Accounts => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_KUBECONFIG,
                StatusCode::FORBIDDEN => {
                    ". The kubeconfig must be this node's own (system:node:NODE in the group system:nodes), \
                     or of an account that may get serviceaccounts"
                }
                _ => "",
            },
            Resource::Tokens => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_KUBECONFIG,
                StatusCode::FORBIDDEN => {
                    ". The kubeconfig must be this node's own (system:node:NODE in the group system:nodes), \
                     or of an account that may create serviceaccounts/token"
                }
                _ => "",
            },
            Resource::Node => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_KUBECONFIG,
                StatusCode::FORBIDDEN => {
                    ". The kubeconfig must be of an account that may get and patch nodes; a node may not change its own taints"
                }
                _ => "",
            },
        },
        Credential::OwnAccount => match resource {
            Resource::Pods => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
                StatusCode::FORBIDDEN => {
                    ". The proxy's account needs a ClusterRole with the verb impersonate:associated-node for \
                     nodes in authentication.k8s.io, and with impersonate-on:associated-node:list and \
                     impersonate-on:associated-node:watch for pods; the API server needs Kubernetes 1.36, \
                     or 1.35 with the feature gate ConstrainedImpersonation; and --node-name must be the node \
                     of this pod"
                }
                _ => "",
            },
            Resource::Accounts => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
                StatusCode::FORBIDDEN => {
                    ". The proxy's account needs a ClusterRole with the verb impersonate-on:associated-node:get for \
                     serviceaccounts"
                }
                _ => "",
            },
            Resource::Tokens => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
                StatusCode::FORBIDDEN => {
                    ". The proxy's account needs a ClusterRole with the verb impersonate-on:associated-node:create \
                     for serviceaccounts/token"
                }
                _ => "",
            },
            Resource::Node => |status| match status {
                StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
                StatusCode::FORBIDDEN => {
                    ". The account needs a ClusterRole with the verbs get and patch for nodes: \
                     deploy/components/startup-taint has it"
                }
                _ => "",
            },
        },
    }
}

const INVALID_KUBECONFIG: &str = ". The kubeconfig's certificate or token is not valid, or has expired";

const INVALID_ACCOUNT: &str = ". The proxy's service account was deleted, or its token has expired";
