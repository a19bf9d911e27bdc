//! Flags of the proxy itself: from the command line to a [`Config`], and back for `/flagz`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::{ArgMatches, Args};
use serde::Serialize;
use serde_json::Value;

use super::admin::AdminArgs;
use super::effect;
use super::flag::{Flag, flags, unset};
use super::given::{Given, Mistakes};
use super::identity::IdentityArgs;
use super::log::LogArgs;
use super::opened::OwnRedirectArgs;
use super::policy::ChoiceArgs;
use super::syntax::{ArgExt as _, Choice, Count, HostName, Switch, Time};
use super::values::UpstreamArgs;
use crate::config::{self, Config};
use protocol::metadata::Target;
use proxy::layers::conceal::Mode;
use proxy::layers::rescue::OnOverload;
use proxy::upstream::Upstream;

flags! {
    /// The flags of the proxy, which set the fields of [`Config`]. clap and serde derive a flag's name from the field's. A comment
    /// below the help says why this default. A test requires a row in docs/configuration.md.
    #[derive(Debug, Args, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub(super) struct ServeArgs => Config {
        /// Address to listen on for pods. May be repeated. A link-local address, or one of `fd20:ce::/64`, need not be there yet: the
        /// redirect adds it. IPv6 of these is left out on a node without it
        #[arg(
            long,
            value_name = "HOST:PORT",
            env = "METADATA_PROXY_ADDR",
            value_delimiter = ',',
            default_values = config::ADDRS.map(|addr| addr.to_string())
        )]
        addr: Vec<Given<SocketAddr>> => addrs,

        #[command(flatten)]
        #[serde(flatten)]
        admin: AdminArgs => metrics_addr,

        /// Host name to accept on --metrics-addr, in addition to localhost and IP addresses; for example the node name that a
        /// scraper uses. May be repeated
        #[arg(long, value_name = "NAME", env = "METADATA_PROXY_METRICS_ALLOWED_HOST", value_delimiter = ',')]
        metrics_allowed_host: Vec<Given<HostName>> => metrics_allowed_hosts,

        #[command(flatten)]
        #[serde(flatten)]
        upstream: UpstreamArgs => upstream,

        #[command(flatten)]
        #[serde(flatten)]
        policy: ChoiceArgs => policy,

        /// Enforce the policy, or only log what it would refuse
        #[arg(long, env = "METADATA_PROXY_POLICY_MODE", choice = Mode::default())]
        policy_mode: Choice<Mode> => policy_mode,

        /// Host name to accept from clients, in addition to metadata.google.internal, metadata, metadata.goog, localhost and
        /// IP addresses. May be repeated
        #[arg(long, value_name = "NAME", env = "METADATA_PROXY_ALLOWED_HOST", value_delimiter = ',')]
        allowed_host: Vec<Given<HostName>> => allowed_hosts,

        /// Set `SO_REUSEPORT` on the listening sockets, so that a new process can start before the old one exits. Beside another
        /// process it listens once it has what pods request first. It ends after 8 s if the metadata server fails and has given no
        /// token that a pod needs, or nothing at all
        #[arg(long, env = "METADATA_PROXY_REUSE_PORT", switch = false)]
        reuse_port: Switch => reuse_port,

        /// Maximum concurrent requests to the metadata server. Excess requests are refused; answers from memory do not count.
        /// With both of its connections, a waiting request uses 25 KiB of memory, at most 68 KiB
        // The concurrency at which k8s-metadata-proxy was measured, and more requests than the 110 pods of a node send at once.
        #[arg(long, env = "METADATA_PROXY_MAX_IN_FLIGHT", count = 200)]
        max_in_flight: Given<Count<1>> => max_in_flight,

        /// Maximum concurrent client connections. At the limit, the connection that has made no progress for longest is closed,
        /// or the new one is reset. A connection uses 2 KiB of memory when idle and 14 KiB when active
        // Five per seat, for clients that keep idle connections. At 14 KiB each they take half of 25 MiB if all are active.
        #[arg(long, env = "METADATA_PROXY_MAX_CONNECTIONS", count = 1000)]
        max_connections: Given<Count<1>> => max_connections,

        /// Maximum concurrent `wait_for_change` requests to the metadata server. Clients that watch the same value share one.
        /// Excess requests get 503
        // The watched values of one node; its agents watch only a few.
        #[arg(long, env = "METADATA_PROXY_MAX_HANGING", count = 64)]
        max_hanging: Given<Count<0>> => max_hanging,

        /// Response to requests beyond --max-in-flight: reset the connection, or answer 503 Service Unavailable
        #[arg(long, env = "METADATA_PROXY_OVERLOAD", choice = OnOverload::default())]
        overload: Choice<OnOverload> => on_overload,

        #[command(flatten)]
        #[serde(flatten)]
        pub(super) log: LogArgs => log,

        /// Log which tokens are issued to whom, each once a minute with a count: client address, account, scopes, outcome and
        /// expiry, but not the token
        #[arg(long, env = "METADATA_PROXY_AUDIT", switch = false)]
        audit: Switch => audit,

        /// How long to wait for requests in flight after SIGTERM or SIGINT, such as 10s, 500ms or 1m
        // Longer than the upstream's deadline of 2.5 s, so that only hanging GETs are cut, and well within the 30 s that
        // Kubernetes allows.
        #[arg(long, value_name = "DURATION", env = "METADATA_PROXY_DRAIN_TIMEOUT", default_value = "10s")]
        drain_timeout: Given<Time> => drain_timeout,

        #[command(flatten)]
        #[serde(flatten)]
        redirect: OwnRedirectArgs => redirect,

        #[command(flatten)]
        #[serde(flatten)]
        identity: IdentityArgs => identity,
    }
}

impl ServeArgs {
    /// The configuration, if there are no mistakes. `given` has the sources of the values.
    pub(super) fn config(self, given: &ArgMatches, mistakes: &mut Mistakes) -> Option<Config> {
        effect::check(given, mistakes);
        let config = self.resolve(mistakes)?;
        let takes_over = config.identity.as_ref().is_some_and(|identity| identity.own_pod.is_some());
        mistakes.without("--handover", "--reuse-port", takes_over && !config.reuse_port);
        let operators = config.metrics_addr;
        for pods in config.addrs.iter().filter(|pods| collide(**pods, operators)) {
            mistakes.add(format!(
                "--addr {pods} and --metrics-addr {operators} are one address: pods' connections would reach the pages for \
                 operators; give one of them another port"
            ));
        }
        let listeners = config.addrs.iter().map(|addr| ("--addr", *addr)).chain([("--metrics-addr", operators)]);
        if let Upstream::Server(server) = &config.upstream {
            for (flag, own) in listeners.filter(|(_, own)| is_at(server, *own)) {
                mistakes.add(format!(
                    "--upstream http://{server} leads to this proxy itself ({flag} {own}), which would send each request to itself again and again; name \
                     the metadata server"
                ));
            }
        }
        for (place, one) in config.addrs.iter().enumerate() {
            // Those that the kernel would refuse as the address of another process, which is this one.
            let is_again =
                |other: &&SocketAddr| *other == one && one.port() != 0 || !config.reuse_port && collide(*one, **other);
            if let Some(other) = config.addrs[..place].iter().find(is_again) {
                mistakes.add(format!("--addr {other} and --addr {one} overlap; remove one"));
            }
        }
        Some(config)
    }
}

/// Whether a listener at one of these addresses may get connections for the other. The kernel refuses a second listener,
/// but not with `--reuse-port`, which shares the connections between both.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let [mine, others] = [one, other].map(|addr| addr.ip().to_canonical());
    // `[::]` includes IPv4, as listeners here do not set `IPV6_V6ONLY`.
    let includes = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    let is_same = mine == others || includes(mine, others) || includes(others, mine);
    is_same && one.port() == other.port() && one.port() != 0
}

/// Whether connections to this server come to a listener at this address, as far as the texts tell: `localhost` is the only name
/// whose address they say, and which addresses the machine has is unknown but for loopback.
fn is_at(server: &Target, own: SocketAddr) -> bool {
    let (host, port) = server.address();
    let is_here = |ip: IpAddr| {
        let ip = match ip.to_canonical() {
            // The kernel takes loopback for it.
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        collide(own, (ip, port).into()) && (ip.is_loopback() || !own.ip().is_unspecified())
    };
    if host.eq_ignore_ascii_case("localhost") {
        return is_here(Ipv4Addr::LOCALHOST.into()) || is_here(Ipv6Addr::LOCALHOST.into());
    }
    host.parse().is_ok_and(is_here)
}

/// The configuration without any flag or environment variable.
impl Default for Config {
    fn default() -> Self {
        unset::<ServeArgs>().resolve(&mut Mistakes::default()).expect("the defaults are valid")
    }
}

/// All flags of the proxy in the order of the help, each with its current value as on the command line.
///
/// # Panics
///
/// Never: flags are texts, switches and lists of texts, which are always JSON.
pub fn flags(config: &Config) -> Vec<(String, String)> {
    let values =
        serde_json::to_value(ServeArgs::showing(config.clone())).expect("texts, switches and lists are always JSON");
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
