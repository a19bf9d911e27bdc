//! Flags of the proxy itself: from the command line to a [`Config`], and back for `/flagz`.

use std::net::SocketAddr;

use clap::{ArgMatches, Args};
use serde::Serialize;
use serde_json::Value;

use super::admin::AdminArgs;
use super::effect;
use super::given::{Given, Mistakes};
use super::identity::IdentityArgs;
use super::log::LogArgs;
use super::policy::PolicyArgs;
use super::redirect::OpenedArgs;
use super::syntax::{self, Choice, Count, HostName, Place, Switch, Time};
use super::values::ValuesArgs;
use crate::config::{self, Config};
use proxy::layers::rescue::OnOverload;
use proxy::layers::token_cache::Audit;
use proxy::upstream::Upstream;

/// To add a flag, add a field here and to [`Config`], with its default; the compiler then points to what else needs it.
/// clap and serde derive the flag's name from the field's. A test requires a row in docs/configuration.md.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ServeArgs {
    /// Address to listen on for pods. May be repeated. A link-local address, or one of `fd20:ce::/64`, need not be there yet: the
    /// redirect adds it. IPv6 of these is left out on a node without it
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "METADATA_PROXY_ADDR",
        value_delimiter = ',',
        default_values = config::ADDRS.map(|addr| addr.to_string())
    )]
    addr: Vec<Given<SocketAddr>>,

    #[command(flatten)]
    #[serde(flatten)]
    pub(super) admin: AdminArgs,

    /// Host name to accept on --metrics-addr, in addition to localhost and IP addresses; for example the node name that a
    /// scraper uses. May be repeated
    #[arg(long, value_name = "NAME", env = "METADATA_PROXY_METRICS_ALLOWED_HOST", value_delimiter = ',')]
    metrics_allowed_host: Vec<Given<HostName>>,

    /// URL of the metadata server. Only http:// is supported. `none` on machines that have no metadata server: then only what
    /// is configured here, and pods' own accounts, are answered
    #[arg(long, value_name = "URL|none", env = "METADATA_PROXY_UPSTREAM", default_value = config::UPSTREAM)]
    upstream: Given<syntax::Upstream>,

    #[command(flatten)]
    #[serde(flatten)]
    values: ValuesArgs,

    #[command(flatten)]
    #[serde(flatten)]
    pub(super) policy: PolicyArgs,

    /// Host name to accept from clients, in addition to metadata.google.internal, metadata, metadata.goog, localhost and
    /// IP addresses. May be repeated
    #[arg(long, value_name = "NAME", env = "METADATA_PROXY_ALLOWED_HOST", value_delimiter = ',')]
    allowed_host: Vec<Given<HostName>>,

    /// Set `SO_REUSEPORT` on the listening sockets, so that a new process can start before the old one exits
    #[arg(
        long,
        value_name = "true|false",
        env = "METADATA_PROXY_REUSE_PORT",
        default_value = "false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_default_value = true
    )]
    reuse_port: Switch,

    /// Maximum concurrent requests to the metadata server. Excess requests are refused; answers from memory do not count.
    /// A waiting request uses 25 KiB of memory, at most 56 KiB
    #[arg(
        long,
        value_name = "N",
        env = "METADATA_PROXY_MAX_IN_FLIGHT",
        default_value = config::MAX_IN_FLIGHT.to_string(),
        allow_negative_numbers = true
    )]
    max_in_flight: Given<Count<1>>,

    /// Maximum concurrent client connections. At the limit, the connection that has made no progress for longest is closed,
    /// or the new one is reset. A connection uses 2 KiB of memory when idle and 14 KiB when active
    #[arg(
        long,
        value_name = "N",
        env = "METADATA_PROXY_MAX_CONNECTIONS",
        default_value = config::MAX_CONNECTIONS.to_string(),
        allow_negative_numbers = true
    )]
    max_connections: Given<Count<1>>,

    /// Maximum concurrent `wait_for_change` requests to the metadata server. Clients that watch the same value share one.
    /// Excess requests get 503
    #[arg(
        long,
        value_name = "N",
        env = "METADATA_PROXY_MAX_HANGING",
        default_value = config::MAX_HANGING.to_string(),
        allow_negative_numbers = true
    )]
    max_hanging: Given<Count<0>>,

    /// Response to requests beyond --max-in-flight: reset the connection, or answer 503 Service Unavailable
    #[arg(
        long,
        value_name = syntax::names::<OnOverload>(),
        env = "METADATA_PROXY_OVERLOAD",
        default_value = OnOverload::default().to_string()
    )]
    overload: Choice<OnOverload>,

    #[command(flatten)]
    #[serde(flatten)]
    pub(super) log: LogArgs,

    /// Log each token that is issued to a client: client address, account, scopes, outcome and expiry, but not the token
    #[arg(
        long,
        value_name = "true|false",
        env = "METADATA_PROXY_AUDIT",
        default_value = "false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_default_value = true
    )]
    audit: Switch,

    /// How long to wait for requests in flight after SIGTERM or SIGINT, such as 10s, 500ms or 1m
    #[arg(
        long,
        value_name = "DURATION",
        env = "METADATA_PROXY_DRAIN_TIMEOUT",
        default_value = format!("{}s", config::DRAIN_TIMEOUT.as_secs())
    )]
    drain_timeout: Given<Time>,

    /// Redirect metadata requests from this node's pods to the first --addr of each IP version that is not loopback while
    /// serving, as `redirect install --keep` does. Requires nft or iptables, root, and the capability `NET_ADMIN`
    #[arg(
        long,
        value_name = "true|false",
        env = "METADATA_PROXY_REDIRECT",
        default_value = "false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_default_value = true
    )]
    redirect: Switch,

    #[command(flatten)]
    #[serde(flatten)]
    opened: OpenedArgs,

    #[command(flatten)]
    #[serde(flatten)]
    pub(super) identity: IdentityArgs,
}

impl ServeArgs {
    /// The configuration, if there are no mistakes. `given` has the sources of the values.
    pub(super) fn resolve(self, given: &ArgMatches, mistakes: &mut Mistakes) -> Option<Config> {
        effect::check(given, mistakes);
        let addrs = mistakes.list(self.addr);
        let metrics_addr = self.admin.resolve(mistakes);
        let metrics_allowed_hosts = mistakes.list(self.metrics_allowed_host);
        let upstream = mistakes.value(self.upstream);
        let upstream = self.values.resolve(upstream, mistakes);
        let (policy, policy_mode) = self.policy.resolve(mistakes);
        let allowed_hosts = mistakes.list(self.allowed_host);
        let max_in_flight = mistakes.value(self.max_in_flight);
        let max_connections = mistakes.value(self.max_connections);
        let max_hanging = mistakes.value(self.max_hanging);
        let on_overload = mistakes.value(self.overload);
        let log = self.log.resolve(mistakes);
        let [reuse_port, audit, redirect] = [self.reuse_port, self.audit, self.redirect].map(|it| mistakes.switch(it));
        let drain_timeout = mistakes.value(self.drain_timeout);
        let opened = self.opened.resolve(mistakes);
        let identity = self.identity.resolve(mistakes);
        // Return early only here, after every mistake has been recorded.
        let (log_format, log) = log?;
        Some(Config {
            addrs,
            metrics_addr: metrics_addr?,
            metrics_allowed_hosts,
            upstream: upstream?,
            policy,
            policy_mode: policy_mode?,
            allowed_hosts,
            reuse_port,
            max_in_flight: max_in_flight?,
            max_connections: max_connections?,
            max_hanging: max_hanging?,
            on_overload: on_overload?,
            log_format,
            log,
            audit: if audit { Audit::On } else { Audit::Off },
            drain_timeout: drain_timeout?,
            redirect: redirect.then_some(opened),
            identity,
        })
    }

    /// The flags that result in this configuration.
    fn from_config(config: &Config) -> Self {
        let hosts = |hosts: &[String]| hosts.iter().cloned().map(Given::from_value).collect();
        Self {
            addr: config.addrs.iter().copied().map(Given::from_value).collect(),
            admin: AdminArgs::from_addr(config.metrics_addr),
            metrics_allowed_host: hosts(&config.metrics_allowed_hosts),
            upstream: Given::from_value(match &config.upstream {
                Upstream::Server(target) => Place::Server(target.clone()),
                Upstream::None(_) => Place::Nowhere,
            }),
            values: ValuesArgs::from_upstream(&config.upstream),
            policy: PolicyArgs::from_config(config),
            allowed_host: hosts(&config.allowed_hosts),
            reuse_port: Given::from_value(config.reuse_port),
            max_in_flight: Given::from_value(config.max_in_flight),
            max_connections: Given::from_value(config.max_connections),
            max_hanging: Given::from_value(config.max_hanging),
            overload: Choice::from_value(config.on_overload),
            log: LogArgs::from_config(config),
            audit: Given::from_value(config.audit == Audit::On),
            drain_timeout: Given::from_value(config.drain_timeout),
            redirect: Given::from_value(config.redirect.is_some()),
            opened: OpenedArgs::from_opened(config.redirect.as_ref()),
            identity: IdentityArgs::from_settings(config.identity.as_ref()),
        }
    }
}

/// All flags of the proxy in the order of the help, each with its current value as on the command line.
///
/// # Panics
///
/// Never: flags are texts, switches and lists of texts, which are always JSON.
pub fn flags(config: &Config) -> Vec<(String, String)> {
    let values =
        serde_json::to_value(ServeArgs::from_config(config)).expect("texts, switches and lists are always JSON");
    let command = ServeArgs::augment_args(clap::Command::default());
    let names = command.get_arguments().filter_map(clap::Arg::get_long);
    names.map(|name| (format!("--{name}"), as_typed(&values[name]))).collect()
}

/// Formats a flag's value as on the command line.
fn as_typed(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(as_typed).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
