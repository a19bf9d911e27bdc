//! `identity` and its subcommands.

use clap::{Args, Subcommand};

use super::Command;
use super::admin::AdminArgs;
use super::flag::Flag;
use super::given::{Given, Mistakes};
use super::identity::IdentityArgs;
use super::syntax::{ArgExt as _, Choice};
use identity::AccountName;
use operator::doctor::Whose;
use telemetry::logging::Format;

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "parsed once")]
pub(super) enum Subcommands {
    /// Find out why pods of this node get tokens of their own, or why not. Run it beside the proxy, with the flags and
    /// environment of the proxy; it changes nothing and prints no token. Exits with 0 if they do, 2 if not, 1 if the
    /// credential may do more than it needs
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Account whose token to try. It needs a pod on this node. By default that of any pod of this node
    #[arg(long, value_name = "NAMESPACE/ACCOUNT", conflicts_with = "pod")]
    account: Option<Given<AccountName>>,

    /// Pod whose token to try
    #[arg(long, value_name = "NAMESPACE/POD")]
    pod: Option<Given<AccountName>>,

    /// Output format: text for people, json for scripts
    #[arg(long, choice = Format::default())]
    format: Choice<Format>,

    #[command(flatten)]
    identity: IdentityArgs,

    #[command(flatten)]
    admin: AdminArgs,
}

impl Subcommands {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Command> {
        let Self::Doctor(DoctorArgs { account, pod, format, identity, admin }) = self;
        let admin = admin.resolve(mistakes);
        let settings = identity.resolve_anyway("identity doctor", mistakes);
        let (account, pod) = (mistakes.optional(account), mistakes.optional(pod));
        let whose = match (account, pod) {
            (Some(account), _) => Whose::Account(account),
            (None, Some(pod)) => Whose::Pod(pod),
            (None, None) => Whose::Any,
        };
        let format = mistakes.value(format)?;
        Some(Command::IdentityDoctor { admin: admin?, settings: settings?, whose, format })
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Command;
    use crate::cli::tests::{mistakes, parse_line};
    use identity::{AccountName, Settings};
    use operator::doctor::Whose;
    use telemetry::logging::Format;

    const PROVIDER: &str = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/c";

    fn doctor(line: &str) -> (Settings, Whose, Format) {
        match parse_line(line) {
            Ok(Command::IdentityDoctor { settings, whose, format, .. }) => (settings, whose, format),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn flags_of_the_proxy_hold_before_and_after_the_subcommand() {
        let before = format!("--upstream=none --node-name=n --workload-identity-provider={PROVIDER} --host-proc=/p");
        let (settings, whose, format) = doctor(&format!("{before} identity doctor --google-ca=/ca --passthrough=a/b"));
        let federation = settings.federation.expect("a provider");
        assert_eq!((federation.sts_audience().as_str(), federation.google_ca), (PROVIDER, Some("/ca".into())));
        assert_eq!((settings.cluster.node.as_str(), settings.host_proc), ("n", "/p".into()));
        assert_eq!((settings.passthrough.len(), whose, format), (1, Whose::Any, Format::Text));
        let (settings, ..) = doctor("--node-name=n --host-proc=/p identity doctor --node-name=m --host-proc=/q");
        assert_eq!((settings.cluster.node.as_str(), settings.host_proc), ("m", "/q".into()), "the last one counts");
        assert!(settings.federation.is_none());
    }

    #[test]
    fn whose_token_is_tried_can_be_said() {
        let name = AccountName::parse("shop/app").expect("a name");
        let (_, whose, format) = doctor("identity doctor --node-name=n --account=shop/app --format=json");
        assert_eq!((whose, format), (Whose::Account(name.clone()), Format::Json));
        assert_eq!(doctor("identity doctor --node-name=n --pod=shop/app").1, Whose::Pod(name));
        for (line, expected) in [
            ("identity doctor", "identity doctor requires --node-name (or NODE_NAME)"),
            ("identity doctor --node-name=n --account=app", "--account: \"app\" is not valid; expected NAMESPACE/"),
            ("identity doctor --node-name=n --account=a/b --pod=a/b", "--account"),
            ("identity doctor --node-name=n --workload-pool=p", "--workload-pool: \"p\" is not valid"),
        ] {
            let said = mistakes(line);
            assert!(said.contains(expected), "{line}: {said}");
        }
    }
}
