//! Sends the requests of the checks.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use crate::metadata::headers::{GOOGLE, METADATA_FLAVOR};

/// Timeout, the same as in Python's and Node's libraries.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum body to read, in bytes. Attributes can have 512 KiB.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// A request, and what came of it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) url: String,
    pub(super) outcome: io::Result<Answer>,
    pub(super) took: Duration,
}

/// What somebody answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Who it says that it is.
    pub(super) server: Option<String>,
    pub(super) body: Bytes,
}

/// Asks as libraries ask.
pub(super) async fn get(addr: SocketAddr, host: &str, path: &str) -> Asked {
    let began = Instant::now();
    let outcome = within(exchange(addr, host, path)).await;
    Asked { url: format!("http://{host}{path}"), outcome, took: began.elapsed() }
}

/// Opens a connection and lets it go.
pub(super) async fn connect(addr: SocketAddr) -> io::Result<()> {
    within(TcpStream::connect(addr)).await.map(drop)
}

/// The first address of a name, by the means of the system.
pub(super) async fn resolve(name: &str) -> io::Result<SocketAddr> {
    let nothing = || io::Error::new(io::ErrorKind::NotFound, "no address found");
    within(async { lookup_host((name, 0)).await?.next().ok_or_else(nothing) }).await
}

async fn exchange(addr: SocketAddr, host: &str, path: &str) -> io::Result<Answer> {
    let stream = TcpStream::connect(addr).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Its errors reach whoever waits for the answer.
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(METADATA_FLAVOR, GOOGLE)
        .body(Empty::<Bytes>::new())
        .expect("host and path are constants");
    let (head, body) = sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(io::Error::other)?.to_bytes();
    let server = head.headers.get(header::SERVER).map(|server| String::from_utf8_lossy(server.as_bytes()).into_owned());
    Ok(Answer { status: head.status, server, body })
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no response within {} s", TIMEOUT.as_secs()));
    timeout(TIMEOUT, work).await.unwrap_or_else(|_| Err(late()))
}
