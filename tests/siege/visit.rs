//! One request on a connection of its own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::scene::is_emulated;
use crate::support::Answer;

/// How long an honest client waits for an answer. Python's and Node's libraries give up after 3 s. An emulated computer is
/// many times slower than others.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(if is_emulated() { 20 } else { 3 })
}

/// The address of the pod that is a burden.
pub(crate) const HOSTILE_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);

/// Connects from an address of the loopback network, as from a pod. A proxy elsewhere sees this computer's own address.
pub(crate) async fn connect(source: Ipv4Addr, addr: SocketAddr) -> io::Result<TcpStream> {
    socket(source, addr)?.connect(addr).await
}

/// Does the same with a receive window of a few KiB, so that little of an unread answer leaves the proxy.
pub(crate) async fn connect_narrow(source: Ipv4Addr, addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(source, addr)?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(addr).await
}

fn socket(source: Ipv4Addr, addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Ports of connections that were closed a moment ago may be used again.
    socket.set_reuseaddr(true)?;
    if addr.ip().is_loopback() {
        socket.bind((source, 0).into())?;
    }
    Ok(socket)
}

/// Sends a request on a new connection and returns the answer if it is a 200 and comes within `patience`, or else what went
/// wrong.
pub(crate) async fn visit(
    connecting: impl Future<Output = io::Result<TcpStream>>,
    request: &str,
    patience: Duration,
) -> Result<Answer, String> {
    in_time(patience, async { exchange(&mut connecting.await?, request).await }).await
}

/// Sends a request on this connection, with the same result.
pub(crate) async fn ask(stream: &mut TcpStream, request: &str, patience: Duration) -> Result<Answer, String> {
    in_time(patience, exchange(stream, request)).await
}

async fn exchange(stream: &mut TcpStream, request: &str) -> io::Result<Answer> {
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    loop {
        if let Some((answer, _)) = Answer::parse(&bytes, false) {
            return Ok(answer);
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn in_time(patience: Duration, exchange: impl Future<Output = io::Result<Answer>>) -> Result<Answer, String> {
    match timeout(patience, exchange).await {
        Ok(Ok(answer)) if answer.status == 200 => Ok(answer),
        Ok(Ok(answer)) => Err(format!("{} {}", answer.status, answer.body.trim())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {patience:?}")),
    }
}
