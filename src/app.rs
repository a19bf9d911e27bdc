//! [`App`]: sockets bound, everything assembled, run until told to stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::admin::{Admin, Readiness};
use crate::config::{Config, TIMEOUTS};
use crate::layers::leaves::Leaves;
use crate::layers::token_cache::{Store, Tokens};
use crate::metadata::host::AllowedHosts;
use crate::server::{self, Drain};
use crate::stack::{self, Parts};
use crate::telemetry::Metrics;
use crate::tokens::MetadataServer;
use crate::upstream::{Client, Forward, Health};
use crate::warm::WarmStart;

/// A proxy that has its sockets and has not begun to serve.
#[derive(Debug)]
pub struct App {
    config: Config,
    listeners: Vec<TcpListener>,
    admin: TcpListener,
}

/// Why the start failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} ({flag}): {error}; {}", remedy(.error))]
pub struct StartError {
    addr: SocketAddr,
    flag: &'static str,
    error: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that listens there, or choose another address",
        io::ErrorKind::PermissionDenied => {
            "a port below 1024 needs root or CAP_NET_BIND_SERVICE; grant it, or choose a higher port"
        }
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address; choose another",
        _ => "choose another address",
    }
}

impl App {
    /// Takes the sockets, all of them or none.
    pub fn bind(config: Config) -> Result<Self, StartError> {
        let bind = |addr, flag| server::bind(addr).map_err(|error| StartError { addr, flag, error });
        let listeners = config.addrs.iter().map(|addr| bind(*addr, "--addr")).collect::<Result<_, _>>()?;
        let admin = bind(config.metrics_addr, "--metrics-addr")?;
        Ok(Self { config, listeners, admin })
    }

    /// Where pods are served; with a port of 0 in the configuration, the port that was given.
    pub fn addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Where operators are served.
    pub fn metrics_addr(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until `shutdown` resolves, then finishes what is in flight within the drain time-out.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::default());
        let drain = Drain::default();
        let readiness = Readiness::new(Arc::clone(&health), drain.clone());
        let forward = Forward::new(Client::new(self.config.upstream, health, Arc::clone(&metrics)));
        let store = Arc::new(Store::new(Arc::clone(&metrics)));
        let tokens = Tokens::new(Arc::clone(&store), MetadataServer::new(forward.clone()));
        let leaves = Arc::new(Leaves::default());
        let stack = stack::assemble(Parts {
            hosts: AllowedHosts::with(self.config.allowed_hosts),
            metrics: Arc::clone(&metrics),
            leaves: Arc::clone(&leaves),
            tokens: tokens.clone(),
            forward: forward.clone(),
        });
        metrics.on_scrape({
            let store = Arc::clone(&store);
            move |metrics| store.report(metrics, Instant::now())
        });

        // Operators are served to the very end: that is when they look.
        let admin_drain = Drain::default();
        let admin = Admin::new(Arc::clone(&metrics), readiness.clone());
        let admin_metrics = Arc::new(Metrics::new());
        announce(&self.admin, "serving operators");
        tokio::spawn(server::run(self.admin, admin, TIMEOUTS, admin_drain.clone(), admin_metrics));
        for listener in self.listeners {
            announce(&listener, "serving pods");
            tokio::spawn(server::run(listener, stack.clone(), TIMEOUTS, drain.clone(), Arc::clone(&metrics)));
        }
        readiness.serving();
        let warm_start = tokio::spawn(WarmStart { forward, leaves, store, tokens }.run(readiness));

        shutdown.await;
        warm_start.abort();
        let cut = drain.finish(self.config.drain_timeout).await;
        if cut > 0 {
            tracing::warn!(
                connections = cut,
                "requests were still in flight after the drain time-out of {:?} and are cut",
                self.config.drain_timeout
            );
        }
        admin_drain.finish(std::time::Duration::ZERO).await;
    }
}

fn announce(listener: &TcpListener, what: &str) {
    match listener.local_addr() {
        Ok(addr) => tracing::info!(%addr, "{what}"),
        Err(error) => tracing::warn!(%error, "{what} on an address that the system does not tell"),
    }
}
