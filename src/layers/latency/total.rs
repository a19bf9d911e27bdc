//! [`Total`]: the outermost service, which measures the whole request.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::body::TimedBody;
use super::trace;
use super::underway::Underway;
use crate::reply::AtHand;
use crate::telemetry::Moment;
use crate::telemetry::latency::Latency;
use crate::telemetry::otlp::Tracer;
use crate::telemetry::talkers::Talkers;

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
        let mut underway = Underway::new(self.layer.latency, self.layer.tracer, self.layer.peer, &request);
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
