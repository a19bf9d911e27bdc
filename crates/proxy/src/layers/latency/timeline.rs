//! [`Timeline`]: the filter that has the request, and the time since which it has it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use telemetry::labels::Label;
use telemetry::latency::{EndpointClass, Filter, FilterOutcome, Latency, RequestOutcome};
use telemetry::talkers::Talkers;
use telemetry::{Moment, nanos};

/// Destinations of measurements of requests.
#[derive(Debug, Clone, Default)]
pub struct Instruments {
    /// Durations of requests and filters.
    pub latency: Arc<Latency>,
    /// Requests by client address.
    pub talkers: Arc<Talkers>,
}

/// The current request of one connection, as the layers report it.
///
/// A connection has one request at a time, so all layers of its stack share one timeline, and each request starts it
/// anew. Values are atomic only because a future must be `Send`; nothing contends for them.
#[derive(Debug)]
pub struct Timeline {
    instruments: Instruments,
    peer: SocketAddr,
    /// Origin of the times below, which are in nanoseconds.
    origin: Moment,
    /// Index of the filter that has the request, or [`NO_FILTER`].
    holder: AtomicU8,
    /// Time when the holder got the request.
    since: AtomicU64,
    /// Time when the request was suspended, or [`NOT_SUSPENDED`].
    suspended: AtomicU64,
    /// Total time for which the request was suspended in the holder.
    waited: AtomicU64,
    endpoint: AtomicU8,
    outcome: AtomicU8,
}

/// No filter has the request: none has begun, or one has answered.
const NO_FILTER: u8 = u8::MAX;

/// The request is not suspended.
const NOT_SUSPENDED: u64 = u64::MAX;

impl Timeline {
    /// Creates a timeline for requests of this peer.
    pub fn new(instruments: Instruments, peer: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            instruments,
            peer,
            origin: Moment::now(),
            holder: AtomicU8::new(NO_FILTER),
            since: AtomicU64::new(0),
            suspended: AtomicU64::new(NOT_SUSPENDED),
            waited: AtomicU64::new(0),
            endpoint: AtomicU8::new(EndpointClass::Unread as u8),
            outcome: AtomicU8::new(RequestOutcome::Cut as u8),
        })
    }

    /// The client's address.
    pub(in crate::layers) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A request has been read.
    pub(super) fn begin(&self) {
        self.holder.store(NO_FILTER, Relaxed);
        self.suspended.store(NOT_SUSPENDED, Relaxed);
        self.endpoint.store(EndpointClass::Unread as u8, Relaxed);
        self.outcome.store(RequestOutcome::Cut as u8, Relaxed);
    }

    /// The previous filter has passed the request on to this one.
    pub(super) fn enter(&self, filter: Filter) {
        let now = self.nanos(Moment::now());
        if let Some(passed_on) = self.holder() {
            self.close(passed_on, FilterOutcome::Passed, now);
        }
        self.holder.store(filter as u8, Relaxed);
        self.since.store(now, Relaxed);
        self.waited.store(0, Relaxed);
    }

    /// The filter that has the request returns a response or an error.
    pub(super) fn leave(&self, outcome: FilterOutcome) {
        if let Some(filter) = self.holder() {
            self.close(filter, outcome, self.nanos(Moment::now()));
            self.holder.store(NO_FILTER, Relaxed);
        }
    }

    fn close(&self, filter: Filter, outcome: FilterOutcome, now: u64) {
        let held = now.saturating_sub(self.since.load(Relaxed));
        let waited = self.waited.load(Relaxed);
        let times = self.instruments.latency.filter(filter);
        times.worked(outcome, held.saturating_sub(waited));
        // A watch waits for as long as nothing changes, which says nothing about the filter or the metadata server.
        if waited > 0 && self.endpoint() != EndpointClass::Watch {
            times.waited(waited);
        }
    }

    /// The task stops working on the request until it is woken.
    pub(super) fn suspend(&self) {
        if self.holder().is_some() {
            self.suspended.store(self.nanos(Moment::now()), Relaxed);
        }
    }

    /// The task works on the request again, or for the first time.
    pub(super) fn resume(&self) {
        let suspended = self.suspended.load(Relaxed);
        if suspended != NOT_SUSPENDED {
            let waited = self.nanos(Moment::now()).saturating_sub(suspended);
            self.waited.store(self.waited.load(Relaxed) + waited, Relaxed);
            self.suspended.store(NOT_SUSPENDED, Relaxed);
        }
    }

    /// Records the endpoint class of the request.
    pub(in crate::layers) fn asks_for(&self, endpoint: EndpointClass) {
        self.endpoint.store(endpoint as u8, Relaxed);
    }

    /// Records the result of the request, unless its response is cut short.
    pub(in crate::layers) fn ends_as(&self, outcome: RequestOutcome) {
        self.outcome.store(outcome as u8, Relaxed);
    }

    /// The stack has handled the request, and its outcome is known.
    pub(super) fn decided(&self, now: Moment) {
        self.instruments.talkers.note(self.peer.ip(), self.outcome(), now);
    }

    /// The response head is available after this time.
    pub(super) fn first_byte(&self, elapsed: Duration) {
        self.instruments.latency.requests.first_byte.record(self.endpoint(), self.outcome(), elapsed);
    }

    /// The request has ended with this outcome after this time.
    pub(super) fn end(&self, outcome: RequestOutcome, elapsed: Duration) {
        self.instruments.latency.requests.last_byte.record(self.endpoint(), outcome, elapsed);
    }

    fn holder(&self) -> Option<Filter> {
        Filter::ALL.get(usize::from(self.holder.load(Relaxed))).copied()
    }

    pub(in crate::layers) fn endpoint(&self) -> EndpointClass {
        EndpointClass::VALUES[usize::from(self.endpoint.load(Relaxed))]
    }

    pub(super) fn outcome(&self) -> RequestOutcome {
        RequestOutcome::VALUES[usize::from(self.outcome.load(Relaxed))]
    }

    fn nanos(&self, moment: Moment) -> u64 {
        nanos(moment - self.origin)
    }
}
