//! [`Recording`]: what is taken down of a request while it is under way.

use std::cell::Cell;
use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, Request, StatusCode, Version, header};
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::trace_parent::{self, TraceParent};
use crate::telemetry::latency::{EndpointClass, Filter, FilterOutcome, RequestOutcome};
use crate::telemetry::metrics::SpanOutcome;
use crate::telemetry::{Metrics, Moment};

/// Longest text of a client's that is kept, in characters.
const LONGEST: usize = 256;

/// Decides which requests are recorded, and takes what came of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tracer(Option<&'static Sampling>);

#[derive(Debug)]
struct Sampling {
    ratio: f64,
    queue: mpsc::Sender<Box<Record>>,
    metrics: &'static Metrics,
}

/// What there is of a request.
#[derive(Debug)]
pub struct Recording(Kept);

#[derive(Debug)]
enum Kept {
    /// It is not sampled, or over.
    Nothing,
    Here(Box<Record>),
    /// By the thread that works for the request at this moment.
    ByThread,
}

/// Of a request that was sampled.
#[derive(Debug)]
pub(super) struct Record {
    sampling: &'static Sampling,
    pub(super) parent: Option<TraceParent>,
    pub(super) trace_state: String,
    pub(super) method: &'static str,
    pub(super) version: Version,
    pub(super) path: String,
    pub(super) user_agent: Option<String>,
    pub(super) peer: SocketAddr,
    pub(super) began: Moment,
    /// The same moment, by the clock on the wall.
    pub(super) began_at: SystemTime,
    pub(super) steps: SmallVec<[Step; Filter::ALL.len()]>,
    pub(super) status: Option<StatusCode>,
    pub(super) reason: Option<&'static str>,
    pub(super) endpoint: EndpointClass,
    pub(super) outcome: RequestOutcome,
    pub(super) duration: Duration,
}

/// A filter that the request has left. The next one began at that moment, so its beginning need not be kept.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) filter: Filter,
    pub(super) outcome: FilterOutcome,
    pub(super) left: Moment,
    pub(super) waited: Duration,
}

thread_local! {
    /// Whether the request that this thread works for at this moment is recorded. Apart from the record, so that a request
    /// that is not pays for a look at this alone.
    static IS_RECORDED: Cell<bool> = const { Cell::new(false) };
    /// Its record.
    static CURRENT: Cell<Option<Box<Record>>> = const { Cell::new(None) };
}

impl Tracer {
    /// Samples such a part of the requests that bring no trace of their own. It lives as long as the process: the stack is
    /// copied for every request, and so is this.
    pub(super) fn sampling(ratio: f64, queue: mpsc::Sender<Box<Record>>, metrics: &'static Metrics) -> Self {
        Self(Some(Box::leak(Box::new(Sampling { ratio, queue, metrics }))))
    }

    /// Begins to record a request, if it is sampled.
    pub fn record<B>(self, request: &Request<B>, peer: SocketAddr, began: Moment) -> Recording {
        let record = self.0.and_then(|sampling| sampling.record(request, peer, began));
        Recording(record.map_or(Kept::Nothing, Kept::Here))
    }
}

impl Sampling {
    #[inline(never)]
    fn record<B>(&'static self, request: &Request<B>, peer: SocketAddr, began: Moment) -> Option<Box<Record>> {
        let parent = TraceParent::of(request.headers());
        if !parent.as_ref().map_or_else(|| fastrand::f64() < self.ratio, |parent| parent.is_sampled) {
            return None;
        }
        Some(Box::new(Record {
            sampling: self,
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

    /// Leaves a request to the exporter, or drops it where that has too much to do.
    fn hand_over(&self, record: Box<Record>) {
        let spans = record.spans();
        if self.queue.try_send(record).is_err() {
            self.metrics.spans(SpanOutcome::Dropped).inc_by(spans);
        }
    }
}

impl Recording {
    /// What is told on this thread from now on is told of this request.
    pub fn lend(&mut self) {
        if let Kept::Here(_) = self.0 {
            self.pass_to_thread();
        }
    }

    /// No more is.
    pub fn take_back(&mut self) {
        if let Kept::ByThread = self.0 {
            self.pass_from_thread();
        }
    }

    #[cold]
    fn pass_to_thread(&mut self) {
        if let Kept::Here(record) = mem::replace(&mut self.0, Kept::ByThread) {
            CURRENT.set(Some(record));
            IS_RECORDED.set(true);
        }
    }

    #[cold]
    fn pass_from_thread(&mut self) {
        IS_RECORDED.set(false);
        self.0 = CURRENT.take().map_or(Kept::Nothing, Kept::Here);
    }

    /// The head of its answer is there.
    pub fn answered(&mut self, status: StatusCode) {
        if let Kept::Here(record) = &mut self.0 {
            record.status = Some(status);
        }
    }

    /// The request is over, after so long.
    pub fn end(&mut self, endpoint: EndpointClass, outcome: RequestOutcome, duration: Duration) {
        // The thread still has it where a panic ends the request.
        self.take_back();
        if let Kept::Here(mut record) = mem::replace(&mut self.0, Kept::Nothing) {
            (record.endpoint, record.outcome, record.duration) = (endpoint, outcome, duration);
            record.sampling.hand_over(record);
        }
    }
}

impl Record {
    /// How many spans are made of it.
    pub(super) fn spans(&self) -> u64 {
        1 + self.steps.len() as u64
    }
}

/// The request leaves a filter in this way. To be told in the order in which it comes to them.
pub(crate) fn left(filter: Filter, outcome: FilterOutcome, now: Moment) {
    tell(|record| record.steps.push(Step { filter, outcome, left: now, waited: Duration::ZERO }));
}

/// The request was suspended for so long, all in all, in a filter that it has left.
pub(crate) fn waited(filter: Filter, waited: Duration) {
    tell(|record| {
        if let Some(step) = record.steps.iter_mut().find(|step| step.filter == filter) {
            step.waited = waited;
        }
    });
}

/// The request is refused, or has failed, for this reason.
pub(crate) fn because(reason: &'static str) {
    tell(|record| record.reason = Some(reason));
}

fn tell(what: impl FnOnce(&mut Record)) {
    #[cold]
    fn tell(what: impl FnOnce(&mut Record)) {
        if let Some(mut record) = CURRENT.take() {
            what(&mut record);
            CURRENT.set(Some(record));
        }
    }
    if IS_RECORDED.get() {
        tell(what);
    }
}

/// Of a closed set, since a client may call a method anything.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}

fn user_agent(headers: &HeaderMap) -> Option<String> {
    headers.get(header::USER_AGENT)?.to_str().ok().map(bounded)
}

fn bounded(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records a request that leaves one filter, and ends while the thread still works for it, as in a panic.
    fn end_at_work(tracer: Tracer) {
        let peer = ([10, 0, 0, 9], 40000).into();
        let mut recording = tracer.record(&Request::new(()), peer, Moment::now());
        recording.lend();
        left(Filter::Classify, FilterOutcome::Passed, Moment::now());
        recording.end(EndpointClass::Root, RequestOutcome::Cut, Duration::ZERO);
    }

    #[test]
    fn a_request_that_ends_takes_its_record_from_the_thread() {
        let (queue, mut over) = mpsc::channel(2);
        let tracer = Tracer::sampling(1.0, queue, Metrics::leak());
        end_at_work(tracer);
        left(Filter::InFlight, FilterOutcome::Passed, Moment::now());
        end_at_work(tracer);
        for _ in 0..2 {
            let record = over.try_recv().expect("a finished request");
            assert_eq!(record.steps.iter().map(|step| step.filter).collect::<Vec<_>>(), [Filter::Classify]);
        }
    }

    #[test]
    fn what_finds_the_queue_full_is_counted_by_its_spans() {
        let (queue, over) = mpsc::channel(1);
        let metrics = Metrics::leak();
        let tracer = Tracer::sampling(1.0, queue, metrics);
        for dropped in [0, 2, 4] {
            end_at_work(tracer);
            assert_eq!(metrics.spans(SpanOutcome::Dropped).get(), dropped);
        }
        drop(over);
        end_at_work(tracer);
        assert_eq!(metrics.spans(SpanOutcome::Dropped).get(), 6, "nor is there room when the exporter has ended");
    }
}
