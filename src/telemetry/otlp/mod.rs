//! otlp: traces of requests, for an OpenTelemetry collector. In builds with the feature `otlp` alone.
//!
//! # What is exported
//!
//! A sampled request is one span of kind `SERVER`, named by its endpoint class, from its head to the last byte of its answer;
//! and below it one span for each filter that it came through, from A to B as `layers::latency` has
//! them. Its attributes have the names of OpenTelemetry's semantic conventions for HTTP, and `metadata_proxy.*` for what those
//! do not know: endpoint, outcome, reason, and how long a filter waited. Nothing of an answer's body comes here, so no token
//! and no secret can; a query is left out, and what else a client says is cut at 256 characters.
//!
//! # Which requests
//!
//! One that brings a valid `traceparent` (W3C Trace Context) continues that trace, and is sampled if its sender sampled it.
//! Any other begins a trace, and is sampled by a ratio. The trace ends here: the metadata server is not told of it.
//!
//! # What it may cost
//!
//! A request that is not sampled costs a look at its headers and a random number; without `--otlp-endpoint`, a few looks at a
//! flag. Of a sampled one the moments are noted that the probes take anyway, and spans are made of them only when it is over,
//! by the exporter's own task. At most 256 finished requests wait, with at most 3 KiB each and 1 KiB as a rule, and some 256
//! spans are being sent: a MiB together at the worst. What finds the queue full is dropped and counted; nobody ever waits for a
//! collector, save the process at its end, for a second.
//!
//! Batches go to `/v1/traces` as protobuf over plain HTTP, one every few seconds, on a connection that is kept alive. A batch
//! that fails is not sent again, and the next one waits for a while.
//!
//! # What it does not see
//!
//! The filter in which a request was given up (`cut`), as in the metrics; and `forward` for a client whose `wait_for_change`
//! is answered by a watch, since that is asked for in the name of all who share it.

mod collector;
mod exporter;
pub mod metrics;
mod record;
mod spans;
mod trace_parent;

pub use exporter::Exporter;
pub use record::{Recording, Tracer};

use super::Registry;
use crate::metadata::Target;

/// Whether requests are traced.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Who takes the spans, by OTLP over HTTP; without one, nothing is traced.
    pub collector: Option<Target>,
    /// How many of the requests that begin a trace are sampled, between 0 and 1.
    pub sample_ratio: f64,
}

/// Begins to export what is traced from now on.
///
/// # Panics
///
/// Outside a runtime.
pub fn start(settings: &Settings, registry: &Registry) -> (Tracer, Exporter) {
    let spans = metrics::spans(registry);
    let Some(collector) = settings.collector.clone() else { return Default::default() };
    let (queue, exporter) = exporter::start(collector, spans.clone());
    (Tracer::sampling(settings.sample_ratio, queue, spans), exporter)
}
