//! [`Access`]: one process's access to the upstream.

use std::sync::Arc;

use super::{Forward, Health, Upstream, UpstreamClient, UpstreamMetrics, Values};
use crate::room::Room;
use telemetry::Registry;
use telemetry::latency::Latency;

/// One process's access to the upstream.
#[derive(Debug)]
pub struct Access {
    pub forward: Forward,
    /// Whether the metadata server responds.
    pub health: Arc<Health>,
    pub metrics: Arc<UpstreamMetrics>,
}

impl Access {
    /// Sends nothing yet. Large responses are charged to `room`; durations are recorded in `latency`. `node`: this
    /// node's name, if it belongs to a cluster.
    pub fn new(
        upstream: &Upstream,
        node: Option<&str>,
        room: &Arc<Room>,
        latency: &Arc<Latency>,
        registry: &Registry,
    ) -> Self {
        let health = Arc::<Health>::default();
        let metrics = Arc::new(UpstreamMetrics::new(registry, Arc::clone(latency)));
        let forward = match upstream {
            Upstream::Server(target) => {
                let (health, room, metrics) = (Arc::clone(&health), Arc::clone(room), Arc::clone(&metrics));
                Forward::new(UpstreamClient::new(target.clone(), health, room, metrics))
            }
            Upstream::None(named) => Forward::to_values(match node {
                Some(node) => Values::of_node(named.clone(), node),
                None => Values::new(named.clone()),
            }),
        };
        Self { forward, health, metrics }
    }
}
