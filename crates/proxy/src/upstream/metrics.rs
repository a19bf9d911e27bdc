//! [`UpstreamMetrics`]: counts and measures requests to the metadata server.

use std::sync::Arc;

use prometheus::IntCounterVec;

use telemetry::latency::Latency;
use telemetry::registry::{self, Registry};
use telemetry::table;

/// Counts and measures requests to the metadata server.
#[derive(Debug)]
pub struct UpstreamMetrics {
    requests: IntCounterVec,
    pub(super) latency: Arc<Latency>,
}

impl UpstreamMetrics {
    /// Registers the counter. Durations are recorded in `latency`.
    pub fn new(registry: &Registry, latency: Arc<Latency>) -> Self {
        Self { requests: registry.counter_vec(&table::UPSTREAM_REQUESTS), latency }
    }

    /// Counts a request by its status class or `Failure::label`.
    pub(super) fn count(&self, outcome: &'static str) {
        self.requests.with_label_values(&[outcome]).inc();
    }

    /// Number of requests by outcome.
    pub fn outcomes(&self) -> Vec<(String, u64)> {
        registry::counts(&self.requests)
    }
}

/// Not registered anywhere.
impl Default for UpstreamMetrics {
    fn default() -> Self {
        Self::new(&Registry::default(), Arc::default())
    }
}
