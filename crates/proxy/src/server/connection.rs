//! [`Connection`]: a client's connection, from its first byte to its last.
//!
//! Alternates between two states: parked (`park.rs`), and served by hyper.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::activity::Activity;
use super::arrival::Arrival;
use super::bodies::Bodies;
use super::connections::{Place, Reclaim, Serving};
use super::drain::LastCall;
use super::framing::MAX_HEAD_BYTES;
use super::inbox::Inbox;
use super::outstanding::Outstanding;
use super::park::{self, Next};
use super::service::PerConnection;
use super::socket::{Cuttable, Socket};
use super::stack::NewStack;
use super::watchdog::{Due, WRITE_TIMEOUT, Watchdog};
use super::wire::Watched;

/// Maximum bytes to read after refusing a client that is still sending. Closing a socket with unread bytes resets
/// it, and the client would not see the refusal.
const MAX_LINGER_BYTES: u64 = 1024 * 1024;

/// Maximum time to read these bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between checks whether a client reads what was written before the close.
const DELIVERY_INTERVAL: Duration = Duration::from_millis(100);

/// Idle time after which a connection is parked: it keeps its socket and drops hyper's state and buffers
/// (about 13 KiB).
const PARK_TIMEOUT: Duration = Duration::from_secs(1);

/// One client's connection.
pub(super) struct Connection<I: Socket, N: NewStack> {
    pub(super) io: Cuttable<I>,
    /// Bytes that the client has sent and hyper has not read.
    pub(super) inbox: Inbox,
    pub(super) arrival: Arrival,
    pub(super) stacks: Arc<N>,
    /// State shared by the connection's stacks. Created with the first stack.
    pub(super) memory: Option<N::Memory>,
    pub(super) last_call: LastCall,
    pub(super) activity: Arc<Activity>,
    pub(super) place: Place,
    /// Where the bodies of POSTs are received. `None` if they are not kept.
    pub(super) bodies: Option<Arc<Bodies>>,
}

/// Why hyper stopped serving.
enum Ended {
    /// The connection closed: by the client, after a last response, or with an error.
    Closed(hyper::Result<()>),
    /// The watchdog intervened.
    Due(Due),
}

impl<I: Socket, N: NewStack> Connection<I, N> {
    /// Serves until either side closes, a timeout expires or the process ends.
    ///
    /// Without a complete head, a connection consists of the socket and this future. hyper's state is created
    /// when a head is complete, and dropped when the connection becomes idle.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` would keep the connection twice")]
    pub(super) fn serve(mut self) -> impl Future<Output = ()> {
        async move {
            let mut watchdog = pin!(Watchdog::new(&self.last_call, &self.activity));
            loop {
                let Self { io, inbox, activity, place, .. } = &mut self;
                match park::gather(&mut **io, inbox, activity, place, watchdog.as_mut()).await {
                    Next::Serve => {}
                    Next::Leave => return,
                    Next::Refuse => return self.refuse(),
                }
                let Some(connection) = Box::pin(self.serve_http(watchdog.as_mut())).await else { return };
                self = connection;
            }
        }
    }

    fn refuse(self) {
        self.place.refused(self.arrival.peer);
        self.io.close_by_reset(true);
    }

    /// Serves requests with hyper until the connection ends. Returns it if it becomes idle.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` would keep the connection twice")]
    fn serve_http(mut self, mut watchdog: Pin<&mut Watchdog>) -> impl Future<Output = Option<Self>> {
        async move {
            let mut serving = if let Some(serving) = self.place.serve(Reclaim::Yes) {
                serving
            } else {
                let Self { io, inbox, activity, place, .. } = &mut self;
                match Box::pin(park::wait_for_room(&mut **io, inbox, activity, place, watchdog.as_mut())).await {
                    Ok(serving) => serving,
                    Err(Next::Refuse) => {
                        self.refuse();
                        return None;
                    }
                    Err(_) => return None,
                }
            };
            let Self { io, inbox, arrival, stacks, mut memory, last_call, activity, place, bodies } = self;
            let shared = memory.get_or_insert_with(|| stacks.remember(arrival));
            let service = PerConnection {
                stack: RefCell::new(stacks.new_stack(arrival, shared)),
                activity: Arc::clone(&activity),
                bodies: bodies.clone(),
                client: arrival.addr(),
            };
            let mut http = http1::Builder::new()
                .max_buf_size(MAX_HEAD_BYTES)
                // Title case, as the real server writes them, for scripts that search curl's output for
                // `Metadata-Flavor: Google`.
                .title_case_headers(true)
                .serve_connection(
                    TokioIo::new(Watched::new(io, inbox, Arc::clone(&activity), place.large_writes())),
                    service,
                );
            let ended = poll_fn(|cx| {
                activity.tick();
                // Heard here, because the watchdog is not polled while more heads are buffered.
                if last_call.has_come() {
                    activity.call_last();
                }
                if let Poll::Ready(ended) = Pin::new(&mut http).poll(cx) {
                    return Poll::Ready(Ended::Closed(ended));
                }
                serving.weigh_response(activity.is_blocked());
                if activity.has_withheld() {
                    // A response was written, and another head is buffered. hyper is waiting for it, and nothing
                    // else wakes the task. Other connections get their turn first.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // Polled after hyper, because most connections have ended by then.
                let park = if serving.is_crowded() { Duration::ZERO } else { PARK_TIMEOUT };
                watchdog.as_mut().poll(I::CAN_WAIT.then_some(park), cx).map(Ended::Due)
            })
            .await;
            let parts = http.into_parts();
            // A large write ends after its socket is closed: locals are dropped in reverse order.
            let (_large, mut io, mut inbox) = parts.io.into_inner().into_parts();
            if matches!(ended, Ended::Due(Due::Park)) {
                // A parked connection is not charged for what the kernel has of its responses.
                if !deliver(|| io.outstanding(), &activity, &mut serving).await {
                    place.note_reset();
                    return None;
                }
                // At most an empty line, otherwise hyper would not be idle.
                inbox.put_back(&parts.read_buf);
                return Some(Self { io, inbox, arrival, stacks, memory, last_call, activity, place, bodies });
            }
            let may_arrive = close(&mut *io, arrival.peer, &activity, ended).await;
            if !(may_arrive && deliver(|| io.outstanding(), &activity, &mut serving).await) {
                place.note_reset();
            }
            None
        }
    }
}

/// Shuts down a socket that hyper no longer serves. Returns whether the client may still get what was written.
async fn close<I: Socket>(io: &mut I, peer: SocketAddr, activity: &Activity, ended: Ended) -> bool {
    match ended {
        Ended::Due(_) => {
            tracing::debug!(%peer, "closing a connection that made no progress");
            // It had its time to read.
            return !activity.is_blocked();
        }
        Ended::Closed(Err(_)) if activity.wants_reset() => {
            io.close_by_reset(true);
            return false;
        }
        Ended::Closed(Ok(())) if activity.body_announced() => linger(io).await,
        Ended::Closed(Err(error)) => {
            tracing::debug!(%peer, %error, "client connection failed");
            if error.is_parse() {
                linger(io).await;
            }
        }
        // Sends a response that `Socket::poll_send` held back for the FIN. If the client sent more than was read,
        // closing alone would discard it. Errors do not matter, because the socket is closed next.
        Ended::Closed(Ok(())) => drop(io.shutdown().await),
    }
    true
}

async fn linger<I: AsyncRead + AsyncWrite + Unpin>(io: &mut I) {
    let drained = async {
        io.shutdown().await?;
        tokio::io::copy(&mut io.take(MAX_LINGER_BYTES), &mut tokio::io::sink()).await
    };
    // Errors do not matter, because the connection is closed next.
    let _ = timeout(LINGER_TIMEOUT, drained).await;
}

/// Waits until the client has read enough for all to be sent, for as long as for the rest of a response. Returns whether it
/// has. The connection keeps its place meanwhile, and may give way like any other whose client does not read.
async fn deliver(outstanding: impl Fn() -> Outstanding, activity: &Activity, serving: &mut Serving) -> bool {
    let mut left = None;
    while let Outstanding::Unsent(bytes) = outstanding() {
        activity.tick();
        if left.replace(bytes).is_some_and(|left| bytes < left) {
            // The client reads, slowly.
            activity.sent();
        }
        activity.delivering();
        if activity.blocked_since().is_some_and(|since| since.elapsed() >= WRITE_TIMEOUT) {
            return false;
        }
        serving.weigh_response(true);
        sleep(DELIVERY_INTERVAL).await;
    }
    activity.tick();
    activity.delivered();
    true
}

#[cfg(test)]
mod tests;
