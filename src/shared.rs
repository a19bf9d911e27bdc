//! [`Shared`]: the state shared by connections, background tasks and the admin pages. Created once per process.

mod handover;
mod identified;
mod limits;
mod measures;

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::config::Config;
use crate::door_probe::DoorProbe;
use crate::readiness::Readiness;
use identified::Identified;
use identity::Identity;
use identity::accounts::Accounts;
use identity::tokens::Sources;
use identity::workloads::Workloads;
use proxy::layers::conceal::{Concealment, PolicyMetrics};
use proxy::layers::leaves::{Leaf, Leaves};
use proxy::layers::token_cache::{IsDefault, Store, Tokens};
use proxy::memory::Pressure;
use proxy::policy::LivePolicy;
use proxy::server::Drain;
use proxy::tokens::MetadataServer;
use proxy::upstream::{Access, Forward};
use redirect::Standing;
use telemetry::Registry;
use telemetry::refusals::{NamePod, Refusals};

pub use handover::{Handover, State};
pub use identified::Identifying;
pub use limits::Limits;
pub use measures::Measures;

/// The state shared by connections, background tasks and the admin pages.
#[derive(Debug)]
pub struct Shared {
    /// Start of the process.
    pub began: Instant,
    pub config: Config,
    pub registry: Registry,
    /// Counters and measurements of requests.
    pub measures: Measures,
    pub refusals: Arc<Refusals>,
    /// Limits on clients' use of resources.
    pub limits: Limits,
    /// The policy in force, and its mode.
    pub concealment: Arc<Concealment>,
    /// Identifies pods. `None` if all of them act as the node.
    pub identity: Option<Arc<Identity>>,
    /// The accounts of pods. `None` if they have no tokens.
    pub accounts: Option<Accounts>,
    /// The metadata server.
    pub upstream: Access,
    /// Values that every client library requests.
    pub leaves: Arc<Leaves>,
    pub tokens: Tokens<Sources>,
    /// Whether the proxy is ready for pods.
    pub readiness: Readiness,
    /// Whether the redirect is installed. Set once if this process keeps one.
    pub redirect: OnceLock<Arc<Standing>>,
    /// Result of the hand-over from the predecessor.
    pub handover: Handover,
    /// Probes the proxy's own door.
    pub door_probe: Arc<DoorProbe>,
    /// Ends connections at shutdown.
    pub drain: Drain,
}

impl Shared {
    /// Divides the memory limit, and registers all metrics.
    pub fn new(
        config: Config,
        policy: Arc<LivePolicy>,
        pressure: Arc<Pressure>,
        registry: Registry,
        identifying: Option<Identifying>,
    ) -> Arc<Self> {
        let measures = Measures::new(&registry);
        let limits = Limits::new(&config, pressure, &measures.shedding, &registry);
        let federation = config.identity.as_ref().and_then(|identity| identity.federation.clone());
        let workloads = Arc::new(Workloads::new(federation));
        let store =
            Store::with_names(limits.token_bytes, IsDefault::new(Arc::new(workloads.own_accounts())), &registry);
        let pods = Identified::new(&config, identifying, workloads, &limits.connections, &store, &registry);
        let node = config.identity.as_ref().map(|identity| identity.cluster.node.as_str());
        let upstream = Access::new(&config.upstream, node, &limits.room, &measures.instruments.latency, &registry);
        let (identity, sources) = pods.sources(MetadataServer::new(upstream.forward.clone()), &registry);
        let policy_metrics = Arc::new(PolicyMetrics::new(&registry));
        let accounts = identity.as_ref().and_then(|identity| Accounts::new(identity.workloads()));
        let concealment = Concealment::new(policy, config.policy_mode, Arc::clone(&limits.room), policy_metrics);
        let concealment = Arc::new(concealment.with_accounts(accounts.as_ref().map(Accounts::emails)));
        let (door_probe, drain) = (Arc::new(DoorProbe::new(&registry)), Drain::default());
        let health = Arc::clone(&upstream.health);
        let readiness =
            Readiness::new(health, Arc::clone(&store), identity.clone(), Arc::clone(&door_probe), drain.clone());
        readiness.observe(&registry);
        Arc::new(Self {
            began: Instant::now(),
            readiness,
            accounts,
            refusals: refusals(identity.clone()),
            leaves: leaves(&upstream.forward, &concealment),
            concealment,
            tokens: Tokens::new(store, sources),
            handover: Handover::new(config.identity.as_ref().is_some_and(|it| it.own_pod.is_some()), &registry),
            config,
            registry,
            measures,
            limits,
            redirect: OnceLock::new(),
            identity,
            upstream,
            door_probe,
            drain,
        })
    }
}

#[cfg(test)]
impl Shared {
    /// The state of a process with these flags.
    pub(crate) async fn of_flags(flags: &[&str], identifying: Option<Identifying>) -> Arc<Self> {
        let config = Config::of_flags(flags);
        let policy = Arc::new(LivePolicy::load(config.policy.clone()).await.expect("built in"));
        Self::new(config, policy, Arc::default(), Registry::default(), identifying)
    }
}

/// The table of refusals, which names identified pods.
fn refusals(identity: Option<Arc<Identity>>) -> Arc<Refusals> {
    Arc::new(Refusals::new(NamePod::new(Arc::new(move |addr| identity.as_ref()?.pod_at(addr)))))
}

/// Values that are fetched from the metadata server.
fn leaves(forward: &Forward, concealment: &Arc<Concealment>) -> Arc<Leaves> {
    let (forward, concealment) = (forward.clone(), Arc::clone(concealment));
    Arc::new(Leaves::new(move |leaf: Leaf| {
        let (forward, concealment) = (forward.clone(), Arc::clone(&concealment));
        async move {
            let mut request = leaf.request();
            let answer = forward.ask(&mut request);
            if leaf.is_tree() { concealment.kept_tree(&request, answer).await } else { Ok(answer.await?) }
        }
    }))
}
