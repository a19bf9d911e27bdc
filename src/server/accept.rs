//! Listening and accepting.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use listenfd::ListenFd;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};

use super::Drain;
use super::activity::{Activity, Timeouts};
use super::connection::{Connection, NewStack, Stack};
use super::connections::{Admission, Connections, Place};
use super::inbox::Inbox;
use super::socket::{Cuttable, Socket};
use crate::telemetry::Metrics;

/// Connections that the kernel keeps for us until they are accepted: as many as it will. Its own bound, `net.core.somaxconn`, is
/// 4096 since Linux 5.4 and 128 before. A connection that finds the queue full is opened anew by the client's kernel a second
/// later.
const BACKLOG: u32 = 4096;

/// Pause after an error of `accept` that will not go away by itself at once (no file descriptor left, above all).
const BACK_OFF: Duration = Duration::from_millis(50);

/// Between two lines about such errors.
const TELL: Duration = Duration::from_secs(10);

/// The kernel's buffer for a client that does not read, in bytes; the kernel doubles it. Since cgroup v2 it counts against the
/// pod's memory, and a process whose sockets exceed the limit is killed. An answer that is not read stays with the upstream.
const SEND_BUFFER_BYTES: u32 = 4 * 1024;

/// The kernel's buffer for requests that are not read yet, in bytes; the kernel doubles it. Larger heads are read in pieces.
const RECEIVE_BUFFER_BYTES: u32 = 2 * 1024;

/// A pod that vanished without a word is noticed after about two minutes, also while its answer is being made.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20)).with_retries(3);

/// So often other connections get their turn before a newcomer that is to wait looks for a place at intervals.
const TURNS: u32 = 3;

/// Between two looks for a place.
const PAUSE: Duration = Duration::from_millis(1);

/// Newcomers wait no longer than this for places to come free, and then get them at a rate of [`NEWCOMERS_A_SECOND`].
const MOST_PATIENCE: Duration = Duration::from_millis(100);

/// Newcomers that get a place or a refusal in a second, at least, once patience is used up.
const NEWCOMERS_A_SECOND: u32 = 2_000;

/// Longest time for what the kernel has accepted already when the process is told to end. Closing a listener resets what
/// is in its queue.
const LAST_ARRIVALS: Duration = Duration::from_millis(100);

/// Binds a listening socket. An address that an earlier process used a moment ago is no obstacle; one that another process
/// listens on is none if both share it.
pub fn bind(addr: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    if share {
        socket.set_reuseport(true)?;
    }
    // What is set here, accepted sockets inherit.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE)?;
    // Answers are written whole; waiting to fill a segment would only delay them.
    socket.set_nodelay(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// The listening sockets that systemd (or whoever started us) opened for us, by its convention `LISTEN_FDS`. The first call
/// takes them.
pub fn inherited() -> io::Result<Vec<TcpListener>> {
    let mut passed = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..passed.len() {
        if let Some(listener) = passed.take_tcp_listener(index)? {
            listener.set_nonblocking(true)?;
            let socket = SockRef::from(&listener);
            socket.set_send_buffer_size(SEND_BUFFER_BYTES as usize)?;
            socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES as usize)?;
            socket.set_tcp_keepalive(&KEEPALIVE)?;
            socket.set_tcp_nodelay(true)?;
            listeners.push(TcpListener::from_std(listener)?);
        }
    }
    Ok(listeners)
}

/// A listener's part of the server.
#[derive(Debug)]
pub struct Server<N> {
    /// Make what answers.
    pub stacks: Arc<N>,
    /// Bounds on each connection.
    pub timeouts: Timeouts,
    /// Bounds on their number.
    pub connections: Arc<Connections>,
    /// When to end.
    pub drain: Drain,
    /// Counts what is accepted and what is reset.
    pub metrics: &'static Metrics,
}

impl<N, S> Server<N>
where
    N: NewStack<Stack = S> + Send + Sync + 'static,
    S: Stack<Future: Send, Body: http_body::Body<Data: Send> + Send> + Send + Sync + 'static,
{
    /// Accepts and serves connections until the drain begins. Returns with the listener closed; what was accepted goes on.
    pub async fn run(self, listener: TcpListener) {
        let doors = self.drain.doors();
        let mut closing = pin!(doors.cancelled());
        let mut told: Option<Instant> = None;
        let mut patience = Patience::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.as_mut() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.take(stream, peer, &mut patience).await,
                // The client was gone before we came to it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if told.is_none_or(|told| told.elapsed() >= TELL) {
                        told = Some(Instant::now());
                        tracing::warn!(%error, "cannot accept connections; trying again every {} ms", BACK_OFF.as_millis());
                    }
                    sleep(BACK_OFF).await;
                }
            }
        }
        let end = Instant::now() + LAST_ARRIVALS;
        while let Some((stream, peer)) = next_in_queue(&listener, end).await {
            self.take(stream, peer, &mut patience).await;
        }
    }

    async fn take(&self, stream: TcpStream, peer: SocketAddr, patience: &mut Patience) {
        self.metrics.accepted.inc();
        let activity = Arc::new(Activity::new());
        let Some(place) = self.admit(peer, &activity, patience).await else {
            self.metrics.shed_connection(peer);
            stream.close_by_reset(true);
            return;
        };
        let number = place.number();
        let connection = Connection {
            io: Cuttable::new(stream, Arc::clone(&activity)),
            inbox: Inbox::default(),
            peer,
            stacks: Arc::clone(&self.stacks),
            timeouts: self.timeouts,
            last_call: self.drain.last_call(),
            activity,
            place,
        };
        let task = self.drain.spawn(connection.serve());
        self.connections.started(number, task);
    }

    /// A place for a newcomer, if there is one. Where only connections could give way that have just come, they get their turn
    /// first, as far as there is patience: whoever has sent a request is in flight then.
    async fn admit(&self, peer: SocketAddr, activity: &Arc<Activity>, patience: &mut Patience) -> Option<Place> {
        let began = Instant::now();
        patience.grow();
        for turn in 0.. {
            match self.connections.admit(peer, activity, patience.lasts(began.elapsed())) {
                Admission::Place(place) => {
                    patience.spend(began.elapsed());
                    return Some(place);
                }
                Admission::Refused => return None,
                Admission::Later if turn < TURNS => yield_now().await,
                Admission::Later => sleep(PAUSE).await,
            }
        }
        None
    }
}

/// How long newcomers may still be kept waiting.
///
/// They wait in the kernel's queue, where they cost us nothing, and all of them wait: nothing tells whose connections are in
/// there. A crowd that is served makes room by itself, many times faster than [`NEWCOMERS_A_SECOND`], and nobody has to be cut
/// for its newcomers. A pod that floods us uses patience up, and then connections that have just come are cut for newcomers at
/// once. So pods beside it wait for [`MOST_PATIENCE`] and the queue before them, at worst.
#[derive(Debug)]
struct Patience(Duration);

impl Patience {
    fn new() -> Self {
        Self(MOST_PATIENCE)
    }

    /// Another newcomer is here.
    fn grow(&mut self) {
        self.0 = (self.0 + Duration::from_secs(1) / NEWCOMERS_A_SECOND).min(MOST_PATIENCE);
    }

    fn lasts(&self, waited: Duration) -> bool {
        waited < self.0
    }

    fn spend(&mut self, waited: Duration) {
        self.0 = self.0.saturating_sub(waited);
    }
}

/// What the kernel has accepted and we have not; nothing once the queue is empty.
async fn next_in_queue(listener: &TcpListener, end: Instant) -> Option<(TcpStream, SocketAddr)> {
    // A queue that is not empty gives its next at once.
    let soon = (Instant::now() + Duration::from_millis(1)).min(end);
    timeout_at(soon, listener.accept()).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_that_flood_us_are_waited_for_once_and_then_admitted_at_a_rate() {
        let mut patience = Patience::new();
        let mut waited = Duration::ZERO;
        for _ in 0..NEWCOMERS_A_SECOND {
            patience.grow();
            // Each would wait for ever.
            let wait = patience.0;
            assert!(!patience.lasts(wait));
            patience.spend(wait);
            waited += wait;
        }
        assert!(waited <= MOST_PATIENCE + Duration::from_secs(1), "{waited:?} for as many as come in a second");
        assert!(waited >= Duration::from_secs(1));
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_what_the_listener_has() {
        let listener = bind(([127, 0, 0, 1], 0).into(), false).expect("a port");
        let _client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (accepted, _) = listener.accept().await.expect("a client");
        assert!(accepted.nodelay().expect("it is open"));
        assert!(SockRef::from(&accepted).keepalive().expect("it is open"));
    }
}
