//! [`Finding`]: a problem with the proxy's credential, explained to the operator.

use std::fmt;

use super::right::Right;

/// A fact about the proxy's credential that the operator should know. Its text says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The credential has more rights than it should.
    Danger(Danger),
    /// The credential lacks something that the proxy needs.
    Lack {
        /// The user of the credential.
        user: String,
        /// The missing right or condition.
        lack: Lack,
    },
    /// It may get tokens of all pods of the cluster, and nothing else, because an admission policy refuses the rest.
    LastResort,
    /// It is not known whether the API server confines nodes, because this node has no pod to try it with.
    Untried,
}

/// Severity of a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Not known yet.
    Unknown,
    /// For information.
    Notice,
    /// Pods do not get what they should.
    Missing,
    /// An attacker on the node would get more than the node's own rights.
    Dangerous,
}

/// Actions open to an attacker on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Danger {
    /// Get tokens of every service account.
    AllTokens {
        /// Also for the API server itself.
        for_the_api_server: bool,
        /// Also tokens bound to no pod.
        bound_to_no_pod: bool,
        /// Also for longer than an hour.
        for_hours: bool,
    },
    /// Act as any node.
    ActsAsAnyNode,
    /// Act as any user or service account.
    ActsAsOthers,
    /// Read every Secret.
    AllSecrets,
    /// Get tokens that are bound to no pod, in the node's name.
    NodesAreNotConfined,
    /// Change every node.
    ChangesNodes,
}

/// A right or condition that the proxy needs and that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// A right of its user.
    Right {
        right: Right,
        /// The component that grants it.
        way: &'static str,
    },
    /// The right of nodes to request tokens for the audience.
    Audience {
        /// The API server's message.
        message: String,
        /// The component that grants it.
        way: &'static str,
    },
    /// An API server on which an account can act as its own node.
    Impersonation {
        /// The API server's message.
        message: String,
    },
    /// A token that names the node.
    NoNode,
    /// The credential belongs to another node.
    OtherNode {
        /// The node that the credential names.
        theirs: String,
        /// The node that the proxy is configured to be on.
        ours: String,
    },
    /// The admission policy refuses the proxy's requests.
    RefusedByPolicy {
        /// The API server's message.
        message: String,
    },
    /// Something else refuses tokens.
    Refused {
        /// The API server's message.
        message: String,
    },
}

impl Finding {
    pub fn severity(&self) -> Severity {
        match self {
            Self::Danger(_) => Severity::Dangerous,
            Self::Lack { .. } => Severity::Missing,
            Self::LastResort => Severity::Notice,
            Self::Untried => Severity::Unknown,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Danger(danger) => write!(f, "whoever takes over this node can {danger}"),
            Self::Lack { user, lack } => lack.write(user, f),
            Self::Untried => f.write_str(
                "this node has no pod yet in whose name a token could be asked for, so it is not known whether the API \
                 server confines nodes to their own pods",
            ),
            Self::LastResort => f.write_str(
                "an admission policy fences the proxy's account, which is the last resort: whoever takes over this node can \
                 get tokens of every service account of the cluster that has a pod, for the audience that the policy \
                 allows. Use deploy/components/identity-own-node (Kubernetes 1.36) or identity-kubelet once you can",
            ),
        }
    }
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllTokens { for_the_api_server, bound_to_no_pod, for_hours } => {
                f.write_str("get tokens of every service account of the cluster")?;
                let kinds = [
                    (*for_the_api_server, "for the API server itself (control of the whole cluster)"),
                    (*bound_to_no_pod, "bound to no pod (valid after pods end)"),
                    (*for_hours, "for more than an hour"),
                ];
                for (_, kind) in kinds.iter().filter(|(is_so, _)| *is_so) {
                    write!(f, ", also {kind}")?;
                }
                f.write_str(
                    ": the proxy's account has the right to create serviceaccounts/token, and no admission policy refuses \
                     that. Delete that right and use deploy/components/identity-own-node (Kubernetes 1.36) or \
                     identity-kubelet; or apply deploy/components/identity-fenced/admission.yaml",
                )
            }
            Self::ActsAsAnyNode => f.write_str(
                "act as any node of the cluster: the proxy's user has the verb impersonate:arbitrary-node. Delete that \
                 right; deploy/components/identity-own-node has impersonate:associated-node in its place",
            ),
            Self::ActsAsOthers => f.write_str(
                "act as other users or service accounts: the proxy's user has the verb impersonate. Delete that right; \
                 deploy/components/identity-own-node has impersonate:associated-node in its place",
            ),
            Self::AllSecrets => f.write_str(
                "read every Secret of the cluster: the proxy's user has the verb get for secrets. Delete that right; the \
                 proxy does not need it",
            ),
            Self::NodesAreNotConfined => f.write_str(
                "get tokens that are bound to no pod: the API server does not confine nodes. Start it with \
                 --enable-admission-plugins=NodeRestriction and --authorization-mode=Node,RBAC",
            ),
            Self::ChangesNodes => f.write_str(
                "change the labels and taints of every node, and so draw pods to a node: the proxy's account has the verb \
                 patch for nodes, and no admission policy refuses that. Apply \
                 deploy/components/startup-taint/admission.yaml, or delete that right if you have no startup taint",
            ),
        }
    }
}

impl Lack {
    fn write(&self, user: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right { right, way } => write!(
                f,
                "{user} lacks the verb {right}: {}. Apply your overlay or the chart again: deploy/components/{way} gives it to \
                 the proxy's account",
                right.without()
            ),
            Self::Audience { message, way } => write!(
                f,
                "the group system:nodes lacks the verb request-serviceaccounts-token-audience for a resource (in the API \
                 group \"\") that is named as the audience: pods get no tokens. Put the audience into your \
                 overlay's identity.yaml or the chart's values, and apply it again: deploy/components/{way} has the right. \
                 The API server said: {message}"
            ),
            Self::Impersonation { message } => write!(
                f,
                "{user} has the right to act as its node, but the API server does not know such rights: it must be \
                 Kubernetes 1.36, or 1.35 with the feature gate ConstrainedImpersonation. Use \
                 deploy/components/identity-kubelet. The API server said: {message}"
            ),
            Self::NoNode => write!(
                f,
                "the token of {user} names no node, so it cannot act as one: it must be the token that Kubernetes mounts \
                 into a pod, as deploy/components/identity-account does, not one of a Secret"
            ),
            Self::OtherNode { theirs, ours } => write!(
                f,
                "the credential of {user} is of the node {theirs}, but --node-name is {ours}: new pods get 503. Set \
                 NODE_NAME from spec.nodeName"
            ),
            Self::RefusedByPolicy { message } => write!(
                f,
                "an admission policy refuses what the proxy asks for, so pods get no tokens: {message}. The audience in \
                 deploy/components/identity-fenced/admission.yaml must be that of the proxy (--workload-pool, \
                 --workload-identity-provider or --token-audience)"
            ),
            Self::Refused { message } => {
                write!(f, "the API server refuses tokens to {user}, so pods get none: {message}")
            }
        }
    }
}

impl Right {
    /// The consequence of lacking it.
    fn without(self) -> &'static str {
        if self.resource.starts_with("serviceaccounts") { "pods get no tokens" } else { "new pods get 503" }
    }
}
