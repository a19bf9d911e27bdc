//! [`UpstreamClient`]: connections to the upstream, and its deadlines.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Response, StatusCode};
use pin_project_lite::pin_project;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::{Timeout, timeout};

use super::Health;
use super::body::{UpstreamBody, buffered};
use super::connection::Connection;
use super::exchange::{Incoming, exchange};
use super::metrics::UpstreamMetrics;
use super::outgoing::{Outgoing, RequestKind};
use super::pool::Lease;
use super::server::Server;
use super::timing::{ExchangeTimer, outcome_of};
use crate::failure::{Failure, UPSTREAM_TIMEOUT};
use crate::reply::Body;
use crate::room::Room;
use protocol::metadata::Target;
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR};
use telemetry::labels::Label;

/// Kernel receive buffer of an upstream connection, in bytes; the kernel doubles it. It bounds how much of a response that is not
/// read leaves the upstream: with 200 requests in flight, 5.5 MiB. With less, the server waits for an acknowledgement after
/// every few KiB, and a value of 20 KiB takes up to four times the processor time (benches/README.md).
const RECEIVE_BUFFER_BYTES: u32 = 14 * 1024;

/// Idle time before the first TCP keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Interval between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Number of unanswered probes after which the connection is closed.
const KEEPALIVE_PROBES: u32 = 3;

/// TCP user timeout: maximum time without acknowledgement of sent bytes or probes. While retransmitting, the
/// kernel sends no probes, and by default it retransmits for a quarter of an hour.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time allowed beyond a hanging GET's own `timeout_sec`.
const HANGING_MARGIN: Duration = Duration::from_secs(5);

/// A client of the upstream.
#[derive(Debug, Clone)]
pub struct UpstreamClient {
    target: Arc<Target>,
    server: Arc<Server>,
    room: Arc<Room>,
    metrics: Arc<UpstreamMetrics>,
}

impl UpstreamClient {
    /// Creates a client that connects on the first request. Buffered responses are charged to `room`.
    pub fn new(target: Target, health: Arc<Health>, room: Arc<Room>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { target: Arc::new(target), server: Server::new(health), room, metrics }
    }

    /// Sends a request and returns the response, whose body is buffered, or streamed if it is too large.
    pub(super) async fn send(&self, request: &mut Outgoing) -> Result<Response<Body>, Failure> {
        let awaited_from = (request.kind == RequestKind::Ordinary).then(|| Arc::clone(&self.server));
        let mut timer = ExchangeTimer::start(Arc::clone(&self.metrics.latency), request.endpoint, awaited_from);
        let answer = self.within(request, &mut timer).await;
        match &answer {
            Ok(answer) => self.server.health.answered(answer.status()),
            // A pod can cause it: the server repeats a query in `Location`.
            Err(Failure::HeadTooLarge) => {}
            Err(failure) => self.server.health.failed(failure),
        }
        let outcome = answer.as_ref().map_or_else(Failure::label, |answer| outcome_of(answer.status()).label());
        self.metrics.count(outcome);
        match answer {
            Ok(answer) => Ok(answer.map(|body| body.timed_by(timer))),
            Err(failure) => {
                timer.fail();
                Err(failure)
            }
        }
    }

    async fn within(
        &self,
        request: &mut Outgoing,
        timer: &mut ExchangeTimer,
    ) -> Result<Response<UpstreamBody>, Failure> {
        match request.kind {
            RequestKind::Ordinary => {
                let answered = async {
                    // In a block of its own, so that the response is kept once while its body is read: in the box.
                    let reading = {
                        let mut response = self.exchange(request, timer).await?;
                        checked(&response)?;
                        timer.first_byte(response.status());
                        if let Some(body) = response.body_mut().at_hand()? {
                            return Ok(response.map(|_| UpstreamBody::Whole(body)));
                        }
                        Box::pin(buffered(response, Some(self.room.account(request.peer))))
                    };
                    reading.await
                };
                let outcome = bounded(UPSTREAM_TIMEOUT, answered).await;
                if matches!(outcome, Err(Failure::TimedOut(_))) {
                    // If its peer is gone, as after a live migration, so are those of the others.
                    self.server.pool.clear();
                }
                outcome
            }
            RequestKind::Hanging { timeout_sec } => {
                let reading = {
                    let exchange = self.exchange(request, timer);
                    let response = match timeout_sec {
                        Some(seconds) => {
                            bounded(Duration::from_secs(seconds.into()) + HANGING_MARGIN, exchange).await?
                        }
                        None => exchange.await?,
                    };
                    checked(&response)?;
                    timer.first_byte(response.status());
                    // A watch has many readers, so its layer buffers and charges the response.
                    Box::pin(buffered(response, None))
                };
                bounded(UPSTREAM_TIMEOUT, reading).await
            }
        }
    }

    /// One exchange. If a pooled connection turns out to be dead, retries once on a new one, which is safe
    /// because all requests are GET or HEAD.
    async fn exchange(&self, request: &mut Outgoing, timer: &mut ExchangeTimer) -> Result<Response<Incoming>, Failure> {
        let mut was_pooled = false;
        loop {
            let pooled = if was_pooled { None } else { self.server.pool.take() };
            was_pooled = pooled.is_some();
            let lease = match pooled {
                Some(lease) => lease,
                // Boxed to keep the future of every request small, because few wait for a connection.
                None => Box::pin(self.connect()).await?,
            };
            match exchange(lease, request, timer).await {
                Err(Failure::Closed) if was_pooled => {
                    tracing::debug!("pooled upstream connection was dead; retrying on a new one");
                }
                outcome => return outcome,
            }
        }
    }

    async fn connect(&self) -> Result<Lease, Failure> {
        let failed = |error| Failure::Connect { address: self.target.to_string(), error };
        let connecting = async { connect_to(&self.target).await.map_err(failed) };
        let stream = bounded(UPSTREAM_TIMEOUT, connecting).await?;
        // Each request is one small write; Nagle's algorithm would only delay it.
        stream.set_nodelay(true).map_err(failed)?;
        Ok(self.server.pool.lease(Connection::new(stream)))
    }
}

/// Connects to the first address that answers.
async fn connect_to(target: &Target) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for addr in lookup_host(target.address()).await? {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Set before connecting. If the buffer shrinks after the receive window was announced, the kernel drops
        // segments that do not fit, and a large response stalls for 200 ms until they are retransmitted.
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        set_keepalive(&socket)?;
        // Closed with a reset. The side that closes first otherwise holds its port for a minute (TIME_WAIT), and pods that abandon
        // 500 requests a second would hold all of them: the node could not reach the server either.
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        match socket.connect(addr).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Makes the kernel close a connection within a minute if its peer vanished, as after a live migration. Nothing else
/// would: a hanging GET waits as long as its client stays, and other clients join it. All of them then get an error
/// that the metadata server is unavailable, and retry.
fn set_keepalive(socket: &TcpSocket) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let probes =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// Refuses a response that is not the metadata server's.
fn checked(response: &Response<Incoming>) -> Result<(), Failure> {
    let has_flavor = response.headers().get(METADATA_FLAVOR).is_some_and(|value| value == GOOGLE);
    match response.status() {
        status if status.is_informational() => Err(Failure::NotHttp),
        // Passed on, they would be final for Python's library, which retries 503.
        status @ (StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT) => Err(Failure::Gateway(status)),
        // Errors may lack the flavor, because some emulators omit it.
        status if status.is_success() && !has_flavor => Err(Failure::NoFlavor),
        _ => Ok(()),
    }
}

pin_project! {
    /// The future of [`bounded`]. An `async fn` would store the work twice: as an argument and while awaiting
    /// it.
    struct Bounded<F> {
        #[pin]
        work: Timeout<F>,
        limit: Duration,
    }
}

fn bounded<F>(limit: Duration, work: F) -> Bounded<F>
where
    F: Future,
{
    Bounded { work: timeout(limit, work), limit }
}

impl<F, T> Future for Bounded<F>
where
    F: Future<Output = Result<T, Failure>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.work.poll(cx).map(|outcome| outcome.unwrap_or(Err(Failure::TimedOut(*this.limit))))
    }
}

#[cfg(test)]
mod tests;
