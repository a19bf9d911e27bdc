//! [`PerConnection`]: the stack as hyper calls it for one connection.
//!
//! Records when requests arrive and when their responses end, and passes response bodies on at the pace of the
//! client.

use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use http::header::{self, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tower::ServiceExt;

use super::activity::{Activity, Answering};
use super::bodies::{self, Bodies};
use super::reset::Reset;
use super::stack::{Payload, Stack};
use crate::outcome::Outcome;

/// The stack of one connection, as a hyper service.
pub(super) struct PerConnection<S> {
    /// Called in place: cloning and dropping it costs more than some of its layers. Borrowed for a call only, which calls
    /// nothing of this service.
    pub(super) stack: RefCell<S>,
    pub(super) activity: Arc<Activity>,
    /// Where the bodies of POSTs are received. `None` if they are not kept.
    pub(super) bodies: Option<Arc<Bodies>>,
    pub(super) client: IpAddr,
}

impl<S: Stack> hyper::service::Service<Request<Incoming>> for PerConnection<S> {
    type Response = Response<ResponseBody<S::Body>>;
    type Error = Reset;
    type Future = ResponseFuture<S::Future, S::Body>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let answering = Some(self.activity.answering());
        let is_last = wants_close(&request);
        let payload = if request.body().is_end_stream() { Payload::Empty } else { Payload::Some };
        let call = if let Some(bodies) = self.bodies.as_ref().filter(|_| request.method() == Method::POST) {
            let (bodies, client, activity) = (Arc::clone(bodies), self.client, Arc::clone(&self.activity));
            self.call_with(request, |body| bodies.receive(client, body, activity))
        } else if self.activity.is_receiving_body() {
            self.call_with(request, |body| bodies::discard(body, Arc::clone(&self.activity)))
        } else {
            self.call_when_ready(request.map(|_| payload))
        };
        ResponseFuture { call, answering, is_last }
    }
}

/// A request in the stack, or before it.
type Call<F, B> = Outcome<F, Result<Response<B>, Reset>>;

impl<S: Stack> PerConnection<S> {
    /// Calls the stack once it is ready. hyper passes no waker here; if the stack is not ready, the future polls another
    /// one, with its own.
    fn call_when_ready(&self, request: Request<Payload>) -> Call<S::Future, S::Body> {
        let mut stack = self.stack.borrow_mut();
        match stack.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Outcome::passed(stack.call(request)),
            // It will never be ready.
            Poll::Ready(Err(Reset)) => Outcome::decided(Err(Reset)),
            Poll::Pending => Outcome::pending(stack.clone().oneshot(request)),
        }
    }

    /// Calls another stack once the body has been read. The watchdog bounds the time.
    fn call_with<P>(&self, request: Request<Incoming>, read: impl FnOnce(Incoming) -> P) -> Call<S::Future, S::Body>
    where
        P: Future<Output = Payload> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let (stack, payload) = (self.stack.borrow().clone(), read(body));
        Outcome::pending(async move { stack.oneshot(Request::from_parts(head, payload.await)).await })
    }
}

pin_project! {
    pub(super) struct ResponseFuture<F, B> {
        #[pin]
        call: Call<F, B>,
        answering: Option<Answering>,
        is_last: bool,
    }
}

/// Whether the connection closes after the response because the client requested it (RFC 9112, section 9.3), by the
/// same rules as hyper.
fn wants_close<B>(request: &Request<B>) -> bool {
    let connection = request.headers().get(header::CONNECTION).map(HeaderValue::as_bytes);
    match connection {
        Some(wishes) => wishes.eq_ignore_ascii_case(b"close"),
        None => request.version() == Version::HTTP_10,
    }
}

impl<F, B> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, Reset>>,
{
    type Output = Result<Response<ResponseBody<B>>, Reset>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.call.poll(cx));
        let answering = this.answering.take().expect("a future is not polled again after it was ready");
        let Ok(mut response) = answer else {
            answering.activity().want_reset();
            return Poll::Ready(Err(Reset));
        };
        let closes = answering.activity().closes();
        if closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if closes || *this.is_last {
            answering.activity().part();
        }
        Poll::Ready(Ok(response.map(|inner| ResponseBody { inner, answering, is_unwritten: false })))
    }
}

pin_project! {
    /// A response body. The connection is in use until it has ended. hyper gets a chunk only once the previous one is written,
    /// so that it buffers a single chunk for a client that does not read.
    pub(super) struct ResponseBody<B> {
        #[pin]
        inner: B,
        answering: Answering,
        // hyper got a chunk, which may not be the last, and has not had a chance to write it.
        is_unwritten: bool,
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        if mem::take(this.is_unwritten) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.answering.activity().is_blocked() {
            // The socket wakes this task when it becomes writable.
            return Poll::Pending;
        }
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        *this.is_unwritten = matches!(frame, Some(Ok(_))) && !this.inner.is_end_stream();
        if matches!(frame, Some(Err(_))) {
            // For an HTTP/1.0 client a normal close would end the response; a reset shows that it was cut
            // short.
            this.answering.activity().want_reset();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
