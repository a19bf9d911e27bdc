//! Counts spans. Included in builds without the feature `otlp`, so that the metric always exists.

use crate::telemetry::labels::labels;
use crate::telemetry::registry::{Counters, Registry};
use crate::telemetry::table;

labels! {
    /// The result of exporting a span.
    SpanOutcome {
        /// The collector accepted it.
        Exported = "exported",
        /// The collector did not accept it.
        Failed = "failed",
        /// The queue was full.
        Dropped = "dropped",
    }
}

/// Registers the counters of spans.
pub(super) fn spans(registry: &Registry) -> Counters<SpanOutcome> {
    registry.counters(&table::SPANS)
}
