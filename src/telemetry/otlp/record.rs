//! [`Recording`]: records the data of a traced request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, Request, StatusCode, Version, header};
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::metrics::SpanOutcome;
use super::trace_parent::{self, TraceParent};
use crate::telemetry::Moment;
use crate::telemetry::latency::{EndpointClass, Filter, FilterOutcome, RequestOutcome};
use crate::telemetry::registry::Counters;

/// Maximum length of a client's text that is recorded, in characters.
const MAX_TEXT_CHARS: usize = 256;

/// Decides which requests are recorded, and sends finished records to the exporter.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Sampling>>);

#[derive(Debug)]
struct Sampling {
    ratio: f64,
    queue: mpsc::Sender<Box<Record>>,
    spans: Counters<SpanOutcome>,
}

/// The record of one request at a time, if that request is sampled.
#[derive(Debug, Default)]
pub struct Recording {
    /// Whether there is a record. Requests that are not sampled read nothing else.
    is_sampled: AtomicBool,
    record: Mutex<Option<Box<Record>>>,
}

/// The data of a sampled request.
#[derive(Debug)]
pub(super) struct Record {
    sampling: Arc<Sampling>,
    pub(super) parent: Option<TraceParent>,
    pub(super) trace_state: String,
    pub(super) method: &'static str,
    pub(super) version: Version,
    pub(super) path: String,
    pub(super) user_agent: Option<String>,
    pub(super) peer: SocketAddr,
    pub(super) began: Moment,
    /// The same moment as wall-clock time.
    pub(super) began_at: SystemTime,
    pub(super) steps: SmallVec<[Step; Filter::ALL.len()]>,
    pub(super) status: Option<StatusCode>,
    pub(super) reason: Option<&'static str>,
    pub(super) endpoint: EndpointClass,
    pub(super) outcome: RequestOutcome,
    pub(super) duration: Duration,
}

/// A filter that is done with the request. It began when the filter before it was done.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) filter: Filter,
    pub(super) outcome: FilterOutcome,
    pub(super) left: Moment,
    pub(super) waited: Duration,
}

impl Tracer {
    /// Samples this share of the requests without a `traceparent`, from 0 to 1.
    pub(super) fn sampling(ratio: f64, queue: mpsc::Sender<Box<Record>>, spans: Counters<SpanOutcome>) -> Self {
        Self(Some(Arc::new(Sampling { ratio, queue, spans })))
    }
}

impl Sampling {
    #[inline(never)]
    fn record<B>(self: &Arc<Self>, request: &Request<B>, peer: SocketAddr, began: Moment) -> Option<Box<Record>> {
        let parent = TraceParent::from_headers(request.headers());
        if !parent.as_ref().map_or_else(|| fastrand::f64() < self.ratio, |parent| parent.is_sampled) {
            return None;
        }
        Some(Box::new(Record {
            sampling: Arc::clone(self),
            trace_state: parent.as_ref().map(|_| trace_parent::state(request.headers())).unwrap_or_default(),
            parent,
            method: method(request.method()),
            version: request.version(),
            path: bounded(request.uri().path()),
            user_agent: user_agent(request.headers()),
            peer,
            began,
            began_at: SystemTime::now(),
            steps: SmallVec::new(),
            status: None,
            reason: None,
            endpoint: EndpointClass::Unread,
            outcome: RequestOutcome::Cut,
            duration: Duration::ZERO,
        }))
    }

    /// Sends a finished record to the exporter. If the exporter's queue is full, the record is dropped and counted.
    fn hand_over(&self, record: Box<Record>) {
        let spans = record.spans();
        if self.queue.try_send(record).is_err() {
            self.spans.of(SpanOutcome::Dropped).inc_by(spans);
        }
    }
}

impl Recording {
    /// Begins a new record if this request is sampled, and discards the previous one.
    pub fn begin<B>(&self, tracer: &Tracer, request: &Request<B>, peer: SocketAddr, began: Moment) {
        let record = tracer.0.as_ref().and_then(|sampling| sampling.record(request, peer, began));
        let is_sampled = record.is_some();
        if is_sampled || self.is_sampled.load(Relaxed) {
            *self.record.lock().unwrap_or_else(PoisonError::into_inner) = record;
            self.is_sampled.store(is_sampled, Relaxed);
        }
    }

    /// Records that a filter is done with the request, which waited in it for this many nanoseconds. Filters report
    /// in the order in which the request reached them.
    pub fn left(&self, filter: Filter, outcome: FilterOutcome, left: Moment, waited: u64) {
        let waited = Duration::from_nanos(waited);
        self.change(|record| record.steps.push(Step { filter, outcome, left, waited }));
    }

    /// Records why the request was refused or failed.
    pub fn because(&self, reason: &'static str) {
        self.change(|record| record.reason = Some(reason));
    }

    /// Records the status of the response.
    pub fn answered(&self, status: StatusCode) {
        self.change(|record| record.status = Some(status));
    }

    /// Ends the record, and sends it to the exporter.
    pub fn end(&self, endpoint: EndpointClass, outcome: RequestOutcome, duration: Duration) {
        if !self.is_sampled.swap(false, Relaxed) {
            return;
        }
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut record) = record {
            (record.endpoint, record.outcome, record.duration) = (endpoint, outcome, duration);
            Arc::clone(&record.sampling).hand_over(record);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        if self.is_sampled.load(Relaxed)
            && let Some(record) = &mut *self.record.lock().unwrap_or_else(PoisonError::into_inner)
        {
            change(record);
        }
    }
}

impl Record {
    /// The number of spans that are made from it.
    pub(super) fn spans(&self) -> u64 {
        1 + self.steps.len() as u64
    }
}

/// A method from a closed set, because a client may send any text as its method.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}

fn user_agent(headers: &HeaderMap) -> Option<String> {
    headers.get(header::USER_AGENT)?.to_str().ok().map(bounded)
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Registry;
    use crate::telemetry::otlp::metrics;

    /// Records a request that passes one filter.
    fn one_request(recording: &Recording, tracer: &Tracer) {
        let peer = ([10, 0, 0, 9], 40000).into();
        recording.begin(tracer, &Request::new(()), peer, Moment::now());
        recording.left(Filter::Classify, FilterOutcome::Passed, Moment::now(), 0);
        recording.end(EndpointClass::Root, RequestOutcome::Cut, Duration::ZERO);
    }

    #[test]
    fn a_record_contains_only_its_own_request() {
        let (queue, mut over) = mpsc::channel(2);
        let tracer = Tracer::sampling(1.0, queue, metrics::spans(&Registry::default()));
        let recording = Recording::default();
        // Its end is never reported, as after a panic.
        recording.begin(&tracer, &Request::new(()), ([10, 0, 0, 8], 40000).into(), Moment::now());
        recording.left(Filter::InFlight, FilterOutcome::Passed, Moment::now(), 0);
        one_request(&recording, &tracer);
        recording.left(Filter::InFlight, FilterOutcome::Passed, Moment::now(), 0);
        one_request(&recording, &tracer);
        for _ in 0..2 {
            let record = over.try_recv().expect("a finished request");
            assert_eq!(record.steps.iter().map(|step| step.filter).collect::<Vec<_>>(), [Filter::Classify]);
        }
        assert!(over.try_recv().is_err(), "the first request never ended");
    }

    #[test]
    fn spans_that_find_the_queue_full_are_counted() {
        let (queue, over) = mpsc::channel(1);
        let spans = metrics::spans(&Registry::default());
        let tracer = Tracer::sampling(1.0, queue, spans.clone());
        let recording = Recording::default();
        for dropped in [0, 2, 4] {
            one_request(&recording, &tracer);
            assert_eq!(spans.of(SpanOutcome::Dropped).get(), dropped);
        }
        drop(over);
        one_request(&recording, &tracer);
        assert_eq!(spans.of(SpanOutcome::Dropped).get(), 6, "spans are dropped after the exporter has ended");
    }
}
