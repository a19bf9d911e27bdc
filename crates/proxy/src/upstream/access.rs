//! [`Access`]: the upstream, as one process uses it.

use std::sync::Arc;

use super::{Forward, Health, Upstream, UpstreamClient, UpstreamMetrics};
use crate::room::Room;
use telemetry::Registry;
use telemetry::latency::Latency;

/// The upstream, as one process uses it.
#[derive(Debug)]
pub struct Access {
    /// Sends requests.
    pub forward: Forward,
    /// Whether the metadata server answers.
    pub health: Arc<Health>,
    /// Counts requests.
    pub metrics: Arc<UpstreamMetrics>,
}

impl Access {
    /// Nothing is sent yet. Large responses are charged to this room; durations go to `latency`.
    pub fn new(upstream: &Upstream, room: &Arc<Room>, latency: &Arc<Latency>, registry: &Registry) -> Self {
        let health = Arc::<Health>::default();
        let metrics = Arc::new(UpstreamMetrics::new(registry, Arc::clone(latency)));
        let forward = match upstream {
            Upstream::Server(target) => {
                let (health, room, metrics) = (Arc::clone(&health), Arc::clone(room), Arc::clone(&metrics));
                Forward::new(UpstreamClient::new(target.clone(), health, room, metrics))
            }
            Upstream::None(values) => Forward::to_values(values.clone()),
        };
        Self { forward, health, metrics }
    }
}
