//! What the probes of one request tell each other, on the thread that runs it.
//!
//! Everything here is set and read within one `call` or one `poll`; between them it means nothing.

use std::cell::Cell;

use crate::telemetry::Moment;
use crate::telemetry::latency::{EndpointClass, RequestOutcome};

struct Trace {
    /// When the filter that is executing started; nothing once it has passed the request on. No two filters execute at once:
    /// one starts when the one before it has passed the request on.
    started: Cell<Option<Moment>>,
    endpoint: Cell<EndpointClass>,
    outcome: Cell<RequestOutcome>,
}

thread_local! {
    static TRACE: Trace = const {
        Trace {
            started: Cell::new(None),
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
pub(super) fn begin(now: Moment) {
    TRACE.with(|trace| {
        trace.started.set(Some(now));
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

/// A filter starts, where the one before it has just passed the request on. Returns when that was.
pub(super) fn start() -> Moment {
    TRACE.with(|trace| {
        let started = trace.started.get().unwrap_or_else(Moment::now);
        trace.started.set(Some(started));
        started
    })
}

/// A filter that started before goes on.
pub(super) fn resume(started: Moment) {
    TRACE.with(|trace| trace.started.set(Some(started)));
}

/// The filter that was executing is left, for now or for good. Returns whether it has passed the request on.
pub(super) fn leave() -> bool {
    TRACE.with(|trace| trace.started.take().is_none())
}

/// The request is passed on at this moment, which is when the next filter starts. Returns when the one that passes it on had
/// started, if it is tracked.
pub(super) fn pass(now: Moment) -> Option<Moment> {
    TRACE.with(|trace| trace.started.replace(Some(now)))
}

/// The next filter has been called. Whoever passed the request on is through with it.
pub(super) fn passed() {
    TRACE.with(|trace| trace.started.set(None));
}
