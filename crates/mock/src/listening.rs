//! [`listen`] and [`accept`]: the listener of the mock and of the fake Google.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Listen backlog. Load tests open thousands of connections at once.
const BACKLOG: u32 = 4096;

/// Pause after an `accept` error, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Binds an address, even one that another mock has just released.
pub(super) fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves each connection in a task until `over` resolves, then closes the listener and all connections.
pub(super) async fn accept<F>(
    listener: TcpListener,
    over: impl Future<Output = ()>,
    mut serve: impl FnMut(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut over = pin!(over);
    loop {
        tokio::select! {
            () = &mut over => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "the mock cannot accept connections; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Requests a stop, and waits until the server has none to receive it.
pub(super) async fn stop(stop: &watch::Sender<bool>) {
    stop.send_replace(true);
    stop.closed().await;
}

/// Resolves when a stop is requested, or can no longer be.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
