//! One request on a connection of its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::scene::is_emulated;
use crate::support::Answer;

/// Maximum time that an honest client waits for a response. Python's and Node's libraries give up after 3 s. An
/// emulated computer is many times slower than others.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(if is_emulated() { 20 } else { 3 })
}

/// A prefix of IPv6 addresses. In a test over IPv6, the loopback network has all of them.
pub(crate) const PREFIX: &str = "fd00:51e9::/64";

/// An address of a pod, in the loopback network of the proxy's address family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pod {
    network: u8,
    number: u16,
}

impl Pod {
    /// The hostile pod.
    pub(crate) const HOSTILE: Self = Self { network: 1, number: 1 };

    /// An honest pod.
    pub(crate) const fn honest(number: u8) -> Self {
        Self { network: 2, number: number as u16 }
    }

    /// A client that reads the operators' pages. It has ports of its own, however many connections the hostile pod
    /// closes.
    pub(crate) const OPERATOR: Self = Self { network: 4, number: 1 };

    /// One of many addresses of a pod.
    pub(crate) const fn scattered(number: u16) -> Self {
        Self { network: 3, number }
    }

    fn addr_beside(self, proxy: SocketAddr) -> IpAddr {
        let [high, low] = self.number.to_be_bytes();
        match proxy {
            SocketAddr::V4(_) => Ipv4Addr::new(127, self.network, high, low).into(),
            SocketAddr::V6(_) => Ipv6Addr::new(0xfd00, 0x51e9, 0, 0, 0, 0, self.network.into(), self.number).into(),
        }
    }
}

/// Connects from a pod's address. A proxy on another machine sees this computer's own address.
pub(crate) async fn connect(pod: Pod, addr: SocketAddr) -> io::Result<TcpStream> {
    socket(pod, addr)?.connect(addr).await
}

/// Like [`connect`], with a receive window of a few KiB, so that little of an unread response leaves the proxy.
pub(crate) async fn connect_narrow(pod: Pod, addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(pod, addr)?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(addr).await
}

fn socket(pod: Pod, addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Ports of recently closed connections may be reused.
    socket.set_reuseaddr(true)?;
    if addr.ip().is_loopback() {
        socket.bind((pod.addr_beside(addr), 0).into())?;
    }
    Ok(socket)
}

/// Sends a request on a new connection. Returns the response if it is a 200 and arrives within `patience`, otherwise a
/// description of the failure.
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
