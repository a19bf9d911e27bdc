//! The command line: parses flags and environment variables into a [`Command`]. The only module that uses clap.

mod admin;
mod check;
mod effect;
mod federation;
mod flag;
mod given;
mod identity;
mod identity_doctor;
mod lenient;
mod log;
#[cfg(feature = "mock")]
mod mock;
mod opened;
mod policy;
mod redirect;
mod serve;
mod startup_taint;
mod status;
mod syntax;
mod usage;
mod values;
mod variables;

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::{ArgMatches, CommandFactory, Parser, Subcommand};

use crate::config::Config;
use given::Mistakes;
use lenient::Parsed;
use operator::explain::Question;
use operator::startup_taint::StartupTaint;
use telemetry::logging::{Format, Levels};
use usage::Called;

pub use serve::flags;

/// Exit code for a usage error: `EX_USAGE` in BSD's sysexits. A supervisor need not retry.
pub const USAGE_EXIT_CODE: u8 = 64;

/// Exit code if the output cannot be written: `EX_IOERR` in BSD's sysexits. No command gives it another meaning, as `check` does
/// to 1 and 2.
pub const OUTPUT_EXIT_CODE: u8 = 74;

/// The flags of the proxy, or a subcommand with its own.
#[derive(Debug, Parser)]
#[command(name = "gce-metadata-proxy", version, about, long_about = LONG_ABOUT, max_term_width = 100)]
#[command(after_help = AFTER_HELP, disable_help_subcommand = true)]
struct Args {
    #[command(flatten)]
    serve: serve::ServeArgs,

    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "parsed once")]
enum Subcommands {
    /// Explain whether the policy allows a request, and why; or how the proxy identifies a pod
    Explain(policy::ExplainArgs),
    /// Print and validate policies
    #[command(subcommand)]
    Policy(policy::Policies),
    /// Redirect pods' metadata requests to the proxy, and block other routes to the metadata server
    #[command(subcommand)]
    Redirect(redirect::Subcommands),
    /// Print how the proxy on this machine (at --metrics-addr) is doing, what is wrong and what to do. Exits with 0 if all is
    /// well, 1 if it is degraded or failing, 2 if it does not answer
    Status(status::StatusArgs),
    /// Check whether this pod or node is protected. Exits with 0 if it is, apart from what --redirect-allow leaves open, 1 if
    /// something else is exposed, 2 if a check failed for another reason
    Check(check::CheckArgs),
    /// Find out why pods get tokens of their own, or why not
    #[command(subcommand)]
    Identity(identity_doctor::Subcommands),
    /// Run a mock metadata server
    #[cfg(feature = "mock")]
    Mock(mock::MockArgs),
    /// Run the proxy in front of a mock metadata server, and print requests to try
    #[cfg(feature = "mock")]
    Demo(mock::DemoArgs),
}

const LONG_ABOUT: &str = "\
A proxy for the Google Compute Engine metadata server that runs on every Kubernetes node.

It serves metadata to pods, conceals secrets from them (kube-env, identity tokens, SSH keys, startup \
scripts and others), and forwards all other requests to the metadata server.";

const AFTER_HELP: &str = "\
Flags can also be set through the environment variables shown; the command line takes precedence. Separate list \
values with commas. Flags with a single dash, as in Go (-addr=HOST:PORT), are accepted.

Exit codes: 0 after SIGTERM or SIGINT, 1 if the proxy cannot start (for example because a port is in use), if a task that it \
needs has panicked, or if a second signal ends the drain early, 64 for a usage error, 74 if a command's output cannot be written.";

/// The command to run.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "made once")]
pub enum Command {
    /// Serve as a proxy.
    Serve(Config),
    /// Answer a question about policies.
    Ask {
        question: Question,
        /// The listener for operators of the proxy whose policy is compared with the one that answers.
        proxy: Option<SocketAddr>,
    },
    /// Ask the proxy how it identifies a pod. `admin` is its listener for operators.
    ExplainPod {
        admin: SocketAddr,
        /// The pod's namespace and name.
        pod: ::identity::AccountName,
    },
    /// Ask the proxy for its condition. `admin` is its listener for operators.
    Status {
        admin: SocketAddr,
        /// Format of the answer.
        format: Format,
    },
    /// Check whether this pod or node is protected.
    Check {
        /// Once or repeatedly, or the last result.
        command: operator::check::Command,
        /// The listener for operators.
        admin: SocketAddr,
        /// Log format, and log levels.
        log: (Format, Levels),
    },
    /// Find out why pods of this node get tokens of their own, or why not, with these settings of the proxy.
    IdentityDoctor {
        /// The proxy's listener for operators.
        admin: SocketAddr,
        /// The proxy's settings for identifying pods.
        settings: ::identity::Settings,
        /// The account whose token to try.
        whose: operator::doctor::Whose,
        /// Format of the report.
        format: Format,
    },
    /// Change or check the kernel's redirect rules.
    Redirect {
        command: ::redirect::Command,
        /// Address to serve the metrics of [`Keep`](::redirect::Command::Keep) on. `None` to serve none.
        metrics_addr: Option<SocketAddr>,
        /// Log format, and log levels.
        log: (Format, Levels),
        /// The taint to remove from the node once its rules are installed.
        startup_taint: Option<StartupTaint>,
    },
    /// Serve as a mock metadata server.
    #[cfg(feature = "mock")]
    Mock(SocketAddr),
    /// Serve as a mock metadata server and a proxy, with examples to try, and with traffic if the flag is set.
    #[cfg(feature = "mock")]
    Demo(Config, bool),
}

/// Why no command can be run, with the text to print.
#[derive(Debug)]
pub enum Stop {
    /// `--help` or `--version`.
    Shown(String),
    /// Usage errors, one per line, and a hint where to find help.
    Usage(String),
}

/// Parses the command line and the environment.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Stop> {
    let mut mistakes = Mistakes::default();
    let Parsed { whole, args } = lenient::parse::<Args>(args, &mut mistakes)?;
    match whole.and_then(|(parsed, given)| parsed.resolve(&given, &mut mistakes)) {
        Some(command) if mistakes.is_empty() => Ok(command),
        _ => Err(Stop::Usage(Called::by(&args, Args::command()).text(mistakes.lines()))),
    }
}

/// A sentence for each environment variable that resembles those of flags but is unknown.
pub fn unknown_variables() -> Vec<String> {
    variables::unknown(std::env::vars_os(), &Args::command())
}

impl Args {
    /// Resolves the values, and adds the invalid ones to `mistakes`. A subcommand has its flags that were typed before it, too, and
    /// ignores others.
    fn resolve(self, given: &ArgMatches, mistakes: &mut Mistakes) -> Option<Command> {
        let Self { serve, command } = self;
        Some(match command {
            None => Command::Serve(serve.config(given, mistakes)?),
            Some(Subcommands::Explain(args)) => args.resolve(mistakes)?,
            Some(Subcommands::Policy(args)) => Command::Ask { question: args.resolve(mistakes)?, proxy: None },
            Some(Subcommands::Redirect(args)) => args.resolve(serve.log, mistakes)?,
            Some(Subcommands::Status(args)) => args.resolve(mistakes)?,
            Some(Subcommands::Check(args)) => args.resolve(mistakes)?,
            Some(Subcommands::Identity(args)) => args.resolve(mistakes)?,
            #[cfg(feature = "mock")]
            Some(Subcommands::Mock(args)) => Command::Mock(args.resolve(mistakes)?),
            #[cfg(feature = "mock")]
            Some(Subcommands::Demo(args)) => Command::Demo(serve.config(given, mistakes)?, args.traffic),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
