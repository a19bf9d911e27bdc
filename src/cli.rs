//! The command line: parses flags and environment variables into a [`Command`]. The only module that uses clap.

mod check;
#[cfg(feature = "otlp")]
mod otlp;
mod redirect;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use http::HeaderValue;

use crate::config::{self, Config};
use crate::explain::Question;
use crate::layers::conceal::Mode;
use crate::layers::rescue::OnOverload;
use crate::layers::token_cache::Audit;
use crate::metadata::Target;
use crate::metadata::host::AllowedHosts;
use crate::policy::{Choice, Recursive, Source};
use crate::telemetry::logging::{Format, Levels, LevelsError};

/// Exit code for a usage error, `EX_USAGE` of BSD's sysexits: a supervisor need not retry.
pub const USAGE: u8 = 64;

/// Flags as typed. Values stay text until [`Args::resolve`], so that all mistakes are reported at once.
#[derive(Debug, Parser)]
#[command(name = "gce-metadata-proxy", version, about, long_about = LONG_ABOUT, max_term_width = 100)]
#[command(after_help = AFTER_HELP, disable_help_subcommand = true)]
struct Args {
    /// Address to listen on for pods. May be repeated
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "METADATA_PROXY_ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1:988"
    )]
    addr: Vec<String>,

    /// Address to listen on for operators: /metrics, /healthz, /readyz, /statusz and others
    #[arg(long, value_name = "HOST:PORT", env = "METADATA_PROXY_METRICS_ADDR", default_value = "127.0.0.1:989")]
    metrics_addr: String,

    /// Host name to accept on --metrics-addr, in addition to localhost and IP addresses; for example the node name that a
    /// scraper uses. May be repeated
    #[arg(long, value_name = "NAME", env = "METADATA_PROXY_METRICS_ALLOWED_HOST", value_delimiter = ',')]
    metrics_allowed_host: Vec<String>,

    /// URL of the metadata server. Only http:// is supported
    #[arg(long, value_name = "URL", env = "METADATA_PROXY_UPSTREAM", default_value = config::UPSTREAM)]
    upstream: String,

    /// Policy that decides which metadata is concealed from pods: `compat` conceals what k8s-metadata-proxy conceals and
    /// other known secrets, `strict` allows only what GKE's own server shows, FILE is a policy file, which is reloaded when
    /// it changes
    #[arg(
        long,
        value_name = "compat|strict|FILE",
        env = "METADATA_PROXY_POLICY",
        default_value = config::POLICY,
        global = true
    )]
    policy: String,

    /// Enforce the policy, or only log what it would refuse
    #[arg(long, value_name = "enforce|audit", env = "METADATA_PROXY_POLICY_MODE", default_value = "enforce")]
    policy_mode: String,

    /// Refuse recursive reads, or answer them without the concealed values. Overrides the policy
    #[arg(long, value_name = "refuse|redact", env = "METADATA_PROXY_RECURSIVE", global = true)]
    recursive: Option<String>,

    /// Host name to accept from clients, in addition to metadata.google.internal, metadata, metadata.goog, localhost and
    /// IP addresses. May be repeated
    #[arg(long, value_name = "NAME", env = "METADATA_PROXY_ALLOWED_HOST", value_delimiter = ',')]
    allowed_host: Vec<String>,

    /// Set `SO_REUSEPORT` on the listening sockets, so that a new process can start before the old one exits
    #[arg(long, env = "METADATA_PROXY_REUSE_PORT")]
    reuse_port: bool,

    /// Maximum concurrent requests to the metadata server. Excess requests are refused; answers from memory do not count.
    /// A waiting request uses 25 KiB of memory, at most 56 KiB
    #[arg(long, value_name = "N", env = "METADATA_PROXY_MAX_IN_FLIGHT", default_value = config::MAX_IN_FLIGHT)]
    max_in_flight: String,

    /// Maximum concurrent client connections. At the limit, the connection that has made no progress for longest is closed,
    /// or the new one is reset. A connection uses 2 KiB of memory when idle and 14 KiB when active
    #[arg(long, value_name = "N", env = "METADATA_PROXY_MAX_CONNECTIONS", default_value = config::MAX_CONNECTIONS)]
    max_connections: String,

    /// Maximum concurrent `wait_for_change` requests to the metadata server. Clients that watch the same value share one.
    /// Excess requests get 503
    #[arg(long, value_name = "N", env = "METADATA_PROXY_MAX_HANGING", default_value = config::MAX_HANGING)]
    max_hanging: String,

    /// Response to requests beyond --max-in-flight: reset the connection, or answer 503 Service Unavailable
    #[arg(long, value_name = "reset|unavailable", env = "METADATA_PROXY_OVERLOAD", default_value = "reset")]
    overload: String,

    /// Log format on standard error: text for a terminal, json for a cluster
    #[arg(long, value_name = "text|json", env = "METADATA_PROXY_LOG_FORMAT", default_value = "text")]
    log_format: String,

    /// Log level, or levels by module, such as `info,gce_metadata_proxy=debug`
    #[arg(long, value_name = "LEVEL", env = "METADATA_PROXY_LOG", default_value = config::LOG)]
    log: String,

    /// Log each token that is issued to a client: client address, account, scopes, outcome and expiry, but not the token
    #[arg(long, env = "METADATA_PROXY_AUDIT")]
    audit: bool,

    /// How long to wait for requests in flight after SIGTERM or SIGINT, such as 10s, 500ms or 1m
    #[arg(long, value_name = "DURATION", env = "METADATA_PROXY_DRAIN_TIMEOUT", default_value = config::DRAIN_TIMEOUT)]
    drain_timeout: String,

    /// Redirect metadata requests from this node's pods to the first --addr while serving, as `redirect install --keep`
    /// does. Requires nft or iptables, root, and the capability `NET_ADMIN`
    #[arg(long, env = "METADATA_PROXY_REDIRECT")]
    redirect: bool,

    #[command(flatten)]
    opened: redirect::OpenedArgs,

    #[cfg(feature = "otlp")]
    #[command(flatten)]
    otlp: otlp::OtlpArgs,

    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Explain whether the policy allows a request, and why
    Explain {
        /// URL of the metadata server, or only its path and query
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Print and validate policies
    #[command(subcommand)]
    Policy(Policies),
    /// Redirect pods' metadata requests to the proxy, and block other routes to the metadata server
    #[command(subcommand)]
    Redirect(redirect::Subcommands),
    /// Check whether this pod or node is protected. Exits with 0 if it is, 1 if something is exposed, 2 if a check failed for
    /// another reason
    Check(check::CheckArgs),
    /// Run a mock metadata server
    #[cfg(feature = "mock")]
    Mock {
        /// Address to listen on
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
        addr: String,
    },
    /// Run the proxy in front of a mock metadata server, and print requests to try
    #[cfg(feature = "mock")]
    Demo,
}

#[derive(Debug, Subcommand)]
enum Policies {
    /// Print the policy selected by --policy, and the policy it extends
    Show,
    /// Validate a policy file
    Check {
        /// Policy file to validate
        #[arg(value_name = "FILE")]
        file: String,
    },
    /// Print the JSON schema of policy files
    Schema,
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

/// What to run.
#[derive(Debug)]
pub enum Command {
    /// Serve as a proxy.
    Serve(Config),
    /// Answer a question about policies.
    Ask(Question),
    /// Check whether this pod or node is protected.
    Check(crate::check::Format),
    /// Change or check the kernel's redirect rules, with this log format and these levels.
    Redirect(crate::redirect::Command, Format, Levels),
    /// Serve as a mock metadata server.
    #[cfg(feature = "mock")]
    Mock(SocketAddr),
    /// Serve as a mock metadata server and a proxy, with examples to try.
    #[cfg(feature = "mock")]
    Demo(Config),
}

/// Why there is nothing to run, with the text to print.
#[derive(Debug)]
pub enum Stop {
    /// `--help` or `--version`.
    Shown(String),
    /// Usage errors, one per line.
    Usage(String),
}

/// Parses the command line and the environment.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Stop> {
    let mut mistakes = Vec::new();
    let args = parse_known(args.into_iter().map(with_two_dashes).collect(), &mut mistakes)?;
    match args.and_then(|args| args.resolve(&mut mistakes)) {
        Some(command) if mistakes.is_empty() => Ok(command),
        _ => Err(Stop::Usage(usage(&mistakes))),
    }
}

fn usage(mistakes: &[String]) -> String {
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("gce-metadata-proxy: {mistake}")).collect();
    format!("{}\nTry 'gce-metadata-proxy --help'.\n", lines.join("\n"))
}

/// Go's flag package accepts one dash or two, and manifests for k8s-metadata-proxy use either.
fn with_two_dashes(arg: OsString) -> OsString {
    let name = arg.to_str().and_then(|text| text.strip_prefix('-')).and_then(|text| text.split('=').next());
    match (name, arg.to_str()) {
        (Some(name), Some(text)) if Args::command().get_arguments().any(|known| known.get_long() == Some(name)) => {
            format!("-{text}").into()
        }
        _ => arg,
    }
}

/// clap stops at the first unknown argument. Removes unknown arguments one by one, so that the others are checked too.
/// Returns `None`, and adds a mistake, if the remaining arguments cannot be parsed.
fn parse_known(mut args: Vec<OsString>, mistakes: &mut Vec<String>) -> Result<Option<Args>, Stop> {
    loop {
        let error = match Args::try_parse_from(&args) {
            Ok(parsed) => return Ok(Some(parsed)),
            Err(error) => error,
        };
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return Err(Stop::Shown(error.render().to_string()));
        }
        let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) => Some(unknown.clone()),
            (ErrorKind::InvalidSubcommand, _) => match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(unknown)) => Some(unknown.clone()),
                _ => None,
            },
            _ => None,
        };
        let position = unknown.as_ref().and_then(|unknown| {
            args.iter().skip(1).position(|arg| arg.to_str().is_some_and(|arg| arg.split('=').next() == Some(unknown)))
        });
        let first_line = error.render().to_string().lines().next().unwrap_or_default().to_owned();
        mistakes.push(first_line.trim_start_matches("error: ").to_owned());
        match position {
            Some(position) => drop(args.remove(position + 1)),
            None => return Ok(None),
        }
    }
}

impl Args {
    /// Parses the values, and adds the invalid ones to `mistakes`.
    fn resolve(self, mistakes: &mut Vec<String>) -> Option<Command> {
        let mut read = Reader { mistakes };
        #[cfg(feature = "mock")]
        if let Some(Subcommands::Mock { addr }) = &self.command {
            return read.value("mock --addr", addr, ADDRESS, address).map(Command::Mock);
        }
        let recursive = self.recursive.as_deref().filter(|text| !text.is_empty());
        let recursive = recursive.map(|text| read.value("--recursive", text, "refuse or redact", recursive_read));
        let policy = Choice { source: Source::named(&self.policy), recursive: recursive.flatten() };
        let question = match &self.command {
            Some(Subcommands::Explain { url }) => Some(Question::Explain(policy.clone(), url.clone())),
            Some(Subcommands::Policy(Policies::Show)) => Some(Question::Show(policy.source.clone())),
            Some(Subcommands::Policy(Policies::Check { file })) => Some(Question::Check(Source::File(file.into()))),
            Some(Subcommands::Policy(Policies::Schema)) => Some(Question::Schema),
            _ => None,
        };
        if let Some(question) = question {
            return Some(Command::Ask(question));
        }
        let policy_mode = read.value("--policy-mode", &self.policy_mode, "enforce or audit", policy_mode);
        if let Some(Subcommands::Check(args)) = &self.command {
            return args.resolve(&mut read).map(Command::Check);
        }
        let log_format = read.value("--log-format", &self.log_format, "text or json", log_format);
        let log = read.value("--log", &self.log, LevelsError::EXPECTED, |text| text.parse().ok());
        if let Some(Subcommands::Redirect(command)) = self.command {
            return Some(Command::Redirect(command.resolve(&mut read)?, log_format?, log?));
        }
        let allowed_hosts = read.values("--allowed-host", &self.allowed_host, HOST_NAME, host_name);
        let metrics_allowed_hosts =
            read.values("--metrics-allowed-host", &self.metrics_allowed_host, HOST_NAME, host_name);
        let addrs = read.values("--addr", &self.addr, ADDRESS, address);
        let metrics_addr = read.value("--metrics-addr", &self.metrics_addr, ADDRESS, address);
        let upstream = read.value("--upstream", &self.upstream, UPSTREAM, |url| Target::parse(url).ok());
        let max_in_flight = read.value("--max-in-flight", &self.max_in_flight, LIMIT, limit);
        let max_connections = read.value("--max-connections", &self.max_connections, LIMIT, limit);
        let max_hanging = read.value("--max-hanging", &self.max_hanging, "a whole number", |text| text.parse().ok());
        let on_overload = read.value("--overload", &self.overload, "reset or unavailable", overload);
        let drain_timeout = read.value("--drain-timeout", &self.drain_timeout, DURATION, duration);
        let opened = self.opened.resolve(&mut read);
        #[cfg(feature = "otlp")]
        let otlp = self.otlp.resolve(&mut read);
        #[cfg(not(feature = "otlp"))]
        let otlp = Some(crate::telemetry::otlp::Settings {});
        // Return early only here, after every mistake has been recorded.
        let config = Config {
            addrs,
            metrics_addr: metrics_addr?,
            metrics_allowed_hosts,
            upstream: upstream?,
            policy,
            policy_mode: policy_mode?,
            allowed_hosts,
            reuse_port: self.reuse_port,
            max_in_flight: max_in_flight?,
            max_connections: max_connections?,
            max_hanging: max_hanging?,
            on_overload: on_overload?,
            log_format: log_format?,
            log: log?,
            audit: if self.audit { Audit::On } else { Audit::Off },
            otlp: otlp?,
            drain_timeout: drain_timeout?,
            redirect: self.redirect.then_some(opened),
        };
        Some(match self.command {
            #[cfg(feature = "mock")]
            Some(Subcommands::Demo) => Command::Demo(config),
            _ => Command::Serve(config),
        })
    }
}

const ADDRESS: &str = "HOST:PORT with an IP address or localhost for HOST, such as 127.0.0.1:988, [::1]:988 or :988";
const UPSTREAM: &str = "http://HOST or http://HOST:PORT, without a path";
const HOST_NAME: &str = "a host name without a port";
const LIMIT: &str = "a whole number, at least 1";
const DURATION: &str = "a number followed by ms, s or m, such as 10s";

/// Parses values, and records invalid ones with the flag's name and the expected format.
struct Reader<'a> {
    mistakes: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn value<T>(&mut self, flag: &str, text: &str, expected: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = read(text);
        if value.is_none() {
            let from = variable_of(flag)
                .filter(|variable| std::env::var(variable).is_ok_and(|set| set.split(',').any(|part| part == text)));
            let from = from.map(|variable| format!(" (from {variable})")).unwrap_or_default();
            self.mistakes.push(format!("{flag}{from}: {text:?} is not valid; expected {expected}"));
        }
        value
    }

    fn values<T>(&mut self, flag: &str, texts: &[String], expected: &str, read: impl Fn(&str) -> Option<T>) -> Vec<T> {
        texts
            .iter()
            .filter(|text| !text.is_empty())
            .filter_map(|text| self.value(flag, text, expected, &read))
            .collect()
    }
}

/// The environment variable of a top-level flag.
fn variable_of(flag: &str) -> Option<String> {
    let (command, name) = (Args::command(), flag.strip_prefix("--")?);
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
    Some(arg.get_env()?.to_str()?.to_owned())
}

/// Parses an address as Go does: `:988` is every IPv4 address of the machine.
fn address(text: &str) -> Option<SocketAddr> {
    let spelt = match text.rsplit_once(':')? {
        ("", port) => format!("0.0.0.0:{port}"),
        ("localhost", port) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    spelt.parse().ok()
}

fn host_name(text: &str) -> Option<String> {
    let hosts = AllowedHosts::with([text.to_owned()]);
    let is_name = !text.contains(':') && HeaderValue::from_str(text).is_ok_and(|host| hosts.admit(&host).is_ok());
    is_name.then(|| text.to_owned())
}

fn limit(text: &str) -> Option<usize> {
    text.parse().ok().filter(|limit| *limit > 0)
}

fn overload(text: &str) -> Option<OnOverload> {
    match text {
        "reset" => Some(OnOverload::Reset),
        "unavailable" => Some(OnOverload::Unavailable),
        _ => None,
    }
}

fn policy_mode(text: &str) -> Option<Mode> {
    match text {
        "enforce" => Some(Mode::Enforce),
        "audit" => Some(Mode::Audit),
        _ => None,
    }
}

fn recursive_read(text: &str) -> Option<Recursive> {
    match text {
        "refuse" => Some(Recursive::Refuse),
        "redact" => Some(Recursive::Redact),
        _ => None,
    }
}

fn log_format(text: &str) -> Option<Format> {
    match text {
        "text" => Some(Format::Text),
        "json" => Some(Format::Json),
        _ => None,
    }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse_line(line: &str) -> Result<Command, Stop> {
        parse(std::iter::once("gce-metadata-proxy").chain(line.split_whitespace()).map(OsString::from))
    }

    fn serve(line: &str) -> Config {
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
    fn the_defaults_are_those_of_k8s_metadata_proxy() {
        let config = serve("");
        assert_eq!((config.addrs, config.metrics_addr), (vec![config::ADDR], config::METRICS_ADDR));
        assert_eq!(config.upstream.to_string(), "169.254.169.254");
        assert_eq!(config.drain_timeout, Duration::from_secs(10));
    }

    #[test]
    fn flags_may_have_the_single_dash_of_go() {
        let config = serve("-addr=127.0.0.2:988 -metrics-addr 127.0.0.2:989");
        assert_eq!(
            (config.addrs, config.metrics_addr),
            (vec![([127, 0, 0, 2], 988).into()], ([127, 0, 0, 2], 989).into())
        );
    }

    #[test]
    fn addresses_are_read_as_go_reads_them() {
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
    fn a_missing_value_is_a_mistake() {
        assert!(mistakes("--addr").contains("--addr"));
        for levels in ["nonsense=nonsense=x", "verbose", "info,verbose"] {
            assert!(mistakes(&format!("--log {levels}")).contains("--log"), "{levels}");
        }
        assert!(mistakes("--allowed-host a:80").contains("--allowed-host"));
        assert!(mistakes("--metrics-allowed-host a:80").contains("--metrics-allowed-host"));
    }

    #[test]
    fn help_and_version_are_no_mistakes() {
        assert!(matches!(parse_line("--help"), Err(Stop::Shown(text)) if text.contains("METADATA_PROXY_ADDR")));
        assert!(matches!(parse_line("-V"), Err(Stop::Shown(text)) if text.contains(env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn every_flag_can_be_told_and_typed_again() {
        let told = serve(
            "--allowed-host a,b --metrics-allowed-host c --reuse-port --audit --overload unavailable --log-format json --policy strict \
             --policy-mode audit --recursive refuse --redirect --redirect-allow 443,ipv6",
        )
        .flags();
        let command = Args::command();
        let known = command.get_arguments().filter_map(clap::Arg::get_long);
        let missing: Vec<&str> =
            known.filter(|known| !told.iter().any(|(flag, _)| flag.trim_start_matches("--") == *known)).collect();
        assert!(missing.is_empty(), "not in Config::flags: {missing:?}");
        let switches = ["--reuse-port", "--audit", "--redirect"];
        let type_it = |(flag, value): &(&str, String)| {
            if switches.contains(flag) { (*flag).to_owned() } else { format!("{flag}={value}") }
        };
        let typed = told.iter().map(type_it);
        assert_eq!(serve(&typed.collect::<Vec<_>>().join(" ")).flags(), told);
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1500ms"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        for text in ["", "10", "s", "-1s", "1h", "1.5s", "99999999999999999999s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
