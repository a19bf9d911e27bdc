//! The flags of Workload Identity.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::federation::{self, FederationArgs};
use super::flag::{Flag, unset};
use super::given::{Given, Mistakes, syntax};
use super::syntax::{ArgExt as _, Choice, Switch};
use identity::cluster::{self, Acting, Credential, NodeName};
use identity::pods::PodUid;
use identity::pods::owners::Attest;
use identity::{AccountName, Settings};

/// Mount point of the node's `/proc` in a container.
const HOST_PROC: &str = "/host/proc";

/// Which node this is, and how the API server is asked about it.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct NodeArgs {
    /// Name of this node, as `kubectl get nodes` prints it
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<Given<NodeName>>,

    /// Kubeconfig for the API server, such as the kubelet's own. Without it, the proxy uses its pod's service account
    #[arg(long, value_name = "FILE", env = "METADATA_PROXY_KUBECONFIG")]
    kubeconfig: Option<Given<String>>,
}

impl NodeArgs {
    /// This node and the credential. `None` without a node name, or if there are mistakes.
    pub(super) fn resolve(self, acting: Option<Acting>, mistakes: &mut Mistakes) -> Option<cluster::Settings> {
        let (node, kubeconfig) = (mistakes.optional(self.node_name), mistakes.optional(self.kubeconfig));
        let credential = match kubeconfig {
            Some(file) => Credential::Kubeconfig(file.into()),
            None => Credential::OwnAccount(acting?),
        };
        Some(cluster::Settings { node: node?, credential })
    }

    /// Whether a kubeconfig is given, also by its variable.
    pub(super) fn has_kubeconfig(&self) -> bool {
        self.kubeconfig.as_ref().is_some_and(Given::is_not_empty)
    }

    /// Whether a kubeconfig was typed.
    pub(super) fn is_kubeconfig_typed(&self) -> bool {
        self.kubeconfig.as_ref().is_some_and(Given::is_typed)
    }

    /// Whether the node's name is missing.
    pub(super) fn is_nameless(&self) -> bool {
        !self.node_name.as_ref().is_some_and(Given::is_not_empty)
    }
}

/// How pods are identified. Without `--workload-identity` the other flags are refused.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct IdentityArgs {
    /// Identify the pod that sends each request, from the node's processes and the API server. Requires --node-name
    #[arg(long, env = "METADATA_PROXY_WORKLOAD_IDENTITY", switch = false)]
    workload_identity: Switch,

    #[command(flatten)]
    #[serde(flatten)]
    node: NodeArgs,

    /// Let the pod's service account act as its node, so that the API server confines it to that node. Requires Kubernetes
    /// 1.36. `false` only if an admission policy bounds the account. Not with --kubeconfig
    #[arg(long, env = "METADATA_PROXY_IMPERSONATE_NODE", switch = true)]
    impersonate_node: Switch,

    /// Directory where the node's /proc is mounted. Read-only is enough
    #[arg(long, value_name = "DIR", env = "METADATA_PROXY_HOST_PROC", default_value = HOST_PROC)]
    host_proc: Given<String>,

    /// Directory that outlives the process, such as an emptyDir of its pod. The pods that are known are kept there, so that a
    /// restart while the API server is away knows them
    #[arg(long, value_name = "DIR", env = "METADATA_PROXY_STATE_DIR")]
    state_dir: Option<Given<String>>,

    /// UID of this pod, from the downward API. With it, a new version takes over the tokens of the one before it in a
    /// rolling update, if one controller manages both pods. Requires Linux 6.5 and --reuse-port
    #[arg(long, value_name = "POD_UID", env = "METADATA_PROXY_HANDOVER")]
    handover: Option<Given<PodUid>>,

    /// Evidence that identifies a pod. prefer: its processes, or the API server alone if they have no addresses of
    /// their own, as with gVisor. kernel: always its processes
    #[arg(long, env = "METADATA_PROXY_ATTEST", choice = Attest::default())]
    attest: Choice<Attest>,

    /// Service account whose pods act as the node, as all pods do without --workload-identity. May be repeated
    #[arg(long, value_name = "NAMESPACE/ACCOUNT", env = "METADATA_PROXY_PASSTHROUGH", value_delimiter = ',')]
    passthrough: Vec<Given<AccountName>>,

    #[command(flatten)]
    #[serde(flatten)]
    federation: FederationArgs,
}

impl Flag for IdentityArgs {
    /// `None` if Workload Identity is off.
    type Value = Option<Settings>;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<Option<Settings>> {
        let is_on = self.workload_identity.clone().resolve(mistakes);
        if is_on != Some(true) {
            self.node.resolve(None, mistakes);
            return is_on.map(|_| None);
        }
        if !self.federation.says_whose_tokens() {
            mistakes.add(format!(
                "--workload-identity requires {}, for Google tokens of pods' accounts; or \
                 --workload-identity-provider=none, if pods are to have no tokens",
                federation::EITHER
            ));
        }
        self.resolve_anyway("--workload-identity", mistakes).map(Some)
    }

    fn showing(settings: Option<Settings>) -> Self {
        let Some(Settings { cluster, host_proc, state_dir, attest, passthrough, federation, own_pod }) = settings
        else {
            return unset();
        };
        let (kubeconfig, acting) = match cluster.credential {
            Credential::Kubeconfig(file) => (Some(file), Acting::AsItsNode),
            Credential::OwnAccount(acting) => (None, acting),
        };
        let text = |path: PathBuf| path.display().to_string();
        Self {
            workload_identity: Flag::showing(true),
            node: NodeArgs {
                node_name: Flag::showing(Some(cluster.node)),
                kubeconfig: Flag::showing(kubeconfig.map(text)),
            },
            impersonate_node: Flag::showing(acting == Acting::AsItsNode),
            host_proc: Flag::showing(text(host_proc)),
            state_dir: Flag::showing(state_dir.map(text)),
            handover: Flag::showing(own_pod),
            attest: Flag::showing(attest),
            passthrough: Flag::showing(passthrough),
            federation: FederationArgs::showing(federation),
        }
    }
}

impl IdentityArgs {
    /// The settings, even if Workload Identity is off. `None` if there are mistakes. `what` is the flag or command that
    /// needs them.
    pub(super) fn resolve_anyway(self, what: &str, mistakes: &mut Mistakes) -> Option<Settings> {
        let attest = mistakes.value(self.attest);
        let passthrough = mistakes.list(self.passthrough);
        let impersonates = mistakes.optional(Some(self.impersonate_node)).unwrap_or(true);
        if !impersonates && self.node.has_kubeconfig() {
            mistakes.add("--impersonate-node=false has no effect with --kubeconfig, which has an account of its own");
        }
        let acting = if impersonates { Acting::AsItsNode } else { Acting::AsItself };
        let host_proc = mistakes.value(self.host_proc);
        let state_dir = mistakes.optional(self.state_dir).map(Into::into);
        let own_pod = mistakes.optional(self.handover);
        let federation = self.federation.resolve(mistakes);
        if self.node.is_nameless() {
            mistakes.add(format!("{what} requires --node-name (or NODE_NAME), the name of this node"));
        }
        let cluster = self.node.resolve(Some(acting), mistakes);
        Some(Settings {
            host_proc: host_proc?.into(),
            state_dir,
            attest: attest?,
            passthrough,
            federation,
            own_pod,
            cluster: cluster?,
        })
    }
}

syntax! {
    NodeName => Self, |text: &str| text.parse().ok(), "the name of a node as `kubectl get nodes` prints it";
    PodUid => Self, PodUid::parse, "the UID of this pod (downward API: metadata.uid)";
    // Also used for the name of another object in a namespace.
    AccountName => Self, AccountName::parse, "NAMESPACE/NAME, such as kube-system/fluentbit";
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::{mistakes, serve};
    use identity::cluster::{Acting, Credential};

    const ON: &str = "--workload-identity --workload-identity-provider=none --node-name=n";

    #[test]
    fn the_account_acts_as_its_node_unless_told_otherwise() {
        let credential = |flags: &str| {
            let identity = serve(&format!("{ON} {flags}")).identity;
            identity.expect("it is on").cluster.credential
        };
        for (flags, acting) in [
            ("", Acting::AsItsNode),
            ("--impersonate-node", Acting::AsItsNode),
            ("--impersonate-node=true", Acting::AsItsNode),
            ("--impersonate-node=false", Acting::AsItself),
        ] {
            assert_eq!(credential(flags), Credential::OwnAccount(acting), "{flags}");
        }
        assert_eq!(credential("--kubeconfig=/k --impersonate-node=true"), Credential::Kubeconfig("/k".into()));
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        for (line, expected) in [
            ("--workload-identity", "--workload-identity requires --node-name (or NODE_NAME)"),
            (
                "--workload-identity --node-name=n",
                "or --workload-identity-provider=none, if pods are to have no tokens",
            ),
            ("--node-name=Node_1", "--node-name: \"Node_1\" is not valid; expected the name of a node"),
            (&format!("{ON} --attest=api"), "--attest: \"api\" is not valid; expected prefer or kernel"),
            (&format!("{ON} --passthrough=a"), "--passthrough: \"a\" is not valid; expected NAMESPACE/NAME"),
            (&format!("{ON} --impersonate-node=no"), "--impersonate-node: \"no\" is not valid; expected true or false"),
            (
                &format!("{ON} --kubeconfig=/k --impersonate-node=false"),
                "--impersonate-node=false has no effect with --kubeconfig",
            ),
            (
                &format!("{ON} --handover=0b1c9f6e-2a55-4d8e-9b53-0d3e8f1c2a77"),
                "--handover has no effect without --reuse-port",
            ),
            (&format!("{ON} --passthrough=A/b"), "--passthrough: \"A/b\" is not valid; expected NAMESPACE/NAME"),
        ] {
            let said = mistakes(line);
            assert!(said.contains(expected), "{line}: {said}");
        }
    }
}
