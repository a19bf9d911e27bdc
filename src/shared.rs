//! [`Shared`]: what connections, background tasks and the admin pages have in common. Made once per process.

use std::sync::Arc;

use tokio::time::Instant;

#[cfg(feature = "workload-identity")]
use crate::cluster::Cluster;
use crate::config::Config;
use crate::door_probe::DoorProbe;
use crate::hook::Hook;
use crate::identity::{CutFrom, Forget, Identity};
use crate::layers::accounts::Accounts;
use crate::layers::conceal::{Concealment, PolicyMetrics};
use crate::layers::hanging::Watches;
use crate::layers::in_flight::Seats;
use crate::layers::latency::Instruments;
use crate::layers::leaves::{Leaf, Leaves};
use crate::layers::token_cache::{IsDefault, Store, Tokens};
use crate::memory::{Budget, Demand, Pressure};
#[cfg(feature = "workload-identity")]
use crate::metadata::Principal;
use crate::pods::Lookout;
use crate::policy::LivePolicy;
use crate::readiness::Readiness;
use crate::room::{CutUnread, Room};
use crate::server::{Connections, Drain};
use crate::telemetry::history::History;
use crate::telemetry::latency::Latency;
use crate::telemetry::otlp::Tracer;
use crate::telemetry::requests::Requests;
use crate::telemetry::shedding::Shedding;
use crate::telemetry::{Registry, table};
#[cfg(feature = "workload-identity")]
use crate::tokens::workload::{Google, Kept, Parts, WorkloadSource};
use crate::tokens::{MetadataServer, Sources};
use crate::upstream::{Forward, Health, Named, Upstream, UpstreamClient, UpstreamMetrics};
use crate::workloads::Workloads;

/// How pods are identified, and where their tokens come from.
#[derive(Debug)]
pub struct Identifying {
    /// What the kernel says.
    pub lookout: Lookout,
    /// Who exchanges tokens. `None` if pods have none.
    #[cfg(feature = "workload-identity")]
    pub exchange: Option<(Cluster, Google)>,
}

/// What connections, background tasks and the admin pages have in common.
#[derive(Debug)]
pub struct Shared {
    /// When the process began.
    pub began: Instant,
    /// The configuration.
    pub config: Config,
    /// All metrics.
    pub registry: Registry,
    /// Where measurements of requests go.
    pub instruments: Instruments,
    /// Counts responses.
    pub requests: Arc<Requests>,
    /// Counts what is refused or closed under overload.
    pub shedding: Arc<Shedding>,
    /// Durations of the last minutes.
    pub history: History,
    /// The policy, which is reloaded when its file changes.
    pub policy: Arc<LivePolicy>,
    /// Enforces the policy.
    pub concealment: Arc<Concealment>,
    /// Counts verdicts and reloads of the policy.
    pub policy_metrics: Arc<PolicyMetrics>,
    /// Identifies pods. `None` if all of them act as the node.
    pub identity: Option<Arc<Identity>>,
    /// The accounts of pods. `None` if they have none.
    pub accounts: Option<Arc<Accounts>>,
    /// Whether pods should be sent here.
    pub readiness: Readiness,
    /// Asks whether pods are served.
    pub door_probe: Arc<DoorProbe>,
    /// Ends connections at shutdown.
    pub drain: Drain,
    /// The memory limit.
    pub pressure: Arc<Pressure>,
    /// Connections of clients.
    pub connections: Arc<Connections>,
    /// Requests in flight.
    pub seats: Arc<Seats>,
    /// Hanging requests.
    pub watches: Arc<Watches>,
    /// Values that every client library requests.
    pub leaves: Arc<Leaves>,
    /// Cached tokens.
    pub store: Arc<Store>,
    /// Fetches tokens that are not cached.
    pub tokens: Tokens<Sources>,
    /// Whether the metadata server answers.
    pub health: Arc<Health>,
    /// Counts requests to the metadata server.
    pub upstream_metrics: Arc<UpstreamMetrics>,
    /// Sends requests to the metadata server.
    pub forward: Forward,
}

impl Shared {
    /// Divides the memory limit, and registers all metrics.
    pub fn new(
        config: Config,
        policy: Arc<LivePolicy>,
        pressure: Arc<Pressure>,
        registry: Registry,
        tracer: Tracer,
        identifying: Option<Identifying>,
    ) -> Arc<Self> {
        let latency = Latency::new(&registry);
        let instruments = Instruments { latency, talkers: Arc::default(), tracer };
        let shedding = Arc::new(Shedding::new(&registry, Arc::clone(&instruments.talkers)));
        let budget = budget(&config, &pressure);
        let connections = Connections::new(
            config.max_connections,
            budget.connections,
            Arc::clone(&pressure),
            Arc::clone(&shedding),
            &registry,
        );
        let federation = config.identity.as_ref().and_then(|identity| identity.federation.clone());
        let workloads = Arc::new(Workloads::new(federation));
        let is_default = IsDefault::new(Arc::new(workloads.own_accounts()));
        let store = Store::with_names(budget.tokens, is_default, &registry);
        let pods = Identified::new(&config, identifying, workloads, &connections, &store, &registry);
        let room = Room::new(budget.answers, cut_unread(&connections));
        let policy_metrics = Arc::new(PolicyMetrics::new(&registry));
        let (health, drain) = (Arc::<Health>::default(), Drain::default());
        let door_probe = Arc::new(DoorProbe::new(&registry));
        let upstream_metrics = Arc::new(UpstreamMetrics::new(&registry, Arc::clone(&instruments.latency)));
        let forward = match &config.upstream {
            Upstream::Server(target) => Forward::new(UpstreamClient::new(
                target.clone(),
                Arc::clone(&health),
                Arc::clone(&room),
                Arc::clone(&upstream_metrics),
            )),
            Upstream::None(values) => Forward::to_values(values.clone()),
        };
        let (identity, sources) = pods.sources(MetadataServer::new(forward.clone()), &registry);
        if let (Upstream::None(values), Some(identity)) = (&config.upstream, &identity) {
            know_project(identity, &values.named());
        }
        let concealment =
            Concealment::new(Arc::clone(&policy), config.policy_mode, Arc::clone(&room), Arc::clone(&policy_metrics));
        let shared = Self {
            began: Instant::now(),
            requests: Arc::new(Requests::new(&registry)),
            history: History::default(),
            concealment: Arc::new(concealment),
            readiness: Readiness::new(Arc::clone(&health), identity.clone(), Arc::clone(&door_probe), drain.clone()),
            door_probe,
            accounts: identity.as_ref().and_then(|identity| Accounts::new(identity.workloads())).map(Arc::new),
            identity,
            seats: Seats::new(config.max_in_flight),
            watches: Arc::new(Watches::new(config.max_hanging, room)),
            leaves: leaves(&forward),
            tokens: Tokens::new(Arc::clone(&store), sources),
            config,
            registry,
            instruments,
            shedding,
            policy,
            policy_metrics,
            drain,
            pressure,
            connections,
            store,
            health,
            upstream_metrics,
            forward,
        };
        shared.observe();
        Arc::new(shared)
    }

    /// Registers gauges whose values are kept elsewhere.
    fn observe(&self) {
        self.seats.observe(&self.registry);
        let watches = Arc::clone(&self.watches);
        self.registry.observe(&table::HANGING, move || Some(watches.count() as u64));
        let usage = |read: fn(crate::memory::Usage) -> u64| {
            let pressure = Arc::clone(&self.pressure);
            move || Some(read(pressure.usage().unwrap_or_default()))
        };
        self.registry.observe(&table::MEMORY_USAGE, usage(|usage| usage.current));
        self.registry.observe(&table::MEMORY_LIMIT, usage(|usage| usage.limit));
        let pressure = Arc::clone(&self.pressure);
        self.registry.observe(&table::MEMORY_LEVEL, move || Some(pressure.level() as u64));
    }
}

/// Values that are requested from the metadata server.
fn leaves(forward: &Forward) -> Arc<Leaves> {
    let forward = forward.clone();
    Leaves::new(move |leaf: Leaf| {
        let forward = forward.clone();
        async move { forward.ask(&leaf.request()).await }
    })
}

/// How pods are identified, and what their tokens come from.
#[derive(Default)]
struct Identified {
    identity: Option<Arc<Identity>>,
    #[cfg(feature = "workload-identity")]
    exchange: Option<(Cluster, Google)>,
    #[cfg(feature = "workload-identity")]
    kept: Arc<Kept>,
}

impl Identified {
    /// Identifies pods, if that is configured.
    fn new(
        config: &Config,
        identifying: Option<Identifying>,
        workloads: Arc<Workloads>,
        connections: &Arc<Connections>,
        store: &Arc<Store>,
        registry: &Registry,
    ) -> Self {
        let Some((settings, identifying)) = config.identity.as_ref().zip(identifying) else { return Self::default() };
        #[cfg(feature = "workload-identity")]
        let kept = Arc::<Kept>::default();
        let (connections, store_to_clear) = (Arc::clone(connections), Arc::clone(store));
        let cut_from = CutFrom::new(Arc::new(move |addr, before| connections.cut_from(addr, before)));
        #[cfg(feature = "workload-identity")]
        let kept_to_clear = Arc::clone(&kept);
        let forget = Forget::new(Arc::new(move |principal| {
            #[cfg(feature = "workload-identity")]
            if let Principal::Workload(number) = principal {
                kept_to_clear.forget(number);
            }
            store_to_clear.forget_all_of(principal);
        }));
        let identity = Identity::new(settings, workloads, identifying.lookout, cut_from, forget, registry);
        Self {
            identity: Some(identity),
            #[cfg(feature = "workload-identity")]
            exchange: identifying.exchange,
            #[cfg(feature = "workload-identity")]
            kept,
        }
    }

    /// The sources of tokens: the node's, and that of workloads if they have one.
    #[cfg_attr(not(feature = "workload-identity"), expect(unused_variables, reason = "only the node has tokens"))]
    fn sources(self, node: MetadataServer, registry: &Registry) -> (Option<Arc<Identity>>, Sources) {
        let sources = Sources::of_node(node);
        #[cfg(feature = "workload-identity")]
        if let (Some(identity), Some((cluster, google))) = (&self.identity, self.exchange)
            && let Some(federation) = identity.workloads().federation()
        {
            let parts = Parts {
                federation: Arc::clone(federation),
                workloads: Arc::clone(identity.workloads()),
                pods: Arc::clone(identity.pods()),
                cluster,
                google,
                kept: self.kept,
            };
            return (self.identity, sources.with_workloads(Arc::new(WorkloadSource::new(parts, registry))));
        }
        (self.identity, sources)
    }
}

/// Passes on the number of the project, which is part of accounts' principals.
fn know_project(identity: &Identity, named: &Named) {
    if let (Some(names), Some(id), Some(number)) =
        (identity.workloads().names(), &named.project_id, named.numeric_project_id)
    {
        names.know_project(id, &number.to_string());
    }
}

/// Cuts the connections of these clients that do not read their responses.
fn cut_unread(connections: &Arc<Connections>) -> CutUnread {
    let connections = Arc::clone(connections);
    Hook::new(Arc::new(move |peers| connections.cut_unread_of(peers)))
}

/// Divides the memory limit.
fn budget(config: &Config, pressure: &Pressure) -> Budget {
    let exchanges = config.max_in_flight + config.max_hanging;
    let has_accounts = config.identity.as_ref().is_some_and(|identity| identity.federation.is_some());
    let demand = Demand { connections: config.max_connections, exchanges, has_accounts };
    let budget = Budget::new(pressure.limit(), demand);
    tracing::info!(
        limit = pressure.limit(),
        connections = budget.connections,
        tokens = budget.tokens,
        answers = budget.answers,
        "memory budget, in bytes"
    );
    budget
}
