//! `IdentityMetrics`: counts how callers were identified.

use prometheus::IntCounter;

use telemetry::labels;
use telemetry::registry::{Counters, Registry};
use telemetry::table;

labels! {
    /// The result of identifying the client of a connection.
    Identified {
        /// A process of the node itself.
        Node = "node",
        /// A pod, by the kernel.
        Kernel = "kernel",
        /// A pod, by the API server alone.
        Api = "api",
        /// No pod in time: the request got 503.
        Unknown = "unknown",
        /// Several pods claim the address: the request got 503.
        Ambiguous = "ambiguous",
        /// The connection was older than the pod that has its address, or the pod has ended: it was reset.
        Outdated = "outdated",
    }
}

/// Counts how callers were identified.
#[derive(Debug)]
pub(super) struct IdentityMetrics {
    pub(super) results: Counters<Identified>,
    pub(super) cut: IntCounter,
}

impl IdentityMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self { results: registry.counters(&table::IDENTIFICATIONS), cut: registry.counter(&table::IDENTITY_CUT) }
    }
}
