//! [`Measures`]: what is counted and measured of requests, beside the parts that count for themselves.

use std::sync::Arc;

use crate::layers::latency::Instruments;
use crate::telemetry::Registry;
use crate::telemetry::history::History;
use crate::telemetry::latency::Latency;
use crate::telemetry::requests::Requests;
use crate::telemetry::shedding::Shedding;

/// What is counted and measured of requests.
#[derive(Debug)]
pub struct Measures {
    /// Where measurements of requests go.
    pub instruments: Instruments,
    /// Counts responses.
    pub requests: Arc<Requests>,
    /// Counts what is refused or closed under overload.
    pub shedding: Arc<Shedding>,
    /// Durations of the last minutes.
    pub history: History,
}

impl Measures {
    pub(super) fn new(registry: &Registry) -> Self {
        let instruments = Instruments { latency: Latency::new(registry), talkers: Arc::default() };
        let shedding = Arc::new(Shedding::new(registry, Arc::clone(&instruments.talkers)));
        Self { instruments, requests: Arc::new(Requests::new(registry)), shedding, history: History::default() }
    }
}
