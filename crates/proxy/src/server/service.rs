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
use tower::util::{Oneshot, ServiceExt};

use super::activity::{Activity, Answering};
use super::bodies::Bodies;
use super::reset::Reset;
use super::stack::{Payload, Stack};

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
    type Future = ResponseFuture<S::Future, Late<S>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let answering = Some(self.activity.answering());
        let is_last = wants_close(&request);
        let payload = if request.body().is_end_stream() { Payload::Empty } else { Payload::Some };
        let call = if let Some(bodies) = self.bodies.as_ref().filter(|_| request.method() == Method::POST) {
            let (head, body) = request.into_parts();
            let request = Request::from_parts(head, Payload::Empty);
            let payload = Box::pin(Arc::clone(bodies).receive(self.client, body, Arc::clone(&self.activity)));
            Call::Late { inner: Box::pin(Late::Keeps { payload, called: Some((self.another_stack(), request)) }) }
        } else if self.activity.is_receiving_body() {
            let (head, body) = request.into_parts();
            let request = Request::from_parts(head, Payload::Empty);
            let activity = Arc::clone(&self.activity);
            Call::Late {
                inner: Box::pin(Late::Receives { body, called: Some((self.another_stack(), request)), activity }),
            }
        } else {
            self.call_when_ready(request.map(|_| payload))
        };
        ResponseFuture { call, answering, is_last }
    }
}

impl<S: Stack> PerConnection<S> {
    /// Calls the stack once it is ready. hyper passes no waker here; if the stack is not ready, the future polls another
    /// one, with its own.
    fn call_when_ready(&self, request: Request<Payload>) -> Call<S::Future, Late<S>> {
        let mut stack = self.stack.borrow_mut();
        match stack.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Call::Called { inner: stack.call(request) },
            Poll::Ready(Err(Reset)) => Call::Failed,
            Poll::Pending => Call::Late { inner: Box::pin(Late::Called { inner: stack.clone().oneshot(request) }) },
        }
    }

    /// A stack for a request that is called later.
    fn another_stack(&self) -> S {
        self.stack.borrow().clone()
    }
}

pin_project! {
    /// A request for which the stack is called later.
    #[project = LateProjected]
    pub(super) enum Late<S: Stack> {
        /// The body is read to its end and discarded, so that the connection can continue. The watchdog bounds the
        /// time.
        Receives { body: Incoming, called: Option<(S, Request<Payload>)>, activity: Arc<Activity> },
        /// Its body is read to the end and kept.
        Keeps { payload: Pin<Box<dyn Future<Output = Payload> + Send>>, called: Option<(S, Request<Payload>)> },
        /// The stack is called when it is ready.
        Called { #[pin] inner: Oneshot<S, Request<Payload>> },
    }
}

impl<S: Stack> Future for Late<S> {
    type Output = Result<Response<S::Body>, Reset>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                LateProjected::Receives { body, called, activity } => {
                    let Some((_, request)) = called else { return Poll::Ready(Err(Reset)) };
                    ready!(poll_discard(body, request.body_mut(), activity, cx));
                    let Some((stack, request)) = called.take() else { return Poll::Ready(Err(Reset)) };
                    self.set(Self::Called { inner: stack.oneshot(request) });
                }
                LateProjected::Keeps { payload, called } => {
                    let payload = ready!(payload.as_mut().poll(cx));
                    let Some((stack, request)) = called.take() else { return Poll::Ready(Err(Reset)) };
                    self.set(Self::Called { inner: stack.oneshot(request.map(|_| payload)) });
                }
                LateProjected::Called { inner } => return inner.poll(cx),
            }
        }
    }
}

/// Reads a body to its end and discards it. A body that breaks off also counts as ended: its request is answered. A
/// body that turns out not to be skipped (`framing.rs`) is left unread, because the connection closes after the
/// response.
fn poll_discard(body: &mut Incoming, payload: &mut Payload, activity: &Activity, cx: &mut Context<'_>) -> Poll<()> {
    while !activity.body_announced() {
        let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(cx)) else { return Poll::Ready(()) };
        *payload = Payload::Some;
        if frame.is_err() {
            return Poll::Ready(());
        }
    }
    *payload = Payload::Some;
    Poll::Ready(())
}

pin_project! {
    pub(super) struct ResponseFuture<F, L> {
        #[pin]
        call: Call<F, L>,
        answering: Option<Answering>,
        is_last: bool,
    }
}

pin_project! {
    /// A request in the stack, or before it.
    #[project = CallProjected]
    pub(super) enum Call<F, L> {
        /// The stack was ready.
        Called { #[pin] inner: F },
        /// The stack is called later. Boxed, because hyper reserves memory for this future in every connection.
        Late { inner: Pin<Box<L>> },
        /// The stack will never be ready.
        Failed,
    }
}

impl<F, L, B> Future for Call<F, L>
where
    F: Future<Output = Result<Response<B>, Reset>>,
    L: Future<Output = F::Output>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            CallProjected::Called { inner } => inner.poll(cx),
            CallProjected::Late { inner } => inner.as_mut().poll(cx),
            CallProjected::Failed => Poll::Ready(Err(Reset)),
        }
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

impl<F, L, B> Future for ResponseFuture<F, L>
where
    F: Future<Output = Result<Response<B>, Reset>>,
    L: Future<Output = F::Output>,
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
