//! The flag `--startup-taint` of `redirect install --keep`.

use clap::Args;

use super::admin::AdminArgs;
use super::flag::Flag;
use super::given::{Given, Mistakes, syntax};
use super::identity::NodeArgs;
use identity::cluster::Acting;
use operator::startup_taint::{StartupTaint, TaintKey};

#[derive(Debug, Args)]
pub(super) struct StartupTaintArgs {
    /// Key of a taint to remove from this node once the rules are installed and the proxy at --metrics-addr is ready, so that
    /// no pod starts on a new node before. Requires --keep and --node-name, and an account that may get and patch nodes
    #[arg(long, value_name = "KEY", env = "METADATA_PROXY_STARTUP_TAINT")]
    startup_taint: Option<Given<TaintKey>>,

    #[command(flatten)]
    node: NodeArgs,

    #[command(flatten)]
    admin: AdminArgs,
}

impl StartupTaintArgs {
    /// `None` if there is no taint to remove, or if there are mistakes.
    pub(super) fn resolve(self, keeps_rules: bool, mistakes: &mut Mistakes) -> Option<StartupTaint> {
        let Some(key) = mistakes.optional(self.startup_taint) else {
            // Its pod may have NODE_NAME, and variables of the proxy beside it.
            mistakes.without("--kubeconfig", "--startup-taint", self.node.is_kubeconfig_typed());
            mistakes.without(
                "--metrics-addr",
                "--startup-taint; --keeper-metrics-addr is for the metrics of `redirect install --keep`",
                self.admin.is_typed(),
            );
            return None;
        };
        if !keeps_rules {
            mistakes.add("--startup-taint requires `redirect install --keep`, which waits until the proxy is ready");
        }
        let admin = self.admin.resolve(mistakes);
        if self.node.is_nameless() {
            mistakes.add("--startup-taint requires --node-name (or NODE_NAME), the name of this node");
        }
        // A node may not change its own taints, so the account does not act as its node.
        let cluster = self.node.resolve(Some(Acting::AsItself), mistakes);
        Some(StartupTaint { key, cluster: cluster?, admin: admin? })
    }
}

syntax! {
    TaintKey => Self, TaintKey::parse,
        "the key of a taint, such as example.com/not-ready, that is not one of Kubernetes' own";
}

#[cfg(test)]
mod tests {
    use crate::cli::Command;
    use crate::cli::tests::{mistakes, parse_line};
    use identity::cluster::Credential;

    #[test]
    fn a_taint_is_removed_from_this_node() {
        let line =
            "redirect install --keep --startup-taint=a.b/c --node-name=n --kubeconfig=/k --metrics-addr=127.0.0.1:1989";
        let Ok(Command::Redirect { startup_taint: Some(taint), .. }) = parse_line(line) else { panic!("no taint") };
        assert_eq!((taint.key.as_str(), taint.cluster.node.as_str()), ("a.b/c", "n"));
        assert_eq!(taint.cluster.credential, Credential::Kubeconfig("/k".into()));
        assert_eq!(taint.admin, ([127, 0, 0, 1], 1989).into());
        let Ok(Command::Redirect { startup_taint, .. }) = parse_line("redirect install --keep --startup-taint=") else {
            panic!("an empty variable counts as not set")
        };
        assert_eq!(startup_taint, None);
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        for (flags, expected) in [
            ("--keep --startup-taint=a/b", "--startup-taint requires --node-name (or NODE_NAME)"),
            ("--keep --node-name=n --startup-taint=a=b:NoSchedule", "expected the key of a taint"),
            ("--keep --node-name=n --startup-taint=node.kubernetes.io/not-ready", "not one of Kubernetes' own"),
            ("--node-name=n --startup-taint=a/b", "--startup-taint requires `redirect install --keep`"),
        ] {
            let said = mistakes(&format!("redirect install {flags}"));
            assert!(said.contains(expected), "{flags}: {said}");
        }
    }

    #[test]
    fn the_address_of_a_proxy_that_nobody_waits_for_has_no_effect() {
        for flags in ["", "--metrics-addr=127.0.0.1:989", "--keep --keeper-metrics-addr=:1990"] {
            assert!(parse_line(&format!("redirect install {flags}")).is_ok(), "{flags}");
        }
        for flags in ["--keep --metrics-addr=:1990", "--metrics-addr=nowhere"] {
            let said = mistakes(&format!("redirect install {flags}"));
            let expected = "--metrics-addr has no effect without --startup-taint";
            assert!(said.contains(expected) && said.contains("--keeper-metrics-addr"), "{flags}: {said}");
        }
    }
}
