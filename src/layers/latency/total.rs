//! [`Total`]: the outermost service, which measures the whole request.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Method, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::body::TimedBody;
use super::trace;
use crate::reply::AtHand;
use crate::telemetry::Moment;
use crate::telemetry::labels::Label;
use crate::telemetry::latency::{EndpointClass, Latency, RequestOutcome};
use crate::telemetry::otlp::{Recording, Tracer};
use crate::telemetry::talkers::Talkers;

/// Of the access lines: one for each request, at debug.
const ACCESS: &str = "gce_metadata_proxy::access";

/// Makes [`Total`].
#[derive(Debug, Clone, Copy)]
pub struct TotalLayer {
    latency: &'static Latency,
    talkers: &'static Talkers,
    tracer: Tracer,
    peer: SocketAddr,
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Total<S> {
    inner: S,
    layer: TotalLayer,
}

impl TotalLayer {
    /// Requests of this peer are measured here, whose they are is noted there, and some are traced.
    pub fn new(latency: &'static Latency, talkers: &'static Talkers, tracer: Tracer, peer: SocketAddr) -> Self {
        Self { latency, talkers, tracer, peer }
    }
}

impl<S> Layer<S> for TotalLayer {
    type Service = Total<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Total { inner, layer: *self }
    }
}

impl<S, B, A: AtHand> Service<Request<B>> for Total<S>
where
    S: Service<Request<B>, Response = Response<A>>,
{
    type Response = Response<TimedBody<A>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (peer, talkers) = (self.layer.peer.ip(), self.layer.talkers);
        let mut underway = Underway::new(&self.layer, &request);
        trace::begin(underway.began);
        underway.recording.lend();
        let inner = self.inner.call(request);
        underway.recording.take_back();
        underway.endpoint = trace::endpoint();
        ResponseFuture { inner, underway: Some(underway), peer, talkers }
    }
}

pin_project! {
    /// Of [`Total`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        underway: Option<Underway>,
        peer: IpAddr,
        talkers: &'static Talkers,
    }
}

impl<F, A: AtHand, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, E>>,
{
    type Output = Result<Response<TimedBody<A>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let underway = this.underway.as_mut().expect("a future is not polled again after it was ready");
        underway.recording.lend();
        let answer = this.inner.poll(cx);
        underway.recording.take_back();
        let answer = ready!(answer);
        let mut underway = this.underway.take().expect("it was there just now");
        underway.outcome = trace::outcome();
        let now = Moment::now();
        this.talkers.note(*this.peer, underway.outcome, now);
        Poll::Ready(match answer {
            Ok(answer) => {
                underway.first_byte(answer.status(), now);
                Ok(answer.map(|body| TimedBody::new(body, underway, now)))
            }
            Err(reset) => {
                underway.end(now);
                Err(reset)
            }
        })
    }
}

/// A request whose last byte is not there. Dropped before its end, it was cut.
#[derive(Debug)]
pub(super) struct Underway {
    latency: &'static Latency,
    began: Moment,
    endpoint: EndpointClass,
    /// What became of it, once it is known; until it has ended it may still be cut.
    outcome: RequestOutcome,
    ended: Option<Moment>,
    is_head: bool,
    line: Option<Box<Line>>,
    recording: Recording,
}

/// What the access line says besides.
#[derive(Debug)]
struct Line {
    peer: SocketAddr,
    method: Method,
    uri: String,
    status: Option<StatusCode>,
}

impl Underway {
    fn new<B>(layer: &TotalLayer, request: &Request<B>) -> Self {
        let TotalLayer { latency, tracer, peer, .. } = *layer;
        let began = Moment::now();
        let line = || {
            let uri = request.uri().to_string();
            Box::new(Line { peer, method: request.method().clone(), uri, status: None })
        };
        Self {
            latency,
            endpoint: EndpointClass::Unread,
            outcome: RequestOutcome::Cut,
            ended: None,
            is_head: *request.method() == Method::HEAD,
            line: tracing::enabled!(target: ACCESS, tracing::Level::DEBUG).then(line),
            recording: tracer.record(request, peer, began),
            began,
        }
    }

    pub(super) fn is_head(&self) -> bool {
        self.is_head
    }

    fn first_byte(&mut self, status: StatusCode, now: Moment) {
        self.latency.requests.first_byte.record(self.endpoint, self.outcome, now - self.began);
        self.recording.answered(status);
        if let Some(line) = &mut self.line {
            line.status = Some(status);
        }
    }

    /// Its last byte is there, or it was reset.
    pub(super) fn end(mut self, now: Moment) {
        self.ended = Some(now);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let (outcome, ended) = match self.ended {
            Some(ended) => (self.outcome, ended),
            None => (RequestOutcome::Cut, Moment::now()),
        };
        let duration = ended - self.began;
        self.latency.requests.last_byte.record(self.endpoint, outcome, duration);
        self.recording.end(self.endpoint, outcome, duration);
        let Some(line) = &self.line else { return };
        tracing::debug!(
            target: ACCESS,
            peer = %line.peer,
            method = %line.method,
            uri = line.uri,
            status = line.status.map(|status| status.as_u16()),
            endpoint = self.endpoint.label(),
            outcome = outcome.label(),
            micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}
