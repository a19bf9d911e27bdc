//! One client's connection, from its first byte to its last.

use std::future::{Future, poll_fn};
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Buf;
use http::header::{self, HeaderValue};
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::Service;
use tower::util::{Oneshot, ServiceExt};

use super::activity::{Activity, Answering, Timeouts};
use super::connections::{Place, Reclaim, Serving};
use super::drain::LastCall;
use super::framing::MAX_HEAD_BYTES;
use super::inbox::{Gathered, Inbox};
use super::reset::Reset;
use super::socket::Socket;
use super::wire::Watched;

/// Maximum bytes to read, and maximum time, after refusing a client that is still sending. Closing a socket
/// with unread bytes resets it, and the client would not see the refusal.
const LINGER: (u64, Duration) = (1024 * 1024, Duration::from_secs(1));

/// Minimum size, in bytes, of a response chunk that must be written before hyper gets the next one.
const LARGE_PIECE_BYTES: usize = 4 * 1024;

/// Interval between attempts to get memory to serve a request.
const ROOM_INTERVAL: Duration = Duration::from_millis(20);

/// Idle time after which a connection is parked: it keeps its socket and drops hyper's state and buffers
/// (about 13 KiB).
const PARK: Duration = Duration::from_secs(1);

/// Answers the requests of one connection. It turns its errors into answers itself, or has the connection reset.
///
/// Each request is answered by a clone, which is dropped once it was called. So a clone gives back whatever it reserved in
/// `poll_ready` and did not use, and cloning should be cheap.
pub trait Stack: Service<Request<Incoming>, Response = Response<Self::Body>, Error = Reset> + Clone {
    /// Of the answers.
    type Body: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static;
}

impl<S, B> Stack for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Reset> + Clone,
    B: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static,
{
    type Body = B;
}

/// Makes the stack of a connection. An idle connection has none.
pub trait NewStack {
    /// What answers requests.
    type Stack: Stack;

    /// A stack for requests of this peer.
    fn new_stack(&self, peer: SocketAddr) -> Self::Stack;
}

impl<F, S> NewStack for F
where
    F: Fn(SocketAddr) -> S,
    S: Stack,
{
    type Stack = S;

    fn new_stack(&self, peer: SocketAddr) -> S {
        self(peer)
    }
}

/// One client's connection.
pub(super) struct Connection<I, N> {
    pub(super) io: I,
    /// Bytes that the client has sent and hyper has not read.
    pub(super) inbox: Inbox,
    pub(super) peer: SocketAddr,
    pub(super) stacks: Arc<N>,
    pub(super) timeouts: Timeouts,
    pub(super) last_call: LastCall,
    pub(super) activity: Arc<Activity>,
    pub(super) place: Place,
}

/// Next step of a parked connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Read a request with hyper.
    Serve,
    /// Close: the client disconnected, or made no progress for too long.
    Leave,
    /// Reset: there is no memory for the client's bytes.
    Refuse,
}

impl<I: Socket, N: NewStack> Connection<I, N> {
    /// Serves until either side closes, a timeout expires, or the process ends.
    ///
    /// Without a complete head, a connection consists of the socket and this future. hyper's state is created
    /// when a head is complete, and dropped when the connection becomes idle.
    pub(super) async fn serve(mut self) {
        let mut bounds = pin!(Bounds::new(self.timeouts, &self.last_call, &self.activity));
        loop {
            match self.gather(bounds.as_mut()).await {
                Next::Serve => {}
                Next::Leave => return,
                Next::Refuse => return self.refuse(),
            }
            let Some(connection) = Box::pin(self.serve_http(bounds.as_mut())).await else { return };
            self = connection;
        }
    }

    /// Reads until a request head is complete.
    async fn gather(&mut self, mut bounds: Pin<&mut Bounds>) -> Next {
        if !I::CAN_WAIT {
            return Next::Serve;
        }
        let Self { io, inbox, activity, place, .. } = self;
        poll_fn(|cx| {
            activity.tick();
            loop {
                match inbox.poll_gather(io, cx) {
                    Poll::Ready(Ok(Gathered::Head)) => return Poll::Ready(Next::Serve),
                    Poll::Ready(Ok(Gathered::Part)) => {
                        activity.received(0, inbox.mid_head(), false);
                        if !place.hold_head(inbox.capacity()) {
                            return Poll::Ready(Next::Refuse);
                        }
                    }
                    Poll::Ready(Ok(Gathered::End) | Err(_)) => return Poll::Ready(Next::Leave),
                    Poll::Pending => return bounds.as_mut().poll(None, cx).map(|_| Next::Leave),
                }
            }
        })
        .await
    }

    fn refuse(self) {
        self.place.refused(self.peer);
        self.io.close_by_reset(true);
    }

    /// Serves requests with hyper until the connection ends. Returns it if it becomes idle.
    async fn serve_http(mut self, mut bounds: Pin<&mut Bounds>) -> Option<Self> {
        let serving = match self.place.serve(Reclaim::Yes) {
            Some(serving) => serving,
            None => match Box::pin(wait_for_room(&self.place, &mut self.io, &mut self.inbox, bounds.as_mut())).await {
                Ok(serving) => serving,
                Err(Next::Refuse) => {
                    self.refuse();
                    return None;
                }
                Err(_) => return None,
            },
        };
        let Self { io, inbox, peer, stacks, timeouts, last_call, activity, place } = self;
        let service = PerConnection { stack: stacks.new_stack(peer), activity: Arc::clone(&activity) };
        let mut http = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            // Title case, as the real server writes them, for scripts that search curl's output for
            // `Metadata-Flavor: Google`.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(Watched::new(io, inbox, Arc::clone(&activity))), service);
        if last_call.has_come() {
            activity.call_last();
        }
        let ended = poll_fn(|cx| {
            activity.tick();
            if let Poll::Ready(ended) = Pin::new(&mut http).poll(cx) {
                return Poll::Ready(Ended::Closed(ended));
            }
            if activity.has_withheld() {
                // A response was written, and another head is buffered. hyper is waiting for it, and nothing
                // else wakes the task. Other connections get their turn first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Polled after hyper, because most connections have ended by then.
            let park = if serving.is_crowded() { Duration::ZERO } else { PARK };
            bounds.as_mut().poll(I::CAN_WAIT.then_some(park), cx)
        })
        .await;
        let parts = http.into_parts();
        let (io, mut inbox) = parts.io.into_inner().into_parts();
        drop(serving);
        match ended {
            Ended::Idle => {
                // At most an empty line, otherwise hyper would not be idle.
                inbox.put_back(&parts.read_buf);
                return Some(Self { io, inbox, peer, stacks, timeouts, last_call, activity, place });
            }
            Ended::Useless => tracing::debug!(%peer, "closing a connection that made no progress"),
            Ended::Closed(Err(_)) if activity.wants_reset() => io.close_by_reset(true),
            Ended::Closed(Ok(())) if activity.body_announced() => linger(io).await,
            Ended::Closed(Err(error)) => {
                tracing::debug!(%peer, %error, "client connection failed");
                if error.is_parse() {
                    linger(io).await;
                }
            }
            Ended::Closed(Ok(())) => {}
        }
        None
    }
}

/// Waits until there is memory to serve a request. An error is the next step instead.
async fn wait_for_room<I: Socket>(
    place: &Place,
    io: &mut I,
    inbox: &mut Inbox,
    mut bounds: Pin<&mut Bounds>,
) -> Result<Serving, Next> {
    let mut retry = pin!(sleep(ROOM_INTERVAL));
    bounds.activity.wait_for_room(true);
    let waited = poll_fn(|cx| {
        bounds.activity.tick();
        if inbox.poll_end(io, cx).is_ready() {
            return Poll::Ready(Err(Next::Leave));
        }
        while retry.as_mut().poll(cx).is_ready() {
            if let Some(serving) = place.serve(Reclaim::No) {
                return Poll::Ready(Ok(serving));
            }
            retry.as_mut().reset(Instant::now() + ROOM_INTERVAL);
        }
        bounds.as_mut().poll(None, cx).map(|_| Err(Next::Refuse))
    })
    .await;
    bounds.activity.wait_for_room(false);
    waited
}

/// Why hyper stopped serving.
enum Ended {
    /// The connection closed: by the client, after a last response, or with an error.
    Closed(hyper::Result<()>),
    /// The connection is idle.
    Idle,
    /// A timeout expired.
    Useless,
}

pin_project! {
    /// The limits of a connection that makes no progress: a timer, and the signal that the process is
    /// draining.
    struct Bounds {
        timeouts: Timeouts,
        activity: Arc<Activity>,
        #[pin]
        timer: Sleep,
        last_call: LastCall,
        #[pin]
        comes: WaitForCancellationFutureOwned,
        // The waker of the connection's task, which timer and signal wake.
        wakes: Option<Waker>,
    }
}

impl Bounds {
    fn new(timeouts: Timeouts, last_call: &LastCall, activity: &Arc<Activity>) -> Self {
        let timer = sleep_until(Instant::now() + timeouts.header);
        let (last_call, comes) = (last_call.clone(), last_call.comes());
        Self { timeouts, activity: Arc::clone(activity), timer, last_call, comes, wakes: None }
    }

    /// Ready when the connection's timeout has expired.
    ///
    /// There is a single timer. It is reset only when it fires or when an earlier deadline appears, because
    /// deadlines mostly move later, and a spurious wakeup costs less than resetting the timer on every
    /// request. Timer and signal are not polled again while they hold the right waker, because that takes
    /// locks.
    fn poll(self: Pin<&mut Self>, idle_for: Option<Duration>, cx: &mut Context<'_>) -> Poll<Ended> {
        let mut this = self.project();
        let mut is_set = this.wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
        if !is_set {
            *this.wakes = Some(cx.waker().clone());
            // The deadline is checked next.
            let _ = this.comes.poll(cx);
        }
        if this.last_call.has_come() {
            this.activity.call_last();
        }
        let now = Instant::now;
        loop {
            let park = idle_for.and_then(|idle_for| Some(this.activity.idle_since()? + idle_for));
            if park.is_some() && idle_for == Some(Duration::ZERO) {
                return Poll::Ready(Ended::Idle);
            }
            let deadline = this.activity.deadline(*this.timeouts);
            let next = [park, deadline].into_iter().flatten().min().unwrap_or_else(|| now() + this.timeouts.header);
            if next < this.timer.deadline() {
                this.timer.as_mut().reset(next);
            }
            if is_set && !this.timer.is_elapsed() {
                return Poll::Pending;
            }
            ready!(this.timer.as_mut().poll(cx));
            is_set = false;
            let now = now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(Ended::Useless);
            }
            if park.is_some_and(|park| park <= now) {
                return Poll::Ready(Ended::Idle);
            }
            this.timer.as_mut().reset(next.max(now + Duration::from_millis(1)));
        }
    }
}

async fn linger<I: AsyncRead + AsyncWrite + Unpin>(mut io: I) {
    let (bytes, time) = LINGER;
    let drained = async {
        io.shutdown().await?;
        tokio::io::copy(&mut io.take(bytes), &mut tokio::io::sink()).await
    };
    // Errors do not matter, because the connection is closed next.
    let _ = timeout(time, drained).await;
}

/// The stack as one connection sees it.
struct PerConnection<S> {
    stack: S,
    activity: Arc<Activity>,
}

impl<S: Stack> hyper::service::Service<Request<Incoming>> for PerConnection<S> {
    type Response = Response<AnswerBody<S::Body>>;
    type Error = Reset;
    type Future = Answer<S::Future, Oneshot<S, Request<Incoming>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let answering = Some(self.activity.answering());
        let is_last = wants_to_part(&request);
        Answer { asked: ask(self.stack.clone(), request), answering, is_last }
    }
}

/// Calls the stack once it is ready. hyper has no waker for this; if the stack is not ready, the future asks again with one.
fn ask<S: Stack>(mut stack: S, request: Request<Incoming>) -> Asked<S::Future, Oneshot<S, Request<Incoming>>> {
    match stack.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(())) => Asked::Called { inner: stack.call(request) },
        Poll::Ready(Err(Reset)) => Asked::Failed,
        Poll::Pending => Asked::Unready { inner: Box::pin(stack.oneshot(request)) },
    }
}

pin_project! {
    struct Answer<F, L> {
        #[pin]
        asked: Asked<F, L>,
        answering: Option<Answering>,
        is_last: bool,
    }
}

pin_project! {
    /// A request in the stack, or before it.
    #[project = AskedProjected]
    enum Asked<F, L> {
        /// The stack was ready.
        Called { #[pin] inner: F },
        /// The stack is called when it is ready. Boxed, since hyper reserves memory for an answer in every connection.
        Unready { inner: Pin<Box<L>> },
        /// The stack will never be ready.
        Failed,
    }
}

impl<F, L, B> Future for Asked<F, L>
where
    F: Future<Output = Result<Response<B>, Reset>>,
    L: Future<Output = F::Output>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AskedProjected::Called { inner } => inner.poll(cx),
            AskedProjected::Unready { inner } => inner.as_mut().poll(cx),
            AskedProjected::Failed => Poll::Ready(Err(Reset)),
        }
    }
}

/// Whether the connection closes after the response because the client asked for it (RFC 9112, section 9.3),
/// by the same rules as hyper.
fn wants_to_part<B>(request: &Request<B>) -> bool {
    let connection = request.headers().get(header::CONNECTION).map(HeaderValue::as_bytes);
    match connection {
        Some(wishes) => wishes.eq_ignore_ascii_case(b"close"),
        None => request.version() == Version::HTTP_10,
    }
}

impl<F, L, B> Future for Answer<F, L>
where
    F: Future<Output = Result<Response<B>, Reset>>,
    L: Future<Output = F::Output>,
{
    type Output = Result<Response<AnswerBody<B>>, Reset>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.asked.poll(cx));
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
        Poll::Ready(Ok(response.map(|inner| AnswerBody { inner, answering, is_unwritten: false })))
    }
}

pin_project! {
    /// A response body. The connection is in use until it has ended. hyper gets a large chunk only once the
    /// previous one is written, so that it buffers a single chunk for a client that does not read.
    struct AnswerBody<B> {
        #[pin]
        inner: B,
        answering: Answering,
        // hyper got a large chunk and has not had a chance to write it.
        is_unwritten: bool,
    }
}

impl<B: http_body::Body> http_body::Body for AnswerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        if mem::take(this.is_unwritten) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.answering.activity().is_blocked() {
            // The socket wakes this task when it becomes writable.
            return Poll::Pending;
        }
        let frame = ready!(this.inner.poll_frame(cx));
        *this.is_unwritten = matches!(&frame, Some(Ok(frame)) if frame.data_ref().is_some_and(|data| data.remaining() >= LARGE_PIECE_BYTES));
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

#[cfg(test)]
mod tests;
