//! The policy flags, and the commands that answer questions about policies: `explain` and `policy`.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::Command;
use super::admin::AdminArgs;
use super::flag::{Flag, flags};
use super::given::{Given, Mistakes, syntax};
use super::syntax::{self, Choice};
use identity::AccountName;
use operator::explain::{Expected, Question};
use proxy::policy::{BuiltIn, Choice as PolicyChoice, Recursive, Source};

flags! {
    #[derive(Debug, Args, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub(super) struct ChoiceArgs => PolicyChoice {
        /// Policy that decides which metadata is concealed from pods: `compat` conceals what k8s-metadata-proxy conceals and
        /// other known secrets, `strict` allows only what GKE's own server shows, `k8s-metadata-proxy` conceals exactly what
        /// that proxy conceals, FILE is a policy file, which is reloaded when it changes
        #[arg(
            long,
            value_name = format!("{}|FILE", syntax::names::<BuiltIn>()),
            env = "METADATA_PROXY_POLICY",
            default_value = PolicyChoice::default().source.to_string()
        )]
        policy: Given<PolicyName> => source,

        /// Refuse recursive reads, or answer them without the concealed values. Overrides the policy
        #[arg(long, value_name = syntax::names::<Recursive>(), env = "METADATA_PROXY_RECURSIVE")]
        recursive: Option<Choice<Recursive>> => recursive,
    }
}

/// The name of a built-in policy, or the path of a file.
#[derive(Debug, Clone)]
struct PolicyName;

syntax! {
    PolicyName => Source, |text| Some(Source::parse(text)), "a policy or a file";
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// URL of the metadata server, or only its path and query
    #[arg(value_name = "URL", required_unless_present = "pod")]
    url: Option<String>,

    /// Instead of a URL, explain how the proxy on this machine (at --metrics-addr) identifies a pod
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "url")]
    pod: Option<Given<AccountName>>,

    /// Exit with 1 if the policy decides otherwise, or if the URL is invalid: for tests of a policy
    #[arg(long, value_name = syntax::names::<Expected>(), conflicts_with = "pod")]
    expect: Option<Choice<Expected>>,

    #[command(flatten)]
    policy: ChoiceArgs,

    #[command(flatten)]
    admin: AdminArgs,
}

impl ExplainArgs {
    /// The policy is only for URLs.
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Command> {
        let admin = self.admin.resolve(mistakes);
        if let Some(pod) = self.pod {
            let pod = mistakes.value(pod);
            return Some(Command::ExplainPod { admin: admin?, pod: pod? });
        }
        let (policy, expected) = (self.policy.resolve(mistakes), mistakes.optional(self.expect));
        // A test of a policy does not depend on what runs here.
        let proxy = if expected.is_none() { Some(admin?) } else { None };
        Some(Command::Ask { question: Question::Explain(policy?, self.url.unwrap_or_default(), expected), proxy })
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Policies {
    /// Print the policy selected by --policy, and the policy it extends
    Show {
        #[command(flatten)]
        policy: ChoiceArgs,
    },
    /// Print the requests that the policy selected by --policy decides differently from another one
    Diff {
        /// The other policy: a built-in policy, or a policy file
        #[arg(value_name = format!("{}|FILE", syntax::names::<BuiltIn>()))]
        from: String,

        #[command(flatten)]
        policy: ChoiceArgs,
    },
    /// Validate a policy file
    Check {
        /// Policy file to validate
        #[arg(value_name = "FILE")]
        file: String,
    },
    /// Print the JSON schema of policy files
    Schema,
}

impl Policies {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Question> {
        Some(match self {
            Self::Show { policy } => {
                let is_overridden = policy.recursive.as_ref().is_some_and(Given::is_typed);
                mistakes.without("--recursive", "a decision: `policy show` prints the policy itself", is_overridden);
                Question::Show(policy.resolve(mistakes)?.source)
            }
            Self::Diff { from, policy } => {
                let from = PolicyChoice { source: Source::parse(&from), recursive: None };
                Question::Compare([from, policy.resolve(mistakes)?])
            }
            Self::Check { file } => Question::Check(Source::File(file.into())),
            Self::Schema => Question::Schema,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mistakes, parse_line};

    #[test]
    fn a_policy_is_shown_as_it_is() {
        let said = mistakes("policy show --recursive=redact");
        assert!(said.contains("--recursive has no effect without a decision"), "{said}");
        for line in ["policy show --policy=strict", "policy diff --recursive=redact strict"] {
            assert!(parse_line(line).is_ok(), "{line}");
        }
    }
}
