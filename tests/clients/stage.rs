//! The environment of a test: a mock metadata server, and the real binary in front of it.

use std::net::SocketAddr;

use mock::Handle;

use crate::support::{Binary, get, upstream};

/// A proxy and its upstream.
pub(crate) struct Stage {
    pub(crate) mock: Handle,
    /// The proxy's process.
    pub(crate) proxy: Binary,
    /// The proxy's address for pods.
    pub(crate) pods: SocketAddr,
    operators: SocketAddr,
}

/// Counts so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Requests of clients, including those that were reset.
    pub(crate) requests: u64,
    /// Connections of clients.
    pub(crate) connections: u64,
    /// Requests that were refused for lack of a seat.
    pub(crate) sheds: u64,
    /// Requests to the upstream.
    pub(crate) upstream: u64,
}

impl Stage {
    /// A proxy that has just begun to listen, with empty caches.
    pub(crate) async fn cold(mock: Handle, args: &[&str]) -> Self {
        let (proxy, pods, operators) = start(&mock, "127.0.0.1:0", args).await;
        Self { mock, proxy, pods, operators }
    }

    /// A proxy that is ready.
    pub(crate) async fn ready(args: &[&str]) -> Self {
        let mut stage = Self::cold(upstream().await, args).await;
        stage.until_ready().await;
        stage
    }

    async fn until_ready(&mut self) {
        self.proxy.stderr_line("cache warmed up: the default token and common values are cached").await;
    }

    /// A second proxy on the same address, ready: it serves pods once it is warm.
    pub(crate) async fn successor(&self, args: &[&str]) -> Self {
        let (proxy, pods, operators) = start(&self.mock, &self.pods.to_string(), args).await;
        Self { mock: self.mock.clone(), proxy, pods, operators }
    }

    /// Counts so far.
    pub(crate) async fn counts(&self) -> Counts {
        let page = get(self.operators, "/metrics").await.body;
        // Summed over all labels, or only for the label that is part of the name.
        let sum = |series: &str| -> u64 {
            let values = page.lines().filter_map(|line| line.strip_prefix(series)?.rsplit(' ').next());
            values.filter_map(|value| value.parse::<u64>().ok()).sum()
        };
        let resets = sum("metadata_proxy_resets_total ");
        Counts {
            requests: sum("metadata_proxy_requests_total{") + resets,
            connections: sum("metadata_proxy_connections_total "),
            sheds: sum("metadata_proxy_sheds_total{reason=\"in_flight\"}"),
            upstream: self.mock.requests(),
        }
    }
}

async fn start(mock: &Handle, addr: &str, args: &[&str]) -> (Binary, SocketAddr, SocketAddr) {
    let upstream = format!("http://{}", mock.addr());
    let own = ["--addr", addr, "--metrics-addr=127.0.0.1:0", "--upstream", &upstream, "--log=info"];
    let mut proxy = Binary::start(&[&own, args].concat());
    let operators = Binary::addr_in(&proxy.stderr_line("serving operators").await);
    let pods = Binary::addr_in(&proxy.stderr_line("serving pods").await);
    (proxy, pods, operators)
}

impl Counts {
    /// Differences from an earlier count.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            connections: self.connections - before.connections,
            sheds: self.sheds - before.sheds,
            upstream: self.upstream - before.upstream,
        }
    }
}
