//! [`Total`]: the outermost service, which measures the whole request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::Timeline;
use super::body::TimedBody;
use super::underway::Underway;
use crate::reply::AtHand;
use telemetry::Moment;

/// Measures every request of a connection.
pub fn total<S>(timeline: &Arc<Timeline>) -> impl Layer<S, Service = Total<S>> + Clone + use<S> {
    let timeline = Arc::clone(timeline);
    layer_fn(move |inner| Total { inner, timeline: Arc::clone(&timeline) })
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Total<S> {
    inner: S,
    timeline: Arc<Timeline>,
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
        let underway = Underway::begin(Arc::clone(&self.timeline), &request);
        ResponseFuture { underway: Some(underway), inner: self.inner.call(request) }
    }
}

pin_project! {
    /// The future of [`Total`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        underway: Option<Underway>,
    }
}

impl<F, A: AtHand, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, E>>,
{
    type Output = Result<Response<TimedBody<A>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let timeline = &this.underway.as_ref().expect("a future is not polled again after it was ready").timeline;
        timeline.resume();
        let Poll::Ready(answer) = this.inner.poll(cx) else {
            timeline.suspend();
            return Poll::Pending;
        };
        let now = Moment::now();
        timeline.decided(now);
        let mut underway = this.underway.take().expect("it was there just now");
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
