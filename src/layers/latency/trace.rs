//! What the probes of one request tell each other, on the thread that runs it.
//!
//! Everything here is set and read within one `call` or one `poll`; between them it means nothing.

use std::cell::Cell;

use tokio::time::Instant;

use crate::telemetry::latency::{EndpointClass, RequestOutcome};

struct Trace {
    /// When the filter before has passed the request on, until the next one takes note of it.
    boundary: Cell<Option<Instant>>,
    /// When the filter that is executing started.
    started: Cell<Option<Instant>>,
    /// Whether the filter that was executing has passed the request on.
    passed: Cell<bool>,
    endpoint: Cell<EndpointClass>,
    outcome: Cell<RequestOutcome>,
}

thread_local! {
    static TRACE: Trace = const {
        Trace {
            boundary: Cell::new(None),
            started: Cell::new(None),
            passed: Cell::new(false),
            endpoint: Cell::new(EndpointClass::Unread),
            outcome: Cell::new(RequestOutcome::Cut),
        }
    };
}

/// `classify` says what the request asks for.
pub(in crate::layers) fn asks_for(endpoint: EndpointClass) {
    TRACE.with(|trace| trace.endpoint.set(endpoint));
}

/// `rescue` says what became of the request.
pub(in crate::layers) fn ends_as(outcome: RequestOutcome) {
    TRACE.with(|trace| trace.outcome.set(outcome));
}

/// A request comes in: the first filter starts now.
pub(super) fn begin(now: Instant) {
    TRACE.with(|trace| {
        trace.boundary.set(Some(now));
        trace.endpoint.set(EndpointClass::Unread);
    });
}

/// What `classify` said.
pub(super) fn endpoint() -> EndpointClass {
    TRACE.with(|trace| trace.endpoint.get())
}

/// What `rescue` said.
pub(super) fn outcome() -> RequestOutcome {
    TRACE.with(|trace| trace.outcome.get())
}

/// Runs a filter that starts at the boundary. Returns when that was, and whether the request was passed on.
pub(super) fn start<T>(filter: impl FnOnce() -> T) -> (T, Instant, bool) {
    TRACE.with(|trace| {
        let started = trace.boundary.take().unwrap_or_else(Instant::now);
        let (outcome, passed) = trace.run(started, filter);
        (outcome, started, passed)
    })
}

/// Runs a filter that started before. Returns whether the request was passed on.
pub(super) fn resume<T>(started: Instant, filter: impl FnOnce() -> T) -> (T, bool) {
    TRACE.with(|trace| trace.run(started, filter))
}

/// Passes the request on at this moment, which is when the next filter starts. Returns when the one that passed it on had
/// started, if it is tracked.
pub(super) fn cross<T>(now: Instant, next: impl FnOnce() -> T) -> (T, Option<Instant>) {
    TRACE.with(|trace| {
        let started = trace.started.take();
        trace.boundary.set(Some(now));
        let outcome = next();
        trace.boundary.set(None);
        trace.passed.set(true);
        (outcome, started)
    })
}

impl Trace {
    fn run<T>(&self, started: Instant, filter: impl FnOnce() -> T) -> (T, bool) {
        // Filters are nested: what is known of the one outside is put back.
        let outside = (self.started.replace(Some(started)), self.passed.replace(false));
        let outcome = filter();
        self.started.set(outside.0);
        (outcome, self.passed.replace(outside.1))
    }
}
