//! The command line: parses flags and environment variables into a [`Command`]. The only module that uses clap.

mod check;
mod effect;
mod federation;
mod given;
mod identity;
mod identity_doctor;
mod lenient;
mod log;
#[cfg(feature = "mock")]
mod mock;
mod policy;
mod redirect;
mod repeated;
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
use crate::explain::Question;
use crate::startup_taint::StartupTaint;
use crate::telemetry::logging::{Format, Levels};
use given::Mistakes;
use lenient::Parsed;
use usage::Called;

pub use serve::flags;

/// Exit code for a usage error: `EX_USAGE` in BSD's sysexits. A supervisor need not retry.
pub const USAGE_EXIT_CODE: u8 = 64;

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

Exit codes: 0 after SIGTERM or SIGINT, 64 for a usage error, 1 if the proxy cannot start (for example because a \
port is in use) or if a second signal ends the drain early.";

/// The command to run.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "made once")]
pub enum Command {
    /// Serve as a proxy.
    Serve(Config),
    /// Answer a question about policies.
    Ask(Question),
    /// Ask the proxy that serves operators at this address whom it takes a pod for.
    ExplainPod {
        /// The address.
        admin: SocketAddr,
        /// Its namespace and name, separated by a slash.
        pod: String,
    },
    /// Ask the proxy that serves operators at this address how it is doing.
    Status {
        /// The address.
        admin: SocketAddr,
        /// Format of the answer.
        format: crate::finding::Format,
    },
    /// Check whether this pod or node is protected.
    Check {
        /// Once or repeatedly.
        command: crate::check::Command,
        /// Where operators are served.
        admin: SocketAddr,
        /// Format of the log, and what is logged.
        log: (Format, Levels),
    },
    /// Find out why pods of this node get tokens of their own, or why not, with these settings of the proxy.
    IdentityDoctor {
        /// Where the proxy serves operators.
        admin: SocketAddr,
        /// How the proxy identifies pods.
        settings: crate::identity::Settings,
        /// Whose token to try.
        whose: crate::doctor::Whose,
        /// Format of the report.
        format: crate::finding::Format,
    },
    /// Change or check the kernel's redirect rules.
    Redirect {
        /// What to do.
        command: crate::redirect::Command,
        /// Address to serve the metrics of [`Keep`](crate::redirect::Command::Keep) on. `None` to serve none.
        metrics_addr: Option<SocketAddr>,
        /// Format of the log, and what is logged.
        log: (Format, Levels),
        /// What to remove from the node once its rules are installed.
        startup_taint: Option<StartupTaint>,
    },
    /// Serve as a mock metadata server.
    #[cfg(feature = "mock")]
    Mock(SocketAddr),
    /// Serve as a mock metadata server and a proxy, with examples to try, and with traffic if the flag is set.
    #[cfg(feature = "mock")]
    Demo(Config, bool),
}

/// Why there is nothing to run, with the text to print.
#[derive(Debug)]
pub enum Stop {
    /// `--help` or `--version`.
    Shown(String),
    /// Usage errors, one per line, and where to find help.
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

/// A sentence for each environment variable that looks like a flag's and is none.
pub fn unknown_variables() -> Vec<String> {
    variables::unknown(std::env::vars_os().map(|(name, _)| name), &Args::command())
}

impl Args {
    /// Takes the values, and adds the invalid ones to `mistakes`. A subcommand ignores flags that it does not use.
    fn resolve(self, given: &ArgMatches, mistakes: &mut Mistakes) -> Option<Command> {
        let Self { serve, command } = self;
        Some(match command {
            None => Command::Serve(serve.resolve(given, mistakes)?),
            Some(Subcommands::Explain(args)) => {
                let admin = mistakes.value(serve.metrics_addr)?;
                args.resolve(serve.policy.choice(mistakes), admin)
            }
            Some(Subcommands::Policy(args)) => Command::Ask(args.resolve(serve.policy.choice(mistakes))),
            Some(Subcommands::Redirect(mut args)) => {
                serve.policy.resolve(mistakes);
                let log = serve.log.resolve(mistakes);
                let startup_taint = {
                    let admin = mistakes.value(serve.metrics_addr);
                    let (taint, keeps_rules) = args.take_startup_taint();
                    taint.resolve(keeps_rules, serve.identity.node, admin, mistakes)
                };
                let metrics_addr = args.take_metrics_addr(mistakes);
                let command = args.resolve(mistakes)?;
                Command::Redirect { command, metrics_addr, log: log?, startup_taint }
            }
            Some(Subcommands::Status(args)) => {
                let admin = mistakes.value(serve.metrics_addr);
                args.resolve(admin, mistakes)?
            }
            Some(Subcommands::Check(args)) => {
                serve.policy.resolve(mistakes);
                let (admin, log) = (mistakes.value(serve.metrics_addr), serve.log.resolve(mistakes));
                Command::Check { command: args.resolve(mistakes)?, admin: admin?, log: log? }
            }
            Some(Subcommands::Identity(args)) => {
                let admin = mistakes.value(serve.metrics_addr);
                args.resolve(serve.identity, admin, mistakes)?
            }
            #[cfg(feature = "mock")]
            Some(Subcommands::Mock(args)) => Command::Mock(args.resolve(mistakes)?),
            #[cfg(feature = "mock")]
            Some(Subcommands::Demo(args)) => Command::Demo(serve.resolve(given, mistakes)?, args.traffic),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config;

    pub(super) fn parse_line(line: &str) -> Result<Command, Stop> {
        parse(std::iter::once("gce-metadata-proxy").chain(line.split_whitespace()).map(OsString::from))
    }

    pub(super) fn serve(line: &str) -> Config {
        match parse_line(line) {
            Ok(Command::Serve(config)) => config,
            other => panic!("{line}: {other:?}"),
        }
    }

    pub(super) fn mistakes(line: &str) -> String {
        match parse_line(line) {
            Err(Stop::Usage(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn defaults_match_k8s_metadata_proxy() {
        let config = serve("");
        assert_eq!((config.addrs, config.metrics_addr), (vec![config::ADDR], config::METRICS_ADDR));
        assert_eq!(config.upstream.to_string(), "169.254.169.254");
        assert_eq!(config.drain_timeout, Duration::from_secs(10));
    }

    #[test]
    fn flags_may_have_a_single_dash() {
        let config = serve("-addr=127.0.0.2:988 -metrics-addr 127.0.0.2:989");
        assert_eq!(
            (config.addrs, config.metrics_addr),
            (vec![([127, 0, 0, 2], 988).into()], ([127, 0, 0, 2], 989).into())
        );
    }

    #[test]
    fn addresses_are_parsed_as_in_go() {
        let config = serve("--addr :988 --addr [::1]:988,localhost:1988");
        let addrs: Vec<String> = config.addrs.iter().map(ToString::to_string).collect();
        assert_eq!(addrs, ["0.0.0.0:988", "[::1]:988", "127.0.0.1:1988"]);
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let text =
            mistakes("--addr nowhere --frobnicate=1 --upstream https://a -x --log-format xml --drain-timeout 10 extra");
        for named in [
            "--addr: \"nowhere\"",
            "--frobnicate",
            "--upstream: \"https://a\"",
            "-x",
            "--log-format: \"xml\"",
            "--drain-timeout: \"10\"",
            "extra",
        ] {
            assert!(text.contains(named), "{named} is missing from\n{text}");
        }
        assert_eq!(text.lines().count(), 8, "{text}");
    }

    #[test]
    fn a_missing_value_is_an_error() {
        assert!(mistakes("--addr").contains("--addr"));
        for levels in ["nonsense=nonsense=x", "verbose", "info,verbose"] {
            assert!(mistakes(&format!("--log {levels}")).contains("--log"), "{levels}");
        }
        assert!(mistakes("--allowed-host a:80").contains("--allowed-host"));
        assert!(mistakes("--metrics-allowed-host a:80").contains("--metrics-allowed-host"));
    }

    #[test]
    fn help_and_version_are_not_errors() {
        assert!(matches!(parse_line("--help"), Err(Stop::Shown(text)) if text.contains("METADATA_PROXY_ADDR")));
        assert!(matches!(parse_line("-V"), Err(Stop::Shown(text)) if text.contains(env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn flags_are_formatted_so_that_they_parse() {
        let config = serve(
            "--allowed-host a,b --metrics-allowed-host c --reuse-port --audit --overload unavailable --log-format json --policy strict \
             --policy-mode audit --recursive refuse --redirect --redirect-allow 443,ipv6 --redirect-drop-spoofed \
             --redirect-max-new-connections 0",
        );
        let config = Config {
            identity: serve(
                "--workload-identity --node-name n --kubeconfig /k --passthrough a/b --google-ca /c --token-audience a \
                 --workload-pool p.svc.id.goog --cluster-uri https://container.googleapis.com/v1/projects/p",
            )
            .identity,
            ..config
        };
        let shown = flags(&config);
        let command = Args::command();
        let known: Vec<String> =
            command.get_arguments().filter_map(clap::Arg::get_long).map(|flag| format!("--{flag}")).collect();
        assert_eq!(shown.iter().map(|(flag, _)| flag.clone()).collect::<Vec<_>>(), known);
        let typed: Vec<String> = shown.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
        assert_eq!(flags(&serve(&typed.join(" "))), shown);
    }

    #[test]
    fn flags_have_the_values_of_the_configuration() {
        let shown = |config: &Config| -> Vec<String> {
            flags(config).iter().map(|(flag, value)| format!("{flag}={value}")).collect()
        };
        let lines = shown(&serve("--allowed-host a,b --addr :988,[::1]:988 --redirect --redirect-allow 443,ipv6"));
        for line in [
            "--addr=0.0.0.0:988,[::1]:988",
            "--metrics-allowed-host=",
            "--upstream=http://169.254.169.254",
            "--recursive=",
            "--allowed-host=a,b",
            "--reuse-port=false",
            "--max-hanging=64",
            "--drain-timeout=10000ms",
            "--redirect=true",
            "--redirect-allow=443,ipv6",
            "--redirect-max-new-connections=500",
        ] {
            assert!(lines.iter().any(|shown| shown == line), "{line} is missing from {lines:#?}");
        }
        assert_eq!(shown(&serve("")), shown(&Config::default()), "the defaults are those of Config");
    }

    #[test]
    fn the_documentation_has_every_flag_with_its_variable() {
        let page = include_str!("../docs/configuration.md");
        for arg in Args::command().get_arguments() {
            let (Some(flag), Some(variable)) = (arg.get_long(), arg.get_env()) else { continue };
            let variable = variable.display();
            let mut rows = page.lines().filter_map(|line| line.strip_prefix(&format!("| `--{flag}")));
            let is_there = rows.any(|row| row.starts_with([' ', '`', '[']) && row.contains(&format!("| `{variable}`")));
            assert!(is_there, "a line for --{flag} ({variable}) is missing from docs/configuration.md");
        }
    }

    #[test]
    fn help_and_messages_list_the_same_enum_values() {
        let Err(Stop::Shown(help)) = parse_line("--help") else { panic!("no help") };
        for flag in ["--policy-mode", "--recursive", "--overload", "--log-format"] {
            let text = mistakes(&format!("{flag} nonsense"));
            let values = text.lines().next().and_then(|line| line.split_once("expected ")).expect("a mistake").1;
            assert!(help.contains(&format!("{flag} <{}>", values.replace(" or ", "|"))), "{flag}: {values}");
            for value in values.split(" or ") {
                assert!(parse_line(&format!("{flag} {value}")).is_ok(), "{flag} {value}");
            }
        }
    }
}
