//! [`Config`]: the resolved configuration as plain data. Its flags, with the defaults, are in `cli/serve.rs`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use proxy::layers::conceal::Mode;
use proxy::layers::rescue::OnOverload;
use proxy::policy::Choice;
use proxy::upstream::Upstream;
use redirect::{Opened, PROXY};
use telemetry::logging::{Format, Levels};

/// Each field is set by a flag, or by a group of flags.
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
    /// Log format, and log levels at the start.
    pub log: (Format, Levels),
    /// Whether to log each token that is issued.
    pub audit: bool,
    /// Maximum time to wait for requests in flight during shutdown.
    pub drain_timeout: Duration,
    /// Whether to redirect pods to the proxy, and which other routes stay open.
    pub redirect: Option<Opened>,
    /// Settings for identifying pods. `None` if all pods act as the node.
    pub identity: Option<identity::Settings>,
}

/// Where the redirect sends pods, and the same port, that of k8s-metadata-proxy, on loopback for the node itself.
pub const ADDRS: [SocketAddr; 3] = [PROXY[0], PROXY[1], SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 988)];

/// The metrics port of k8s-metadata-proxy, on loopback.
pub const METRICS_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 989);

#[cfg(test)]
impl Config {
    /// That of a proxy with these flags.
    pub(crate) fn of_flags(flags: &[&str]) -> Self {
        let args = ["gce-metadata-proxy"].iter().chain(flags).map(Into::into);
        let Ok(crate::cli::Command::Serve(config)) = crate::cli::parse(args) else { panic!("valid flags") };
        config
    }
}
