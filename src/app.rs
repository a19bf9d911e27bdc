//! [`App`]: binds sockets, assembles the proxy and runs it until shutdown.

mod background;
mod describing;
mod doors;
mod files;
mod following;
mod serving;
mod start_error;
mod succession;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use self::succession::{has_predecessor, take_over};
use crate::config::Config;
use crate::handover;
use crate::shared::{Identifying, Shared, State};
use identity::cluster::{Cluster, ClusterError};
use identity::kin::{self, Kin};
use identity::pods::{Sandboxes, Scans};
use identity::tokens::Google;
use proxy::layers::conceal::Mode;
use proxy::memory::Pressure;
use proxy::policy::{LivePolicy, Policy};
use proxy::server::Door;
use proxy::upstream::Upstream;
use redirect::{InstalledRedirect, Keeper, Redirect};
use telemetry::{Registry, logging, table};

pub use files::allow_files;
pub use start_error::StartError;

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
        if doors::served(&config).is_empty() {
            return Err(StartError::Nowhere(config.addrs));
        }
        let policy = Arc::new(LivePolicy::load(config.policy.clone()).await?);
        let share = config.reuse_port;
        if share {
            doors::want_migration();
        }
        let is_successor = share && has_predecessor(&config);
        let doors = if is_successor { Vec::new() } else { doors::open(&config)? };
        let admin = operator::pages::bind(config.metrics_addr, share, "--metrics-addr")?;
        let identity = config.identity.as_ref();
        let sandboxes = identity.map(|settings| Sandboxes::open(&settings.host_proc)).transpose()?;
        let sandboxes = sandboxes.map(|found| found.kept_in(identity.and_then(|set| set.state_dir.as_deref())));
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
            return Ok(doors::served(&self.config));
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
    /// process serves pods, and this process cannot take over, or if one of its tasks panics.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), StartError> {
        self.run_beside(JoinSet::new(), shutdown).await
    }

    /// The same, beside these tasks.
    async fn run_beside(
        mut self,
        mut background: JoinSet<()>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), StartError> {
        let cluster = self.cluster.clone();
        let identifying = self.identifying();
        let addrs = self.addrs().unwrap_or_default();
        let Self { config, policy, doors, admin, redirect, .. } = self;
        let registry = Registry::of_this_process();
        let pressure = Arc::new(Pressure::of_this_process());
        let shared = Shared::new(config, policy, pressure, registry.clone(), identifying);
        // To the end of the drain: requests wait for what the API server says of a pod that has just begun.
        let mut following = JoinSet::new();
        if let Some(installed) = redirect {
            let keeper = Keeper::of_installed(installed, redirect_metrics(&registry));
            // A process keeps only one redirect, so this is set once.
            let _ = shared.redirect.set(keeper.standing());
            following.spawn(keeper.run());
        }
        let admin_drain = serving::serve_operators(admin, &shared, &mut following);
        background::start(&shared, &mut background);
        // In the drain clients may fill the memory as well.
        let connections = Arc::clone(&shared.limits.connections);
        following.spawn(async move { connections.tend().await });
        let kin = open_kin(&shared, cluster.as_ref())?;
        if kin.is_none() || !doors.is_empty() {
            shared.handover.is_alone();
        }
        if let Some(cluster) = cluster {
            following::follow(cluster, &shared, &mut following, &mut background);
        }

        let mut accepting = JoinSet::new();
        let served = async {
            let doors = if doors.is_empty() { take_over(&shared, kin.as_deref()).await? } else { doors };
            serving::serve_pods(doors, &shared, &mut accepting);
            if let Some(kin) = kin {
                let shared = Arc::clone(&shared);
                background.spawn(async move { match handover::give(kin, shared).await {} });
            }
            background.spawn(Arc::clone(&shared.door_probe).run(addrs));
            // Without the task, pods would get what is old, or nothing, from a process that seems well.
            Err(StartError::Panicked(tokio::select! {
                panicked = background::panicked(&mut background) => panicked,
                panicked = background::panicked(&mut following) => panicked,
                panicked = background::panicked(&mut accepting) => panicked,
            }))
        };
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            ended = served => ended,
        };
        drop(background);
        // Otherwise the kernel lets this process answer probes of the one that replaces it, which may be at the same address: with 503,
        // for as long as the drain takes.
        if shared.config.reuse_port {
            admin_drain.close_doors();
        }
        serving::drain(&shared, accepting).await;
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
    if config.policy_mode == Mode::Audit {
        tracing::warn!(
            target: logging::POLICY_AUDIT,
            "secrets are served to pods: with --policy-mode=audit nothing is concealed; the log has what would be"
        );
    }
}

/// Registers the metrics of a redirect that this process keeps.
pub fn redirect_metrics(registry: &Registry) -> redirect::Metrics {
    redirect::Metrics {
        dropped: registry.counter(&table::REDIRECT_DROPPED),
        spoofed: registry.gauge_vec(&table::REDIRECT_SPOOFED),
        restored: registry.counter_vec(&table::REDIRECT_RESTORED),
    }
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_ends_the_process_with_an_error() {
        let flags = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream=http://127.0.0.1:1"];
        let mut background = JoinSet::new();
        background.spawn(async {});
        background.spawn(async { panic!("a bug") });
        let app = App::bind(Config::of_flags(&flags)).await.expect("free ports");
        let ended = timeout(Duration::from_secs(60), app.run_beside(background, pending())).await.expect("it ends");
        let said = ended.expect_err("a task is missing").to_string();
        assert!(said.contains("a bug"), "{said}");
    }
}
