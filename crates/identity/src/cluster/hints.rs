//! Advice for operators when the API server refuses a request, appended to its message.

use http::StatusCode;

use super::{Acting, Credential};

/// Returns the advice for a status.
pub(super) type Hint = fn(StatusCode) -> &'static str;

/// The object of a request to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    Pods,
    Accounts,
    Tokens,
    /// Reviews of the credential's rights. The caller gives the advice.
    Rights,
    NodeTaints,
    NodeFacts,
}

/// Advice for a refusal because of the audience of a token.
pub(super) const AUDIENCE: &str = ". The group system:nodes needs a ClusterRole with the verb \
    request-serviceaccounts-token-audience for a resource (of the API group \"\") that is named as the audience";

/// Advice when this credential is refused.
pub(super) fn hint(credential: &Credential, resource: Resource) -> Hint {
    match credential {
        Credential::Kubeconfig(_) => of_kubeconfig(resource),
        Credential::OwnAccount(Acting::AsItsNode) => of_node(resource),
        Credential::OwnAccount(Acting::AsItself) => of_account(resource),
    }
}

fn of_kubeconfig(resource: Resource) -> Hint {
    match resource {
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
        Resource::NodeTaints => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_KUBECONFIG,
            StatusCode::FORBIDDEN => {
                ". The kubeconfig must be of an account that may get and patch nodes; a node may not change its own taints"
            }
            _ => "",
        },
        Resource::NodeFacts => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_KUBECONFIG,
            StatusCode::FORBIDDEN => {
                ". The kubeconfig must be this node's own (system:node:NODE in the group system:nodes), \
                 or of an account that may get nodes"
            }
            _ => "",
        },
        Resource::Rights => |status| if status == StatusCode::UNAUTHORIZED { INVALID_KUBECONFIG } else { "" },
    }
}

fn of_node(resource: Resource) -> Hint {
    match resource {
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
        Resource::NodeFacts => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
            StatusCode::FORBIDDEN => {
                ". The proxy's account needs a ClusterRole with the verb impersonate-on:associated-node:get for nodes"
            }
            _ => "",
        },
        // Taints are not requested as a node: a node may not change its own.
        Resource::NodeTaints | Resource::Rights => invalid_account,
    }
}

fn of_account(resource: Resource) -> Hint {
    match resource {
        Resource::Pods => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
            StatusCode::FORBIDDEN => {
                ". With --impersonate-node=false, the proxy's account must be able to list and watch pods"
            }
            _ => "",
        },
        Resource::Accounts => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
            StatusCode::FORBIDDEN => {
                ". With --impersonate-node=false, the proxy's account must be able to get serviceaccounts"
            }
            _ => "",
        },
        Resource::Tokens => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
            StatusCode::FORBIDDEN => {
                ". With --impersonate-node=false, the proxy's account must be able to create serviceaccounts/token"
            }
            StatusCode::UNPROCESSABLE_ENTITY => {
                ". The audience in deploy/components/identity-fenced/admission.yaml must be the proxy's"
            }
            _ => "",
        },
        Resource::NodeFacts => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
            StatusCode::FORBIDDEN => ". With --impersonate-node=false, the proxy's account must be able to get nodes",
            _ => "",
        },
        Resource::NodeTaints => |status| match status {
            StatusCode::UNAUTHORIZED => INVALID_ACCOUNT,
            StatusCode::FORBIDDEN => {
                ". The account must be able to get and patch nodes: deploy/components/startup-taint has the ClusterRole"
            }
            _ => "",
        },
        Resource::Rights => invalid_account,
    }
}

fn invalid_account(status: StatusCode) -> &'static str {
    if status == StatusCode::UNAUTHORIZED { INVALID_ACCOUNT } else { "" }
}

const INVALID_KUBECONFIG: &str = ". The kubeconfig's certificate or token is not valid, or has expired";

const INVALID_ACCOUNT: &str = ". The proxy's service account was deleted, or its token has expired";
