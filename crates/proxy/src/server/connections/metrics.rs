//! [`ConnectionMetrics`]: counts client connections.

use prometheus::{IntCounter, IntGauge};

use telemetry::registry::Registry;
use telemetry::table;

/// Counts client connections.
#[derive(Debug)]
pub(super) struct ConnectionMetrics {
    /// Currently open.
    pub(super) open: IntGauge,
    /// Total accepted.
    pub(super) accepted: IntCounter,
}

impl ConnectionMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self { open: registry.gauge(&table::CONNECTIONS), accepted: registry.counter(&table::ACCEPTED) }
    }
}
