//! [`App`]: binds sockets, assembles the proxy and runs it until shutdown.

mod describing;
mod files;
mod following;

use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::admin::Admin;
use crate::config::Config;
use crate::handover;
use crate::shared::{Identifying, Shared, State};
use crate::stack;
use crate::warm::WarmStart;
use http_client::secure::CaError;
use identity::cluster::{Cluster, ClusterError};
use identity::kin::{self, Kin};
use identity::pods::{ProcError, Sandboxes, Scans};
use identity::tokens::Google;
use operator::pages;
use proxy::layers::conceal::PolicyMetrics;
use proxy::layers::leaves::Leaves;
use proxy::memory::Pressure;
use proxy::policy::{A_RESTART_FAILS, LivePolicy, LoadError, Policy, Reloaded};
use proxy::server::TIMEOUTS;
use proxy::server::{self, Bodies, Door, Drain, Listen, Server};
use proxy::upstream::Upstream;
use redirect::{InstalledRedirect, Keeper, Redirect};
use telemetry::{Registry, table};

pub use files::allow_files;

/// A proxy with bound sockets that is not serving yet.
#[derive(Debug)]
pub struct App {
    config: Config,
    policy: Arc<LivePolicy>,
    /// The doors for each address for pods. Empty while another process serves pods there and this one cannot yet.
    doors: Vec<Vec<Door>>,
    admin: Door,
    redirect: Option<InstalledRedirect>,
    scans: Option<Scans>,
    cluster: Option<Cluster>,
    google: Option<Google>,
}

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {addr} ({flag}): {error}; {}", remedy(.error))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The flag that specifies it.
        flag: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// There is no address for pods.
    #[error(
        "none of --addr can be served here: {}. Give an IPv4 address, or turn on IPv6 in the node's kernel",
        if .0.is_empty() { "there is none".to_owned() } else { format!("without IPv6, there is no {}", listed(.0)) }
    )]
    Nowhere(Vec<SocketAddr>),
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] LoadError),
    /// Another process serves pods here, and this process could not take over.
    #[error(
        "the API server did not list this node's pods within {} s. Another process serves pods on this address and goes on; \
         this one ends, to be started again",
        SUCCESSION.as_secs()
    )]
    NotAble,
    /// The node's processes cannot be read.
    #[error("--host-proc: {0}")]
    Proc(#[from] ProcError),
    /// The thread that scans the processes cannot be started.
    #[error("cannot start the thread that looks at the node's processes: {0}; allow the container more processes")]
    Thread(io::Error),
    /// The certificate authorities for Google's servers cannot be read.
    #[error("--google-ca: {0}")]
    GoogleCa(#[from] CaError),
}

fn listed(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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

/// Maximum time for a process to learn the node's pods while another process serves them.
///
/// With host networking both use the same port for operators, and the kernel lets either process answer a probe. So if this
/// process stayed, its pod could seem ready because of the other process's answers, and the other process would then be
/// stopped. And the other pod would seem unready after three 503 answers of this process in a row. Three probes take 10 s:
/// this process ends before that.
const SUCCESSION: Duration = Duration::from_secs(8);

impl App {
    /// Binds all sockets, and redirects pods to them, if configured. If that is impossible, closes the metadata server to pods, unless
    /// an earlier redirect is in force.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime.
    pub async fn prepare(config: Config) -> Result<Self, Box<dyn std::error::Error>> {
        let (opened, addrs) = (config.redirect.clone(), config.addrs.clone());
        let connected = async {
            let mut app = Self::bind(config).await?;
            app.connect_cluster().await?;
            Ok::<_, Box<dyn std::error::Error>>(app)
        };
        match (connected.await, opened) {
            (Ok(mut app), Some(opened)) => {
                app.redirect = Some(Redirect::install_to_first(&app.addrs()?, opened).await?);
                Ok(app)
            }
            (Err(error), Some(opened)) => {
                Err(format!("{error}. {}", Redirect::close_unless_in_force(&addrs, opened).await).into())
            }
            (connected, None) => connected,
        }
    }

    /// Binds all sockets.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        if served(&config).is_empty() {
            return Err(StartError::Nowhere(config.addrs));
        }
        let policy = Arc::new(LivePolicy::load(config.policy.clone()).await?);
        let share = config.reuse_port;
        if share {
            want_migration();
        }
        let cannot = |addr, flag| move |error| StartError::Listen { addr, flag, error };
        let is_successor = share && config.identity.is_some() && served(&config).into_iter().any(server::is_taken);
        let doors = if is_successor { Vec::new() } else { open_doors(&config)? };
        let addr = config.metrics_addr;
        let admin = server::bind(addr, share).map_err(cannot(addr, "--metrics-addr"))?;
        let identity = config.identity.as_ref();
        let sandboxes = identity.map(|settings| Sandboxes::open(&settings.host_proc)).transpose()?;
        let scans = sandboxes.map(Scans::start).transpose().map_err(StartError::Thread)?;
        let google = {
            let federation = identity.and_then(|settings| settings.federation.as_ref());
            federation.map(Google::new).transpose()?
        };
        introduce(&config, &policy.current());
        Ok(Self { policy, doors, admin, redirect: None, scans, cluster: None, google, config })
    }

    /// The addresses for pods, with the assigned port if the configured port is 0.
    pub fn addrs(&self) -> io::Result<Vec<SocketAddr>> {
        if self.doors.is_empty() {
            return Ok(served(&self.config));
        }
        self.doors.iter().filter_map(|doors| doors.first()).map(Door::local_addr).collect()
    }

    pub fn metrics_addr(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Reads the credential for the API server, if pods are identified. Sends no requests yet.
    async fn connect_cluster(&mut self) -> Result<(), ClusterError> {
        if let Some(settings) = &self.config.identity {
            self.cluster = Some(Cluster::connect(&settings.cluster).await?);
        }
        Ok(())
    }

    /// Serves until `shutdown` resolves, then finishes requests in flight within the drain timeout. Fails if another
    /// process serves pods, and this process cannot take over.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), StartError> {
        let cluster = self.cluster.clone();
        let identifying = self.identifying();
        let addrs = self.addrs().unwrap_or_default();
        let Self { config, policy, doors, admin, redirect, .. } = self;
        let registry = Registry::of_this_process();
        let pressure = Arc::new(Pressure::of_this_process());
        let shared = Shared::new(config, policy, pressure, registry.clone(), identifying);
        let keep = |installed| {
            let metrics = redirect::Metrics {
                dropped: registry.counter(&table::REDIRECT_DROPPED),
                spoofed: registry.gauge_vec(&table::REDIRECT_SPOOFED),
                restored: registry.counter_vec(&table::REDIRECT_RESTORED),
            };
            let keeper = Keeper::of_installed(installed, metrics);
            // A process keeps only one redirect, so this is set once.
            let _ = shared.redirect.set(keeper.standing());
            AbortOnDropHandle::new(tokio::spawn(keeper.run()))
        };
        let _redirecting = redirect.map(keep);
        let admin_drain = serve_operators(admin, &shared);
        let mut background = start_background(&shared);
        let kin = open_kin(&shared, cluster.as_ref())?;
        if kin.is_none() || !doors.is_empty() {
            shared.handover.is_alone();
        }
        if let Some(cluster) = cluster {
            following::follow(cluster, &shared, &mut background);
        }

        let mut accepting = JoinSet::new();
        let served = async {
            let doors = if doors.is_empty() { take_over(&shared, kin.as_deref()).await? } else { doors };
            serve_pods(doors, &shared, &mut accepting);
            if let Some(kin) = kin {
                let shared = Arc::clone(&shared);
                background.spawn(async move { match handover::give(kin, shared).await {} });
            }
            background.spawn(Arc::clone(&shared.door_probe).run(addrs));
            std::future::pending().await
        };
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            ended = served => ended,
        };
        drop(background);
        drain(&shared, accepting).await;
        admin_drain.finish(Duration::ZERO).await;
        ended
    }

    /// The parts that identify pods and issue their tokens. `None` if all pods act as the node.
    fn identifying(&mut self) -> Option<Identifying> {
        let scans = self.scans.take()?;
        Some(Identifying { scans, exchange: self.cluster.clone().zip(self.google.take()) })
    }
}

/// Logs the settings that determine what pods get. It is the first line of a log that is sent in for support.
fn introduce(config: &Config, policy: &Policy) {
    let identity = match &config.identity {
        None => "off".to_owned(),
        Some(settings) => match &settings.federation {
            None => "no tokens".to_owned(),
            Some(federation) => federation.sts_audience(),
        },
    };
    let upstream = match &config.upstream {
        Upstream::Server(target) => format!("http://{target}"),
        Upstream::None(_) => "none".to_owned(),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        policy = policy.name(),
        policy_version = policy.version(),
        policy_mode = %config.policy_mode,
        upstream,
        workload_identity = identity,
        redirect = config.redirect.is_some(),
        "starting"
    );
}

/// Opens the doors for each address for pods.
fn open_doors(config: &Config) -> Result<Vec<Vec<Door>>, StartError> {
    let bind = |(addr, how)| {
        server::bind_queues(addr, how).map_err(|error| StartError::Listen { addr, flag: "--addr", error })
    };
    let may_come = |addr: SocketAddr| redirect::is_added(addr.ip());
    let has_ipv6 = redirect::has_ipv6();
    let is_used = |addr: SocketAddr| addr.is_ipv4() || has_ipv6 || !may_come(addr);
    Listen::on(&served(config), config.reuse_port, may_come, is_used).into_iter().map(bind).collect()
}

/// The addresses for pods. The redirect sends them to that for IPv6 once the node has IPv6, which may be later; where the kernel has
/// none, it is left out.
fn served(config: &Config) -> Vec<SocketAddr> {
    let may_have_ipv6 = redirect::may_have_ipv6();
    let is_served = |addr: &SocketAddr| addr.is_ipv4() || may_have_ipv6 || !redirect::is_added(addr.ip());
    config.addrs.iter().copied().filter(is_served).collect()
}

/// Opens doors beside those of another process once the node's pods are known. Until then that process gets all
/// connections, because it can serve them and this one cannot.
async fn take_over(shared: &Shared, kin: Option<&Kin>) -> Result<Vec<Vec<Door>>, StartError> {
    tracing::info!("another process serves pods; serving beside it once the node's pods are known");
    let deadline = Instant::now() + SUCCESSION;
    if let Some(identity) = &shared.identity {
        let known = identity.pods().known();
        timeout_at(deadline, known).await.map_err(|_| StartError::NotAble)?;
    }
    if let Some(kin) = kin {
        handover::take(kin, shared, deadline).await;
    }
    open_doors(&shared.config)
}

/// Attests the predecessor and the successor, if tokens are to be handed over.
fn open_kin(shared: &Shared, cluster: Option<&Cluster>) -> Result<Option<Arc<Kin>>, StartError> {
    let (Some(settings), Some(identity), Some(cluster)) = (&shared.config.identity, &shared.identity, cluster) else {
        return Ok(None);
    };
    let Some(own) = settings.own_pod else { return Ok(None) };
    if let Err(why) = kin::is_supported() {
        shared.handover.settle(State::Unsupported(why.to_string()));
        return Ok(None);
    }
    let kin = Kin::open(&settings.host_proc, own, Arc::clone(identity.pods()), cluster.clone())?;
    Ok(Some(Arc::new(kin)))
}

/// Accepts pods' connections until the drain begins.
fn serve_pods(doors: Vec<Vec<Door>>, shared: &Arc<Shared>, accepting: &mut JoinSet<()>) {
    let config = &shared.config;
    let open = doors.iter().map(Vec::len).sum::<usize>();
    files::want(open + config.max_connections + config.max_in_flight + config.max_hanging);
    let stacks = Arc::new(stack::assemble(Arc::clone(shared)));
    let federation = config.identity.as_ref().and_then(|identity| identity.federation.as_ref());
    let bodies = federation.is_some_and(|federation| federation.bound_tokens).then(Arc::<Bodies>::default);
    doors.iter().filter_map(|doors| doors.first()).for_each(|door| announce(door, "serving pods"));
    for (number, door) in doors.into_iter().flatten().enumerate() {
        let server = Server {
            stacks: Arc::clone(&stacks),
            timeouts: TIMEOUTS,
            connections: Arc::clone(&shared.limits.connections),
            drain: shared.drain.clone(),
            reads_interfaces: shared.identity.is_some(),
            bodies: bodies.clone(),
        };
        accepting.spawn(server.run(number, door));
    }
    shared.readiness.serving();
}

/// Starts the background tasks, which end when the returned set is dropped.
fn start_background(shared: &Arc<Shared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    match shared.config.upstream {
        Upstream::Server(_) => {
            tasks.spawn(WarmStart::new(shared).run(shared.readiness.clone()));
        }
        // All values are in memory already.
        Upstream::None(_) => shared.readiness.warm(),
    }
    let concealment = Arc::clone(&shared.concealment);
    let leaves = Arc::clone(&shared.leaves);
    tasks.spawn(async move { follow(concealment.policy(), concealment.metrics(), &leaves).await });
    let connections = Arc::clone(&shared.limits.connections);
    tasks.spawn(async move { connections.tend().await });
    if let Some(identity) = shared.identity.clone() {
        tasks.spawn(identity.tend());
    }
    let measured = Arc::clone(shared);
    tasks.spawn(async move { measured.measures.run().await });
    tasks
}

/// Accepts no more connections, and gives requests in flight the drain timeout. Requests that wait for a change could take hours,
/// so they are answered at once. A client whose request is not answered in time is reset, because it repeats that; it does not
/// repeat a request after which the connection just ends.
async fn drain(shared: &Shared, mut accepting: JoinSet<()>) {
    shared.drain.close_doors();
    while accepting.join_next().await.is_some() {}
    shared.limits.watches.close();
    let timeout = shared.config.drain_timeout;
    let cut = shared.drain.clone().finish(timeout).await;
    if cut > 0 {
        tracing::warn!(
            connections = cut,
            "drain timeout of {timeout:?} reached with requests in flight; resetting their connections"
        );
        shared.limits.connections.cut_all();
    }
}

/// Follows the policy file. Logs and counts its changes.
async fn follow(live: &LivePolicy, metrics: &PolicyMetrics, leaves: &Arc<Leaves>) {
    metrics.in_force(&live.current());
    let report = |reloaded: Reloaded<'_>| {
        metrics.reloaded(&reloaded);
        match reloaded {
            Reloaded::Applied(policy) => {
                let (name, version, hash) = (policy.name(), policy.version(), policy.hash());
                tracing::info!(name, version, hash, rules = policy.rule_count(), "policy reloaded");
                // The new policy may show more of the trees. What it conceals is left out of the cached trees, too.
                let leaves = Arc::clone(leaves);
                tokio::spawn(async move { leaves.refresh_trees().await });
            }
            Reloaded::Rejected { error, in_force } => {
                let in_force = in_force.name();
                tracing::error!(%error, in_force, "invalid policy file; keeping the previous policy; {A_RESTART_FAILS}");
            }
        }
    };
    live.follow(report).await;
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

/// Serves operators until the process ends, so that the drain can be observed. Their requests are counted separately from
/// those of pods.
fn serve_operators(door: Door, shared: &Arc<Shared>) -> Drain {
    announce(&door, "serving operators");
    let drain = Drain::default();
    tokio::spawn(pages::server(Admin::new(Arc::clone(shared)).into_stacks(), drain.clone()).run(0, door));
    drain
}

fn announce(door: &Door, what: &str) {
    match door.local_addr() {
        Ok(addr) => tracing::info!(%addr, "{what}"),
        Err(error) => tracing::warn!(%error, "{what}, on an unknown address"),
    }
}
