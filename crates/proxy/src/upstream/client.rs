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
use super::pool::{Lease, Pool};
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
    pool: Arc<Pool>,
    health: Arc<Health>,
    room: Arc<Room>,
    metrics: Arc<UpstreamMetrics>,
}

impl UpstreamClient {
    /// Creates a client that connects on the first request. Buffered responses are charged to `room`.
    pub fn new(target: Target, health: Arc<Health>, room: Arc<Room>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { target: Arc::new(target), pool: Arc::default(), health, room, metrics }
    }

    /// Sends a request and returns the response, whose body is buffered, or streamed if it is too large.
    pub(super) async fn send(&self, request: &mut Outgoing) -> Result<Response<Body>, Failure> {
        let awaited_from = (request.kind == RequestKind::Ordinary).then(|| Arc::clone(&self.health));
        let mut timer = ExchangeTimer::start(Arc::clone(&self.metrics.latency), request.endpoint, awaited_from);
        let answer = self.within(request, &mut timer).await;
        match &answer {
            Ok(answer) => self.health.answered(answer.status()),
            // A pod can cause it: the server repeats a query in `Location`.
            Err(Failure::HeadTooLarge) => {}
            Err(failure) => self.health.failed(failure),
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
                    self.pool.clear();
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
            let pooled = if was_pooled { None } else { self.pool.take() };
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
        Ok(self.pool.lease(Connection::new(stream)))
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
mod tests {
    use std::future::pending;

    use base::hook::Hook;
    use http::HeaderMap;
    use telemetry::latency::EndpointClass;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    /// A client of the server that listens there, and what it says of the server's health.
    fn client_of(listener: &TcpListener) -> (UpstreamClient, Arc<Health>) {
        let target = Target::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a target");
        let health = Arc::<Health>::default();
        let room = Room::new(0, Hook::new(Arc::new(|_| false)));
        (UpstreamClient::new(target, Arc::clone(&health), room, Arc::default()), health)
    }

    fn request(kind: RequestKind) -> Outgoing {
        Outgoing {
            bytes: b"GET".as_slice().into(),
            is_head: false,
            endpoint: EndpointClass::Leaf,
            kind,
            peer: None,
            headers: HeaderMap::new(),
        }
    }

    /// Asks a server that does not answer, and gives up after this time. Returns how the server's health is described.
    async fn given_up_after(millis: u64, kind: RequestKind) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (client, health) = client_of(&listener);
        let asked = timeout(Duration::from_millis(millis), client.send(&mut request(kind))).await;
        assert!(asked.is_err(), "the server answers nothing");
        health.failure()
    }

    #[tokio::test]
    async fn a_head_that_a_pod_can_make_too_large_says_nothing_about_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (client, health) = client_of(&listener);
        let server = async {
            let (mut far, _) = listener.accept().await.expect("a connection");
            let head = format!("HTTP/1.1 301 Moved\r\nLocation: /?{}\r\n\r\n", "x".repeat(5000));
            far.write_all(head.as_bytes()).await.expect("it is open");
            far
        };
        let mut outgoing = request(RequestKind::Ordinary);
        let (answer, _far) = tokio::join!(client.send(&mut outgoing), server);
        assert!(matches!(answer, Err(Failure::HeadTooLarge)), "{answer:?}");
        assert_eq!(health.failure(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_clients_give_up_before_it_answers_has_failed() {
        for millis in [800, 2499] {
            let failure = format!("it had not answered after {millis} ms, when the request was given up");
            assert_eq!(given_up_after(millis, RequestKind::Ordinary).await, Some(failure));
        }
    }

    /// As under a flood: requests take turns.
    #[tokio::test(start_paused = true)]
    async fn a_server_whose_answer_had_no_turn_has_not_failed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (client, health) = client_of(&listener);
        let mut outgoing = request(RequestKind::Ordinary);
        let mut asked = Box::pin(client.send(&mut outgoing));
        let server = async {
            let (mut far, _) = listener.accept().await.expect("a connection");
            far.read_exact(&mut [0; 3]).await.expect("a request");
            far.write_all(b"HTTP/1.1 200 OK\r\n").await.expect("it is open");
            far
        };
        let _far = tokio::select! {
            biased;
            answer = &mut asked => unreachable!("{answer:?}"),
            far = server => far,
        };
        sleep(Duration::from_secs(1)).await;
        drop(asked);
        assert_eq!(health.failure(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_early_or_waits_for_a_change_says_nothing_about_the_server() {
        for (millis, kind) in [
            (799, RequestKind::Ordinary),
            (60_000, RequestKind::Hanging { timeout_sec: None }),
            (60_000, RequestKind::Hanging { timeout_sec: Some(60) }),
        ] {
            assert_eq!(given_up_after(millis, kind).await, None, "{millis} {kind:?}");
        }
    }

    /// A hanging GET waits for the change, but not for the rest of a response that has begun.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_within_a_small_response_has_timed_out() {
        for kind in [RequestKind::Ordinary, RequestKind::Hanging { timeout_sec: None }] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let client = client_of(&listener).0;
            let server = async {
                let mut stream = listener.accept().await.expect("a connection").0;
                let begun = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 5\r\n\r\nhalf";
                stream.write_all(begun).await.expect("it is open");
                pending::<()>().await;
            };
            let mut outgoing = request(kind);
            let asked = timeout(2 * UPSTREAM_TIMEOUT, client.send(&mut outgoing));
            tokio::select! {
                () = server => unreachable!("it stays"),
                answer = asked => assert!(matches!(answer, Ok(Err(Failure::TimedOut(UPSTREAM_TIMEOUT)))), "{kind:?}"),
            }
        }
    }

    /// A connection to this listener.
    async fn connected(listener: &TcpListener) -> TcpStream {
        let addr = listener.local_addr().expect("bound");
        connect_to(&Target::parse(&format!("http://{addr}")).expect("a target")).await.expect("a connection")
    }

    #[tokio::test]
    async fn a_closed_connection_does_not_keep_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = connected(&listener).await;
        let (mut far, _) = listener.accept().await.expect("a connection");
        drop(stream);
        let end = far.read(&mut [0]).await.expect_err("an end without TIME_WAIT");
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_vanished_server_is_noticed_within_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = connected(&listener).await;
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().expect("an option"), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().expect("an option"), KEEPALIVE_PROBES);
        assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(USER_TIMEOUT));
        assert!(
            KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES <= Duration::from_secs(60)
                && USER_TIMEOUT <= Duration::from_secs(60)
        );
    }
}
