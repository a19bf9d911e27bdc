//! Sends the requests of the checks.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use crate::ask::from_here;
use http_client::{ClientError, HttpClient, HttpConnector, Limits};
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR};

/// The timeout is the same as in Python's and Node's libraries. Attributes can have 512 KiB.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(3), max_body_bytes: 1024 * 1024 };

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
    /// The interface that its requests leave by, if the routes do not choose it.
    interface: Option<String>,
}

impl Client {
    pub(super) fn new(method: Method) -> Self {
        Self { http: HttpClient::plain(LIMITS), method, interface: None }
    }

    /// A client for POST requests without a body.
    pub(super) fn posting(&self) -> Self {
        Self { method: Method::POST, ..self.clone() }
    }

    /// A client whose requests leave by this interface, whatever the routes say. Linux lets anybody choose it, since 5.7.
    pub(super) fn through(&self, interface: String) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_interface(&*interface);
        let http = HttpClient::with_connector(connector, LIMITS);
        Self { http, interface: Some(interface), ..self.clone() }
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
        let through = self.interface.as_ref().map(|interface| format!(" through {interface}")).unwrap_or_default();
        Exchange { request: format!("{} http://{host}{path}{through}", self.method), outcome, took: began.elapsed() }
    }

    /// Sends a request to the listener for operators at this address on this machine.
    pub(super) async fn ask_here(&self, addr: SocketAddr, path: &str) -> Exchange {
        let addr = from_here(addr);
        self.ask(addr, &addr.to_string(), path).await
    }
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
