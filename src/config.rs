//! [`Config`]: the resolved configuration as plain data, and all defaults with their reasons.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use proxy::layers::conceal::Mode;
use proxy::layers::rescue::OnOverload;
use proxy::layers::token_cache::Audit;
use proxy::policy::Choice;
use proxy::upstream::Upstream;
use redirect::{Opened, PROXY};
use telemetry::logging::{Format, Levels};

#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on for pods.
    pub addrs: Vec<SocketAddr>,
    /// Address to listen on for operators: metrics, health, readiness.
    pub metrics_addr: SocketAddr,
    /// Host names accepted from operators, in addition to `localhost` and IP addresses.
    pub metrics_allowed_hosts: Vec<String>,
    /// The metadata server, or the values that are served without one.
    pub upstream: Upstream,
    /// The policy that determines what is concealed from pods.
    pub policy: Choice,
    /// Whether the policy is enforced or only logged.
    pub policy_mode: Mode,
    /// Host names accepted from clients, in addition to the well-known ones.
    pub allowed_hosts: Vec<String>,
    /// Whether another process may listen on the same addresses.
    pub reuse_port: bool,
    /// Maximum requests in flight, at least 1.
    pub max_in_flight: usize,
    /// Maximum client connections, at least 1.
    pub max_connections: usize,
    /// Maximum `wait_for_change` requests to the metadata server.
    pub max_hanging: usize,
    /// How to refuse a request beyond `max_in_flight`.
    pub on_overload: OnOverload,
    pub log_format: Format,
    pub log: Levels,
    /// Whether to log each token that is issued.
    pub audit: Audit,
    /// Maximum time to wait for requests in flight during shutdown.
    pub drain_timeout: Duration,
    /// Whether to redirect pods to the proxy, and which other routes stay open.
    pub redirect: Option<Opened>,
    /// Settings for identifying pods. `None` if all pods act as the node.
    pub identity: Option<identity::Settings>,
}

/// The configuration if no flags are given.
impl Default for Config {
    fn default() -> Self {
        Self {
            addrs: ADDRS.to_vec(),
            metrics_addr: METRICS_ADDR,
            metrics_allowed_hosts: Vec::new(),
            upstream: Upstream::at(UPSTREAM).expect("an http URL without a path"),
            policy: Choice::default(),
            policy_mode: Mode::default(),
            allowed_hosts: Vec::new(),
            reuse_port: false,
            max_in_flight: MAX_IN_FLIGHT,
            max_connections: MAX_CONNECTIONS,
            max_hanging: MAX_HANGING,
            on_overload: OnOverload::default(),
            log_format: Format::default(),
            log: LOG.parse().expect("a level"),
            audit: Audit::default(),
            drain_timeout: DRAIN_TIMEOUT,
            redirect: None,
            identity: None,
        }
    }
}

/// Where the redirect sends pods, and the same port, that of k8s-metadata-proxy, on loopback for the node itself.
pub const ADDRS: [SocketAddr; 3] = [PROXY[0], PROXY[1], SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 988)];

/// The metrics port of k8s-metadata-proxy, on loopback.
pub const METRICS_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 989);

/// The address of the metadata server on every GCE machine. A name would have to be resolved first.
pub const UPSTREAM: &str = "http://169.254.169.254";

/// The concurrency at which k8s-metadata-proxy was measured, and more requests than the 110 pods of a node send at once.
pub const MAX_IN_FLIGHT: usize = 200;

/// Five per seat, for clients that keep idle connections. At 14 KiB each they take half of 25 MiB if all are
/// active.
pub const MAX_CONNECTIONS: usize = 1000;

/// The watched values of one node; its agents watch only a few.
pub const MAX_HANGING: usize = 64;

/// Memory for large responses, in bytes. A tree of up to half this size can be redacted and watched. Custom
/// metadata of a machine is limited to 512 KiB, and a tree also contains its other metadata.
pub const LARGE_ANSWERS: usize = 1536 * 1024;

/// Logs changes and errors, not every request.
pub const LOG: &str = "info";

/// Longer than the upstream's deadline of 2.5 s, so that only hanging GETs are cut, and well within the 30 s
/// that Kubernetes allows.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
