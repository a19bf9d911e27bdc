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
use super::activity::Activity;
use super::arrival::Arrival;
use super::connection::Connection;
use super::connections::{Admission, Connections, Place, WaitFor};
use super::inbox::Inbox;
use super::patience::{Patience, Wait};
use super::socket::{Cuttable, Socket};
use super::stack::{NewStack, Stack};
use super::watchdog::Timeouts;

/// Listen backlog: the kernel's maximum. It is capped by `net.core.somaxconn`, which is 4096 since Linux 5.4
/// and 128 before. If the queue is full, the client's kernel retries after a second.
const BACKLOG: u32 = 4096;

/// Delay after an `accept` error that persists, such as running out of file descriptors.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Minimum interval between log lines about such errors.
const ERROR_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Kernel send buffer per connection, in bytes; the kernel doubles it. Under cgroup v2 socket buffers count
/// against the container's memory limit, and exceeding it kills the process. The rest of an unread response
/// stays with the upstream.
const SEND_BUFFER_BYTES: u32 = 4 * 1024;

/// Kernel receive buffer per connection, in bytes; the kernel doubles it. Larger heads are read in pieces.
const RECEIVE_BUFFER_BYTES: u32 = 2 * 1024;

/// TCP keepalive: detects a vanished pod after about two minutes, also while its request is in flight.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20)).with_retries(3);

/// Number of times a waiting newcomer yields to other tasks before it polls for a place at an interval.
const MAX_YIELDS: u32 = 3;

/// Interval between attempts to get a place.
const PLACE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum time to accept connections that are already in the queue when the drain begins. Closing a listener
/// resets the connections in its queue.
const QUEUE_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Binds a listening socket. The address may be in `TIME_WAIT`. With `share`, another process may listen on
/// it too.
pub fn bind(addr: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    if share {
        socket.set_reuseport(true)?;
    }
    // Accepted sockets inherit these options.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE)?;
    // Responses are written in one piece; Nagle's algorithm would only delay them.
    socket.set_nodelay(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// The listening sockets passed by systemd in `LISTEN_FDS`. The first call takes ownership of them.
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

/// Everything a listener needs to serve connections.
#[derive(Debug)]
pub struct Server<N> {
    /// Makes the stack of each connection.
    pub stacks: Arc<N>,
    /// Timeouts of each connection.
    pub timeouts: Timeouts,
    /// Limits on the number and memory of connections.
    pub connections: Arc<Connections>,
    /// Signals when to stop.
    pub drain: Drain,
}

impl<N, S> Server<N>
where
    N: NewStack<Stack = S> + Send + Sync + 'static,
    S: Stack<Future: Send, Body: http_body::Body<Data: Send> + Send> + Send + Sync + 'static,
{
    /// Accepts and serves connections until the drain begins. Returns once the listener is closed; accepted
    /// connections continue.
    pub async fn run(self, listener: TcpListener) {
        let doors = self.drain.doors();
        let mut closing = pin!(doors.cancelled());
        let mut last_logged: Option<Instant> = None;
        let mut patience = Patience::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.as_mut() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.take(stream, peer, &mut patience).await,
                // The client disconnected before the connection was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if last_logged.is_none_or(|last_logged| last_logged.elapsed() >= ERROR_LOG_INTERVAL) {
                        last_logged = Some(Instant::now());
                        tracing::warn!(%error, "cannot accept connections; retrying every {} ms", BACK_OFF.as_millis());
                    }
                    sleep(BACK_OFF).await;
                }
            }
        }
        let end = Instant::now() + QUEUE_DRAIN_TIMEOUT;
        while let Some((stream, peer)) = next_in_queue(&listener, end).await {
            self.take(stream, peer, &mut patience).await;
        }
    }

    async fn take(&self, stream: TcpStream, peer: SocketAddr, patience: &mut Patience) {
        self.connections.accepted();
        let arrival = Arrival::now(peer);
        let activity = Arc::new(Activity::new());
        let Some(place) = self.admit(arrival, &activity, patience).await else {
            self.connections.shedding.reset_newcomer(peer);
            stream.close_by_reset(true);
            return;
        };
        let number = place.number();
        let connection = Connection {
            io: Cuttable::new(stream, Arc::clone(&activity)),
            inbox: Inbox::default(),
            arrival,
            stacks: Arc::clone(&self.stacks),
            timeouts: self.timeouts,
            last_call: self.drain.last_call(),
            activity,
            place,
        };
        let task = self.drain.spawn(connection.serve());
        self.connections.started(number, task);
    }

    /// Gets a place for a newcomer, if there is one. If only very recent connections could give way, they get
    /// their turn first while patience lasts, because those with a request will then be in flight.
    async fn admit(&self, arrival: Arrival, activity: &Arc<Activity>, patience: &mut Patience) -> Option<Place> {
        patience.grow();
        let mut wait = Wait::default();
        let mut turn = 0;
        let place = loop {
            let began = Instant::now();
            let wait_for = match turn {
                _ if patience.lasts(&wait) => WaitFor::Silence,
                0 => WaitFor::Reading,
                _ => WaitFor::Nothing,
            };
            match self.connections.admit(arrival, activity, wait_for) {
                Admission::Place(place) => break Some(place),
                Admission::Refused => break None,
                Admission::Later if turn < MAX_YIELDS => {
                    self.connections.meanwhile(yield_now()).await;
                    wait.yielded_for(began.elapsed());
                }
                Admission::Later => {
                    self.connections.meanwhile(sleep(PLACE_POLL_INTERVAL)).await;
                    wait.slept_for(began.elapsed());
                }
            }
            turn += 1;
        };
        patience.spend(&wait);
        place
    }
}

/// The next connection in the kernel's queue, or `None` if the queue is empty.
async fn next_in_queue(listener: &TcpListener, end: Instant) -> Option<(TcpStream, SocketAddr)> {
    // A non-empty queue returns the next connection immediately.
    let soon = (Instant::now() + Duration::from_millis(1)).min(end);
    timeout_at(soon, listener.accept()).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_sockets_inherit_the_listeners_options() {
        let listener = bind(([127, 0, 0, 1], 0).into(), false).expect("a port");
        let _client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (accepted, _) = listener.accept().await.expect("a client");
        assert!(accepted.nodelay().expect("it is open"));
        assert!(SockRef::from(&accepted).keepalive().expect("it is open"));
    }
}
