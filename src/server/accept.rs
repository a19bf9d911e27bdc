//! Listening and accepting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::sleep;

use super::Drain;
use super::connection::{self, Stack, Timeouts};
use crate::telemetry::Metrics;

/// Connections that the kernel keeps for us until they are accepted. The kernel's own bound, `net.core.somaxconn`, is 4096
/// since Linux 5.4 and 128 before.
pub const BACKLOG: u32 = 1024;

/// Pause after an error of `accept` that will not go away by itself at once (no file descriptor left, above all).
const BACK_OFF: Duration = Duration::from_millis(50);

/// Binds a listening socket. An address that an earlier process used a moment ago is no obstacle.
pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Accepts and serves connections until the drain begins. Returns with the listener closed; what was accepted goes on.
pub async fn run<S>(listener: TcpListener, stack: S, timeouts: Timeouts, drain: Drain, metrics: Arc<Metrics>)
where
    S: Stack<Future: Send, Body: http_body::Body<Data: Send> + Send> + Send + 'static,
{
    let stopping = drain.stopping();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let stack = stack.clone();
                let stopping = drain.stopping();
                let open = Open::new(Arc::clone(&metrics));
                drain.spawn(async move {
                    let _open = open;
                    if prepare(&stream).is_ok() {
                        connection::serve(stream, peer, stack, timeouts, stopping).await;
                    }
                });
            }
            // The client was gone before we came to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again in {} ms", BACK_OFF.as_millis());
                sleep(BACK_OFF).await;
            }
        }
    }
}

/// Answers are written whole; waiting to fill a segment would only delay them.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.accepted.inc();
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}
