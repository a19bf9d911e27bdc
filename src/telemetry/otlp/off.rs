//! otlp: what stands in its place in a build without the feature `otlp`, at no cost: nothing is ever recorded.

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, StatusCode};

use super::Metrics;
use super::latency::{EndpointClass, Filter, FilterOutcome, RequestOutcome};
use crate::telemetry::Moment;

/// There is nothing to choose.
#[derive(Debug, Clone, Default)]
pub struct Settings {}

/// Traces nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tracer {}

/// Of nothing.
#[derive(Debug)]
pub struct Recording;

/// Exports nothing.
#[derive(Debug, Default)]
pub struct Exporter;

/// Does nothing.
pub fn start(_: &Settings, _: &'static Metrics) -> (Tracer, Exporter) {
    (Tracer {}, Exporter)
}

impl Exporter {
    /// Does nothing.
    pub fn finish(self) -> Ready<()> {
        ready(())
    }
}

impl Tracer {
    /// Takes nothing down.
    pub fn record<B>(self, _: &Request<B>, _: SocketAddr, _: Moment) -> Recording {
        Recording
    }
}

impl Recording {
    /// Does nothing.
    pub fn lend(&mut self) {}

    /// Does nothing.
    pub fn take_back(&mut self) {}

    /// Does nothing.
    pub fn answered(&mut self, _: StatusCode) {}

    /// Does nothing.
    pub fn end(&mut self, _: EndpointClass, _: RequestOutcome, _: Duration) {}
}

pub(crate) fn left(_: Filter, _: FilterOutcome, _: Moment) {}

pub(crate) fn waited(_: Filter, _: Duration) {}

pub(crate) fn because(_: &'static str) {}
