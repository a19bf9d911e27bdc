//! `catch_panic`: turns a panic while a request is handled into an error of that request.
//!
//! Without it, a panic ends the connection, and the client gets no response. tower-http's `CatchPanic` is not used,
//! because it boxes the body of every response. A panic in a response body still ends the connection.

use std::any::Any;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use crate::error::Error;
use crate::outcome::Outcome;
use telemetry::panics;
use telemetry::requests::Requests;

/// Catches panics while requests of this peer are handled, and counts and logs them.
pub fn layer<S>(requests: &Arc<Requests>, peer: SocketAddr) -> impl Layer<S, Service = CatchPanic<S>> + Clone + use<S> {
    let report = Report { requests: Arc::clone(requests), peer };
    layer_fn(move |inner| CatchPanic { inner, report: report.clone() })
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct CatchPanic<S> {
    inner: S,
    report: Report,
}

#[derive(Debug, Clone)]
struct Report {
    requests: Arc<Requests>,
    peer: SocketAddr,
}

impl Report {
    fn caught(&self, panic: &(dyn Any + Send)) -> Error {
        if let Some(count) = self.requests.panicked() {
            let (panic, place) = panics::caught(panic);
            let location = place.as_deref();
            tracing::error!(peer = %self.peer, panic, location, count, "a request panicked; its client gets status 500");
        }
        Error::Panicked
    }
}

// Unwind safe: a panic drops the request's own state, and releases the locks of state that requests share. Each change made
// under a lock leaves that state valid.
impl<R, T, S> Service<R> for CatchPanic<S>
where
    S: Service<R, Response = T, Error = Error>,
{
    type Response = T;
    type Error = Error;
    type Future = ResponseFuture<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let report = self.report.clone();
        let inner = match catch_unwind(AssertUnwindSafe(|| self.inner.call(request))) {
            Ok(inner) => Outcome::passed(inner),
            Err(panic) => Outcome::decided(Err(report.caught(&*panic))),
        };
        ResponseFuture { inner, report }
    }
}

pin_project! {
    /// The response future of [`CatchPanic`].
    pub struct ResponseFuture<F, T> {
        #[pin]
        inner: Outcome<F, Result<T, Error>>,
        report: Report,
    }
}

impl<F, T> Future for ResponseFuture<F, T>
where
    F: Future<Output = Result<T, Error>>,
{
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = catch_unwind(AssertUnwindSafe(|| this.inner.poll(cx)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(this.report.caught(&*panic))))
    }
}
