//! The policy flags, and the commands that answer questions about policies: `explain` and `policy`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::Command;
use super::given::Mistakes;
use super::syntax::{self, Choice};
use crate::config::Config;
use crate::explain::Question;
use crate::layers::conceal::Mode;
use crate::policy::{self, BuiltIn, Recursive, Source};

#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct PolicyArgs {
    /// Policy that decides which metadata is concealed from pods: `compat` conceals what k8s-metadata-proxy conceals and
    /// other known secrets, `strict` allows only what GKE's own server shows, `k8s-metadata-proxy` conceals exactly what
    /// that proxy conceals, FILE is a policy file, which is reloaded when it changes
    #[arg(
        long,
        value_name = format!("{}|FILE", syntax::names::<BuiltIn>()),
        env = "METADATA_PROXY_POLICY",
        default_value = policy::Choice::default().source.to_string(),
        global = true
    )]
    policy: String,

    /// Enforce the policy, or only log what it would refuse
    #[arg(
        long,
        value_name = syntax::names::<Mode>(),
        env = "METADATA_PROXY_POLICY_MODE",
        default_value = Mode::default().to_string()
    )]
    policy_mode: Choice<Mode>,

    /// Refuse recursive reads, or answer them without the concealed values. Overrides the policy
    #[arg(long, value_name = syntax::names::<Recursive>(), env = "METADATA_PROXY_RECURSIVE", global = true)]
    recursive: Option<Choice<Recursive>>,
}

impl PolicyArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> (policy::Choice, Option<Mode>) {
        let mode = mistakes.value(self.policy_mode.clone());
        (self.choice(mistakes), mode)
    }

    /// The policy alone, for commands that do not enforce it.
    pub(super) fn choice(self, mistakes: &mut Mistakes) -> policy::Choice {
        let recursive = mistakes.optional(self.recursive);
        // A variable that is empty counts as not set.
        let source =
            if self.policy.is_empty() { policy::Choice::default().source } else { Source::parse(&self.policy) };
        policy::Choice { source, recursive }
    }

    /// The flags that result in this configuration.
    pub(super) fn from_config(config: &Config) -> Self {
        Self {
            policy: config.policy.source.to_string(),
            policy_mode: Choice::from_value(config.policy_mode),
            recursive: config.policy.recursive.map(Choice::from_value),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// URL of the metadata server, or only its path and query
    #[arg(value_name = "URL", required_unless_present = "pod")]
    url: Option<String>,

    /// Instead of a URL, explain how the proxy on this machine (at --metrics-addr) identifies a pod
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "url")]
    pod: Option<String>,
}

impl ExplainArgs {
    /// The policy is only for URLs, and the address only for pods.
    pub(super) fn resolve(self, policy: policy::Choice, admin: SocketAddr) -> Command {
        match self.pod {
            Some(pod) => Command::ExplainPod { admin, pod },
            None => Command::Ask(Question::Explain(policy, self.url.unwrap_or_default())),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Policies {
    /// Print the policy selected by --policy, and the policy it extends
    Show,
    /// Print the requests that the policy selected by --policy decides differently from another one
    Diff {
        /// The other policy: a built-in policy, or a policy file
        #[arg(value_name = format!("{}|FILE", syntax::names::<BuiltIn>()))]
        from: String,
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
    pub(super) fn resolve(self, policy: policy::Choice) -> Question {
        match self {
            Self::Show => Question::Show(policy.source),
            Self::Diff { from } => {
                let from = policy::Choice { source: Source::parse(&from), recursive: None };
                Question::Compare([from, policy])
            }
            Self::Check { file } => Question::Check(Source::File(file.into())),
            Self::Schema => Question::Schema,
        }
    }
}
