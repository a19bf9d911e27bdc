//! Sends the requests of the checks.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use crate::ask::from_here;
use http_client::{ClientError, HttpClient, Limits};
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR};

/// The timeout is the same as in Python's and Node's libraries. Attributes can have 512 KiB.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(3), max_body_bytes: 1024 * 1024 };

/// More than the proxy or the metadata server answers to `/`.
const MAX_HEAD: u64 = 64 * 1024;

/// A request and its outcome.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Method and URL.
    pub(super) request: String,
    pub(super) outcome: io::Result<Response>,
    pub(super) took: Duration,
}

/// The parts of a response that are judged.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    /// The `Server` header.
    pub(super) server: Option<String>,
    pub(super) body: Bytes,
}

/// Sends all requests of one run, with one method. Each run has its own client, because the rules are applied when a
/// connection is opened: a reused connection says nothing about them.
#[derive(Debug, Clone)]
pub(super) struct Client {
    http: HttpClient,
    method: Method,
}

impl Client {
    pub(super) fn new(method: Method) -> Self {
        Self { http: HttpClient::plain(LIMITS), method }
    }

    /// A client for POST requests without a body.
    pub(super) fn posting(&self) -> Self {
        Self { method: Method::POST, ..self.clone() }
    }

    /// Sends a request as client libraries do.
    pub(super) async fn ask(&self, addr: SocketAddr, host: &str, path: &str) -> Exchange {
        let began = Instant::now();
        let request = Request::builder()
            .method(self.method.clone())
            .uri(format!("http://{addr}{path}"))
            .header(header::HOST, host)
            .header(METADATA_FLAVOR, GOOGLE)
            .body(Bytes::new())
            .expect("host and path are constants");
        let outcome = self.http.send(request).await.map_err(into_io).map(|response| {
            let (head, body) = response.into_parts();
            let server = head.headers.get(header::SERVER);
            let server = server.map(|server| String::from_utf8_lossy(server.as_bytes()).into_owned());
            Response { status: head.status, server, body }
        });
        Exchange { request: format!("{} http://{host}{path}", self.method), outcome, took: began.elapsed() }
    }

    /// Sends a request to the listener for operators at this address on this machine.
    pub(super) async fn ask_here(&self, addr: SocketAddr, path: &str) -> Exchange {
        let addr = from_here(addr);
        self.ask(addr, &addr.to_string(), path).await
    }
}

/// Requests `/` through this interface, whatever the routes say. Linux lets anybody choose it, since 5.7.
pub(super) async fn ask_through(interface: &str, addr: SocketAddr) -> Exchange {
    let began = Instant::now();
    let outcome = within(async {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind_device(Some(interface.as_bytes()))?;
        let mut stream = socket.connect(addr).await?;
        let request =
            format!("GET / HTTP/1.1\r\nHost: {}\r\n{METADATA_FLAVOR}: Google\r\nConnection: close\r\n\r\n", addr.ip());
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_HEAD).read_to_end(&mut answer).await?;
        head(&answer).ok_or_else(|| io::Error::other("the answer is not HTTP"))
    });
    let outcome = outcome.await;
    Exchange { request: format!("GET http://{}/ through {interface}", addr.ip()), outcome, took: began.elapsed() }
}

/// Status and `Server` of an answer.
fn head(answer: &[u8]) -> Option<Response> {
    let text = String::from_utf8_lossy(answer);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let server = fields.find(|(name, _)| name.eq_ignore_ascii_case("server")).map(|(_, value)| value.trim().to_owned());
    Some(Response { status, server, body: Bytes::new() })
}

/// Opens a connection and closes it.
pub(super) async fn connect(addr: SocketAddr) -> io::Result<()> {
    within(TcpStream::connect(addr)).await.map(drop)
}

/// The first address of a name, according to the system's resolver.
pub(super) async fn resolve(name: &str) -> io::Result<SocketAddr> {
    let nothing = || io::Error::new(io::ErrorKind::NotFound, "no address found");
    within(async { lookup_host((name, 0)).await?.next().ok_or_else(nothing) }).await
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| Err(into_io(ClientError::TimedOut(LIMITS.timeout)));
    timeout(LIMITS.timeout, work).await.unwrap_or_else(late)
}

fn into_io(error: ClientError) -> io::Error {
    match error {
        ClientError::Connect(error) => error,
        ClientError::TimedOut(_) => io::Error::new(io::ErrorKind::TimedOut, error),
        _ => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_answer_is_read() {
        let answer =
            head(b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nserver: Metadata Server for VM\r\n\r\n0.1/\n");
        let answer = answer.expect("HTTP");
        assert_eq!((answer.status, answer.server.as_deref()), (StatusCode::OK, Some("Metadata Server for VM")));
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\nServer: x").expect("HTTP").server.is_none());
        for other in [&b""[..], b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200", b"HTTP/1.1\r\n\r\n"] {
            assert!(head(other).is_none(), "{other:?}");
        }
    }
}
