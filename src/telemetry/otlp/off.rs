//! otlp, in a build without the feature `otlp`: the same interface without any effect or cost.

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, StatusCode};

use super::Registry;
use super::latency::{EndpointClass, Filter, FilterOutcome, RequestOutcome};
use crate::telemetry::Moment;

/// No settings.
#[derive(Debug, Clone, Default)]
pub struct Settings {}

/// Traces nothing.
#[derive(Debug, Clone, Default)]
pub struct Tracer {}

/// Records nothing.
#[derive(Debug, Default)]
pub struct Recording {}

/// Exports nothing.
#[derive(Debug, Default)]
pub struct Exporter;

#[path = "metrics.rs"]
pub mod metrics;

/// Registers the counters of spans, which stay 0.
pub fn start(_: &Settings, registry: &Registry) -> (Tracer, Exporter) {
    metrics::spans(registry);
    (Tracer {}, Exporter)
}

impl Exporter {
    /// Does nothing.
    pub fn finish(self) -> Ready<()> {
        ready(())
    }
}

impl Recording {
    /// Does nothing.
    pub fn begin<B>(&self, _: &Tracer, _: &Request<B>, _: SocketAddr, _: Moment) {}

    /// Does nothing.
    pub fn left(&self, _: Filter, _: FilterOutcome, _: Moment, _: u64) {}

    /// Does nothing.
    pub fn because(&self, _: &'static str) {}

    /// Does nothing.
    pub fn answered(&self, _: StatusCode) {}

    /// Does nothing.
    pub fn end(&self, _: EndpointClass, _: RequestOutcome, _: Duration) {}
}
