//! otlp: traces of requests, for an OpenTelemetry collector. Only in builds with the feature `otlp`.
//!
//! # Spans
//!
//! A sampled request is one span of kind `SERVER`, named after its endpoint class, from the request head to the last
//! response byte. Below it there is one span for each filter that the request passed, as measured by `layers::latency`.
//! Attributes have the names of OpenTelemetry's semantic conventions for HTTP, and `metadata_proxy.*` for the rest:
//! endpoint, outcome, reason, and the time waited in a filter. Nothing of a response body is recorded, so no token or
//! secret is exported. Queries are left out, and other client input is cut after 256 characters.
//!
//! # Sampling
//!
//! A request with a valid `traceparent` (W3C Trace Context) continues that trace, and is sampled if its sender
//! sampled it. Any other request begins a trace, and is sampled with the configured ratio. The trace ends here: it is
//! not propagated to the metadata server.
//!
//! # Cost
//!
//! A request that is not sampled costs a header lookup and a random number; without `--otlp-endpoint`, a few reads of
//! a flag. For a sampled request the times that the metrics measure anyway are recorded, and the exporter's task
//! converts them to spans when the request is complete. At most 256 finished requests are queued, with at most 3 KiB
//! each (usually 1 KiB), and some 256 spans are being sent: at most 1 MiB in total. When the queue is full, requests
//! are dropped and counted. Nothing waits for the collector, except the process for a second when it ends.
//!
//! Batches are sent to `/v1/traces` as protobuf over plain HTTP, one every few seconds, on a persistent connection. A
//! batch that fails is not sent again, and the next one is delayed.
//!
//! # Limitations
//!
//! The filter in which a request was abandoned (`cut`) has no span, as it has no metric. A hanging GET has no span for
//! `forward`, because its watch sends the upstream request for all clients that share it.

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
    /// The collector, by OTLP over HTTP. Without one, nothing is traced.
    pub collector: Option<Target>,
    /// Share of the requests without a `traceparent` that are sampled, from 0 to 1.
    pub sample_ratio: f64,
}

/// Starts the exporter, if there is a collector.
///
/// # Panics
///
/// Panics outside a tokio runtime.
pub fn start(settings: &Settings, registry: &Registry) -> (Tracer, Exporter) {
    let spans = metrics::spans(registry);
    let Some(collector) = settings.collector.clone() else { return Default::default() };
    let (queue, exporter) = exporter::start(collector, spans.clone());
    (Tracer::sampling(settings.sample_ratio, queue, spans), exporter)
}
