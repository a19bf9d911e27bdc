//! Advice for operators when the API server refuses a request, appended to its message.

use http::StatusCode;

use super::{Acting, Credential};

/// The advice for each status. Empty if there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hint {
    unauthorized: &'static str,
    forbidden: &'static str,
    unprocessable: &'static str,
}

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

const INVALID_KUBECONFIG: &str = ". The kubeconfig's certificate or token is not valid, or has expired";

const INVALID_ACCOUNT: &str = ". The proxy's service account was deleted, or its token has expired";

impl Hint {
    /// Advice when this credential is refused for a resource.
    pub(super) fn new(credential: &Credential, resource: Resource) -> Self {
        let (unauthorized, forbidden, unprocessable) = match credential {
            Credential::Kubeconfig(_) => (INVALID_KUBECONFIG, of_kubeconfig(resource), ""),
            Credential::OwnAccount(Acting::AsItsNode) => (INVALID_ACCOUNT, of_node(resource), ""),
            Credential::OwnAccount(Acting::AsItself) => {
                let unprocessable = match resource {
                    Resource::Tokens => {
                        ". The audience in deploy/components/identity-fenced/admission.yaml must be the proxy's"
                    }
                    _ => "",
                };
                (INVALID_ACCOUNT, of_account(resource), unprocessable)
            }
        };
        Self { unauthorized, forbidden, unprocessable }
    }

    pub(super) fn of(self, status: StatusCode) -> &'static str {
        match status {
            StatusCode::UNAUTHORIZED => self.unauthorized,
            StatusCode::FORBIDDEN => self.forbidden,
            StatusCode::UNPROCESSABLE_ENTITY => self.unprocessable,
            _ => "",
        }
    }
}

/// The right that nodes have, or an account needs.
macro_rules! own_or {
    ($right:literal) => {
        concat!(
            ". The kubeconfig must be this node's own (system:node:NODE in the group system:nodes), or of an account that may ",
            $right
        )
    };
}

fn of_kubeconfig(resource: Resource) -> &'static str {
    match resource {
        Resource::Pods => own_or!("list and watch pods"),
        Resource::Accounts => own_or!(
            "get serviceaccounts. Before Kubernetes 1.34 a node may not, unless \
             deploy/components/identity-kubelet/before-1.34.yaml is applied"
        ),
        Resource::Tokens => own_or!("create serviceaccounts/token"),
        Resource::NodeFacts => own_or!("get nodes"),
        Resource::NodeTaints => {
            ". The kubeconfig must be of an account that may get and patch nodes; a node may not change its own taints"
        }
        Resource::Rights => "",
    }
}

fn of_node(resource: Resource) -> &'static str {
    match resource {
        Resource::Pods => {
            ". The proxy's account needs a ClusterRole with the verb impersonate:associated-node for \
             nodes in authentication.k8s.io, and with impersonate-on:associated-node:list and \
             impersonate-on:associated-node:watch for pods; the API server needs Kubernetes 1.36, \
             or 1.35 with the feature gate ConstrainedImpersonation; and --node-name must be the node \
             of this pod"
        }
        Resource::Accounts => {
            ". The proxy's account needs a ClusterRole with the verb impersonate-on:associated-node:get for \
             serviceaccounts"
        }
        Resource::Tokens => {
            ". The proxy's account needs a ClusterRole with the verb impersonate-on:associated-node:create \
             for serviceaccounts/token"
        }
        Resource::NodeFacts => {
            ". The proxy's account needs a ClusterRole with the verb impersonate-on:associated-node:get for nodes"
        }
        // Taints are not requested as a node: a node may not change its own.
        Resource::NodeTaints | Resource::Rights => "",
    }
}

fn of_account(resource: Resource) -> &'static str {
    match resource {
        Resource::Pods => ". With --impersonate-node=false, the proxy's account must be able to list and watch pods",
        Resource::Accounts => {
            ". With --impersonate-node=false, the proxy's account must be able to get serviceaccounts"
        }
        Resource::Tokens => {
            ". With --impersonate-node=false, the proxy's account must be able to create serviceaccounts/token"
        }
        Resource::NodeFacts => ". With --impersonate-node=false, the proxy's account must be able to get nodes",
        Resource::NodeTaints => {
            ". The account must be able to get and patch nodes: deploy/components/startup-taint has the ClusterRole"
        }
        Resource::Rights => "",
    }
}
