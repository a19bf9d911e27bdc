//! [`Config`]: the resolved configuration, as plain data, and every default with its reason.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::layers::conceal::Mode;
use crate::layers::rescue::OnOverload;
use crate::layers::token_cache::Audit;
use crate::metadata::Target;
use crate::policy::Choice;
use crate::redirect::Opened;
use crate::server::Timeouts;
use crate::telemetry::logging::{self, Format, Levels};
use crate::telemetry::otlp;

/// Everything that a person can choose.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where pods are served.
    pub addrs: Vec<SocketAddr>,
    /// Where operators are served: metrics, health, readiness.
    pub metrics_addr: SocketAddr,
    /// Names under which operators are served, besides `localhost` and every address.
    pub metrics_allowed_hosts: Vec<String>,
    /// The metadata server.
    pub upstream: Target,
    /// What pods must not read.
    pub policy: Choice,
    /// Whether that is carried out.
    pub policy_mode: Mode,
    /// Names to be let in besides the well-known ones.
    pub allowed_hosts: Vec<String>,
    /// Whether another process may listen on the same addresses.
    pub reuse_port: bool,
    /// Most requests in flight, at least 1.
    pub max_in_flight: usize,
    /// Most connections of clients, at least 1.
    pub max_connections: usize,
    /// Most `wait_for_change` requests to the metadata server.
    pub max_hanging: usize,
    /// What becomes of a request above `max_in_flight`.
    pub on_overload: OnOverload,
    /// How log lines look.
    pub log_format: Format,
    /// Which log lines there are.
    pub log: Levels,
    /// Whether each token that is handed out is written down.
    pub audit: Audit,
    /// Whether requests are traced.
    pub otlp: otlp::Settings,
    /// How long requests in flight may take once the process is told to stop.
    pub drain_timeout: Duration,
    /// Whether pods are redirected here, and which ways round the proxy then stay open.
    pub redirect: Option<Opened>,
}

impl Config {
    /// Each flag with its value in force, as it would be typed.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        let list = |values: Vec<String>| values.join(",");
        let mut flags = vec![
            ("--addr", list(self.addrs.iter().map(ToString::to_string).collect())),
            ("--metrics-addr", self.metrics_addr.to_string()),
            ("--metrics-allowed-host", list(self.metrics_allowed_hosts.clone())),
            ("--upstream", format!("http://{}", self.upstream)),
            ("--policy", self.policy.source.to_string()),
            ("--policy-mode", self.policy_mode.to_string()),
            ("--recursive", self.policy.recursive.map(|recursive| recursive.to_string()).unwrap_or_default()),
            ("--allowed-host", list(self.allowed_hosts.clone())),
            ("--reuse-port", self.reuse_port.to_string()),
            ("--max-in-flight", self.max_in_flight.to_string()),
            ("--max-connections", self.max_connections.to_string()),
            ("--max-hanging", self.max_hanging.to_string()),
            ("--overload", self.on_overload.to_string()),
            ("--log-format", self.log_format.to_string()),
            // It may have been changed since the start.
            ("--log", logging::in_force().as_ref().unwrap_or(&self.log).to_string()),
            ("--audit", (self.audit == Audit::On).to_string()),
            ("--redirect", self.redirect.is_some().to_string()),
            ("--redirect-allow", self.redirect.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("--drain-timeout", format!("{}ms", self.drain_timeout.as_millis())),
        ];
        flags.extend(self.otlp.flags());
        flags
    }
}

/// The port that k8s-metadata-proxy has always had, on loopback: pods come by a redirect, nobody else can.
pub const ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 988);

/// Its neighbour, likewise.
pub const METRICS_ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 989);

/// The address of the metadata server on every machine of Google's; a name would have to be resolved first.
pub const UPSTREAM: &str = "http://169.254.169.254";

/// What clusters have been tested against for years.
pub const POLICY: &str = "compat";

/// What k8s-metadata-proxy was measured at, and more than the pods of one node (110) ask at once in earnest.
pub const MAX_IN_FLIGHT: &str = "200";

/// Five for each seat, for clients that keep theirs idle: with 14 KiB each they take half of 25 MiB when all are in use.
pub const MAX_CONNECTIONS: &str = "1000";

/// Watched values of one node; its agents watch a handful.
pub const MAX_HANGING: &str = "64";

/// Memory for large answers, in bytes. A tree of half of this can be redacted and watched; all custom metadata of a machine may
/// have 512 KiB, and a tree has the rest of the machine's metadata besides.
pub const LARGE_ANSWERS: usize = 1536 * 1024;

/// Operators are few: a scraper, a kubelet, a person or two.
pub const MAX_ADMIN_CONNECTIONS: usize = 32;

/// What changes, and what is wrong; not every request.
pub const LOG: &str = "info";

/// One request in a hundred: what is common shows within minutes, and a node that is asked a hundred times a second exports
/// no more than nine spans a second.
#[cfg(feature = "otlp")]
pub const OTLP_SAMPLE_RATIO: &str = "0.01";

/// Longer than the upstream's deadline of 2.5 s, so that only hanging GETs are cut, and well within the 30 s that
/// Kubernetes gives a pod.
pub const DRAIN_TIMEOUT: &str = "10s";

/// Not a choice yet. 10 s for a head is what slow networks need and slow attackers do not like; and an idle connection
/// outlives the minute that client libraries keep theirs for, lest they write into a closing one. Once the process is told
/// to end, a connection that is in use gets one more request in, so that none is sent into a closing connection.
pub const TIMEOUTS: Timeouts = Timeouts {
    header: Duration::from_secs(10),
    idle: Duration::from_secs(90),
    write: Duration::from_secs(30),
    room: Duration::from_millis(2500),
    last_call: Duration::from_secs(1),
};
