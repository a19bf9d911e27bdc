//! [`App`]: binds sockets, assembles the proxy and runs it until shutdown.

use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::admin::statusz::Sources;
use crate::clock::BootTime;
use crate::config::{Config, MAX_ADMIN_CONNECTIONS, TIMEOUTS};
use crate::layers::conceal::ConcealLayer;
use crate::layers::hanging::Watches;
use crate::layers::in_flight::{MakeRoom, Seats};
use crate::layers::leaves::Leaves;
use crate::layers::token_cache::{Store, Tokens};
use crate::memory::{Budget, Demand, Pressure};
use crate::metadata::host::AllowedHosts;
use crate::policy::{LivePolicy, LoadError, Policy, Reloaded};
use crate::readiness::Readiness;
use crate::room::{CutUnread, Room};
use crate::server::{self, Connections, Drain, Server};
use crate::stack::{self, Parts};
use crate::telemetry::Metrics;
use crate::telemetry::history::History;
use crate::telemetry::metrics::Reload;
use crate::telemetry::otlp;
use crate::tokens::MetadataServer;
use crate::upstream::{Client, Forward, Health};
use crate::warm::WarmStart;

/// A proxy with bound sockets that is not serving yet.
#[derive(Debug)]
pub struct App {
    config: Config,
    policy: Arc<LivePolicy>,
    listeners: Vec<TcpListener>,
    admin: TcpListener,
}

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {addr} ({flag}): {error}; {}", remedy(.error))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The flag that specifies it.
        flag: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] LoadError),
    /// A socket that was passed in `LISTEN_FDS` cannot be used.
    #[error("cannot use the sockets passed in LISTEN_FDS: {0}; pass listening TCP sockets, or none")]
    Inherit(io::Error),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another address",
        io::ErrorKind::PermissionDenied => {
            "a port below 1024 requires root or CAP_NET_BIND_SERVICE; grant it, or choose a higher port"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
        _ => "choose another address",
    }
}

impl App {
    /// Binds all sockets. Sockets passed by systemd replace `--addr`.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub fn bind(config: Config) -> Result<Self, StartError> {
        let policy = Arc::new(LivePolicy::load(config.policy.clone())?);
        let share = config.reuse_port;
        if share {
            want_migration();
        }
        let bind = |addr, flag| server::bind(addr, share).map_err(|error| StartError::Listen { addr, flag, error });
        let mut listeners = server::inherited().map_err(StartError::Inherit)?;
        if listeners.is_empty() {
            listeners = config.addrs.iter().map(|addr| bind(*addr, "--addr")).collect::<Result<_, _>>()?;
        }
        let admin = bind(config.metrics_addr, "--metrics-addr")?;
        Ok(Self { config, policy, listeners, admin })
    }

    /// The addresses for pods. If the configured port is 0, with the assigned port.
    pub fn addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// The address for operators.
    pub fn metrics_addr(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until `shutdown` resolves, then finishes requests in flight within the drain timeout.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { config, policy, listeners, admin } = self;
        let metrics = Metrics::leak();
        let health = Arc::new(Health::default());
        let (tracer, exporter) = otlp::start(&config.otlp, metrics);
        let drain = Drain::default();
        let readiness = Readiness::new(Arc::clone(&health), drain.clone());
        let pressure = Arc::new(Pressure::of_this_process());
        let budget = budget(&config, &pressure);
        let connections =
            Arc::new(Connections::new(config.max_connections, budget.connections, Arc::clone(&pressure), metrics));
        let store = Arc::new(Store::new(budget.tokens, metrics));
        let seats = Seats::leak(config.max_in_flight);
        let room = Room::new(budget.answers, {
            let connections = Arc::clone(&connections);
            CutUnread::by(move |peers| connections.cut_unread_of(peers))
        });
        let watches = Arc::new(Watches::new(config.max_hanging, Arc::clone(&room)));
        let history = Arc::new(History::default());
        let admin_drain = serve_operators(
            admin,
            Admin::new(Sources {
                began: Instant::now(),
                config: config.clone(),
                policy: Arc::clone(&policy),
                readiness: readiness.clone(),
                health: Arc::clone(&health),
                metrics,
                history: Arc::clone(&history),
                seats,
                watches: Arc::clone(&watches),
                store: Arc::clone(&store),
                connections: Arc::clone(&connections),
                pressure: Arc::clone(&pressure),
            }),
        );

        let forward = Forward::new(Client::new(config.upstream, health, Arc::clone(&room), metrics));
        let tokens = Tokens::new(Arc::clone(&store), MetadataServer::new(forward.clone()));
        let leaves = Arc::new(Leaves::default());
        metrics.on_scrape({
            let gauges = gauges(&store, seats, &watches);
            let (pressure, connections) = (Arc::clone(&pressure), Arc::clone(&connections));
            move |metrics| {
                gauges(metrics);
                report_memory(metrics, &pressure, &connections);
            }
        });
        let stacks = Arc::new(stack::assemble(Parts {
            hosts: AllowedHosts::with(config.allowed_hosts),
            metrics,
            on_overload: config.on_overload,
            seats,
            make_room: {
                let connections = Arc::clone(&connections);
                MakeRoom::by(move || connections.cut_unread())
            },
            conceal: ConcealLayer::new(Arc::clone(&policy), config.policy_mode, room, metrics),
            watches,
            leaves: Arc::clone(&leaves),
            tokens: tokens.clone(),
            audit: config.audit,
            tracer,
            forward: forward.clone(),
        }));
        let mut accepting = JoinSet::new();
        for listener in listeners {
            announce(&listener, "serving pods");
            let (stacks, connections, drain) = (Arc::clone(&stacks), Arc::clone(&connections), drain.clone());
            let server = Server { stacks, timeouts: TIMEOUTS, connections, drain, metrics };
            accepting.spawn(server.run(listener));
        }
        want_files(config.max_connections + config.max_in_flight + config.max_hanging);
        readiness.serving();
        let mut behind = JoinSet::new();
        behind.spawn(WarmStart { forward, leaves, store, tokens }.run(readiness));
        behind.spawn(async move { follow(&policy, metrics).await });
        behind.spawn(async move { connections.tend().await });
        behind.spawn({
            let latency = metrics.latency;
            async move { history.run(latency).await }
        });

        shutdown.await;
        behind.abort_all();
        drain.close_doors();
        while accepting.join_next().await.is_some() {}
        let cut = drain.finish(config.drain_timeout).await;
        if cut > 0 {
            tracing::warn!(
                connections = cut,
                "drain timeout of {:?} reached with requests in flight; closing their connections",
                config.drain_timeout
            );
        }
        // After the last request, and while metrics are still served.
        exporter.finish().await;
        admin_drain.finish(Duration::ZERO).await;
    }
}

/// Follows the policy's file: counts and logs what comes of its changes.
async fn follow(live: &LivePolicy, metrics: &Metrics) {
    let in_force = |policy: &Policy| metrics.policy_in_force(policy.name(), policy.version(), policy.hash());
    in_force(&live.current());
    let report = |reloaded: Reloaded<'_>| match reloaded {
        Reloaded::Applied(policy) => {
            let (name, version, hash) = (policy.name(), policy.version(), policy.hash());
            tracing::info!(name, version, hash, rules = policy.rule_count(), "policy reloaded");
            in_force(policy);
            metrics.policy_reloaded(Reload::Applied);
        }
        Reloaded::Rejected { error, in_force } => {
            tracing::error!(%error, in_force = in_force.name(), "invalid policy file; keeping the previous policy");
            metrics.policy_reloaded(Reload::Rejected);
        }
    };
    live.follow(report).await;
}

/// Divides the memory limit.
fn budget(config: &Config, pressure: &Pressure) -> Budget {
    let exchanges = config.max_in_flight + config.max_hanging;
    let budget = Budget::new(pressure.limit(), Demand { connections: config.max_connections, exchanges });
    tracing::info!(
        limit = pressure.limit(),
        connections = budget.connections,
        tokens = budget.tokens,
        answers = budget.answers,
        "memory budget, in bytes"
    );
    budget
}

/// Warns if connections may be reset during a takeover. When a listener closes, the kernel resets connections
/// that are being opened, unless it may migrate them to another listener of the same address (Linux 5.14 and
/// later; docs.kernel.org, ip-sysctl).
fn want_migration() {
    let switch = fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req");
    if switch.is_ok_and(|value| value.trim() == "0") {
        tracing::warn!(
            "net.ipv4.tcp_migrate_req is 0: connections that are being opened may be reset when another process takes over \
             with --reuse-port; set it to 1 on the node"
        );
    }
}

/// Raises the open file limit to what the limits need: one per client and upstream connection, and a few
/// others.
fn want_files(connections: usize) {
    let wanted = u64::try_from(connections + MAX_ADMIN_CONNECTIONS + 64).unwrap_or(u64::MAX);
    match rlimit::increase_nofile_limit(wanted) {
        Ok(allowed) if allowed >= wanted => {}
        Ok(allowed) => tracing::warn!(
            allowed,
            wanted,
            "the open file limit is too low for --max-connections, --max-in-flight and --max-hanging; raise the hard limit \
             (ulimit -Hn) or lower the flags"
        ),
        Err(error) => tracing::warn!(%error, wanted, "cannot raise the open file limit"),
    }
}

/// Serves operators until the process ends, so that the drain can be observed.
fn serve_operators(listener: TcpListener, admin: Admin) -> Drain {
    announce(&listener, "serving operators");
    let drain = Drain::default();
    // Requests of operators are not counted with those of pods.
    let metrics = Metrics::leak();
    let connections = Arc::new(Connections::new(MAX_ADMIN_CONNECTIONS, usize::MAX, Arc::default(), metrics));
    let server = Server {
        stacks: Arc::new(admin.into_stacks()),
        timeouts: TIMEOUTS,
        connections,
        drain: drain.clone(),
        metrics,
    };
    tokio::spawn(server.run(listener));
    drain
}

/// Updates the memory gauges.
fn report_memory(metrics: &Metrics, pressure: &Pressure, connections: &Connections) {
    let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let usage = pressure.usage().unwrap_or_default();
    let (used, limit) = connections.weight();
    let memory = &metrics.memory;
    memory.usage.set(gauge(usage.current));
    memory.limit.set(gauge(usage.limit));
    memory.level.set(pressure.level() as i64);
    memory.connections.set(gauge(used as u64));
    memory.connections_limit.set(gauge(limit as u64));
}

/// Updates gauges whose values are kept elsewhere.
fn gauges(store: &Arc<Store>, seats: &'static Seats, watches: &Arc<Watches>) -> impl Fn(&Metrics) + use<> {
    let (store, watches) = (Arc::clone(store), Arc::clone(watches));
    let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    move |metrics| {
        store.report(metrics, BootTime::now());
        metrics.in_flight.set(gauge(seats.taken()));
        metrics.in_flight_peak.set(gauge(seats.take_peak()));
        metrics.in_flight_limit.set(gauge(seats.limit()));
        metrics.hanging.set(gauge(watches.count()));
    }
}

fn announce(listener: &TcpListener, what: &str) {
    match listener.local_addr() {
        Ok(addr) => tracing::info!(%addr, "{what}"),
        Err(error) => tracing::warn!(%error, "{what}, on an unknown address"),
    }
}
