//! [`Identified`]: the identification of pods, and the sources of tokens.

use std::sync::Arc;

use crate::config::Config;
use identity::cluster::Cluster;
use identity::pods::Scans;
use identity::tokens::Sources;
use identity::tokens::{Google, Kept, Parts, WorkloadSource};
use identity::workloads::Workloads;
use identity::{CutFrom, Forget, Identity};
use protocol::metadata::Principal;
use proxy::layers::token_cache::Store;
use proxy::server::Connections;
use proxy::tokens::MetadataServer;
use proxy::upstream::{Named, Upstream};
use telemetry::Registry;

/// The parts that identify pods and issue their tokens.
#[derive(Debug)]
pub struct Identifying {
    /// Scans of the node's processes.
    pub scans: Scans,
    /// The clients that exchange tokens. `None` if pods have no tokens.
    pub exchange: Option<(Cluster, Google)>,
}

/// The identification of pods, and the parts that their tokens come from.
#[derive(Default)]
pub(super) struct Identified {
    identity: Option<Arc<Identity>>,
    exchange: Option<(Cluster, Google)>,
    kept: Arc<Kept>,
}

impl Identified {
    /// Sets up the identification of pods, if configured.
    pub(super) fn new(
        config: &Config,
        identifying: Option<Identifying>,
        workloads: Arc<Workloads>,
        connections: &Arc<Connections>,
        store: &Arc<Store>,
        registry: &Registry,
    ) -> Self {
        let Some((settings, identifying)) = config.identity.as_ref().zip(identifying) else { return Self::default() };
        let kept = Arc::<Kept>::default();
        let (connections, store_to_clear) = (Arc::clone(connections), Arc::clone(store));
        let cut_from = CutFrom::new(Arc::new(move |addr, before| connections.cut_from(addr, before)));
        let kept_to_clear = Arc::clone(&kept);
        let forget = Forget::new(Arc::new(move |principal| {
            if let Principal::Workload(number) = principal {
                kept_to_clear.forget(number);
            }
            store_to_clear.forget_all_of(principal);
        }));
        let identity = Identity::new(settings, workloads, identifying.scans, cut_from, forget, registry);
        if let Upstream::None(named) = &config.upstream {
            know_project(&identity, named);
        }
        Self { identity: Some(identity), exchange: identifying.exchange, kept }
    }

    /// The sources of tokens: the node's, and the workloads' if they have one.
    pub(super) fn sources(self, node: MetadataServer, registry: &Registry) -> (Option<Arc<Identity>>, Sources) {
        let sources = Sources::of_node(node);
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

/// Passes on the project number, which is part of accounts' principals.
fn know_project(identity: &Identity, named: &Named) {
    if let (Some(names), Some(id), Some(number)) =
        (identity.workloads().names(), &named.project_id, named.numeric_project_id)
    {
        names.know_project(id, &number.to_string());
    }
}
