//! [`HttpClient`]: the client for Google and admin pages, and for `check`.
//!
//! Requests to the metadata server go through `upstream::UpstreamClient`, which counts every byte. This
//! client keeps connections alive, has one deadline for a whole request, and reads whole bodies up to a limit. How it
//! connects is up to its connector: [`HttpClient::plain`] uses TCP, and [`HttpClient::with_connector`] takes any other, such
//! as `secure`'s, which speaks TLS.

#![forbid(unsafe_code)]

pub mod certificate;
pub mod dial;
pub mod reach;
pub mod renewed;
pub mod secure;

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

pub use hyper_util::client::legacy::connect::HttpConnector;

/// Time for which an unused connection is kept. Shorter than the minute after which many servers close it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum unused connections per server. An unused one holds hyper's buffers.
const MAX_IDLE_CONNECTIONS: usize = 1;

/// Limits of each request.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time from connecting to the last byte of the response body.
    pub timeout: Duration,
    /// Maximum size of a response body.
    pub max_body_bytes: usize,
}

/// A client. Clones share its connections.
#[derive(Debug, Clone)]
pub struct HttpClient<C = HttpConnector> {
    client: legacy::Client<C, Full<Bytes>>,
    limits: Limits,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection: the name is unknown, nothing listens, or the connector failed otherwise.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection was lost, or the response is not HTTP.
    #[error("no valid HTTP/1.1 response: {}", cause(.0))]
    Http(#[source] legacy::Error),
    /// The deadline of [`Limits::timeout`] was reached.
    #[error("no response within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The response body exceeds [`Limits::max_body_bytes`].
    #[error("the response body has more than {max_bytes} bytes (status {status})")]
    TooLarge { status: StatusCode, max_bytes: usize },
    /// The response body is incomplete.
    #[error("cannot read the response body (status {status}): {error}")]
    Body { status: StatusCode, error: Box<dyn Error + Send + Sync> },
}

impl HttpClient {
    /// A client for plain HTTP over TCP.
    pub fn plain(limits: Limits) -> Self {
        Self::with_connector(HttpConnector::new(), limits)
    }
}

impl<C> HttpClient<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    /// A client that connects with this connector.
    pub fn with_connector(connector: C, limits: Limits) -> Self {
        Self::with_idle(connector, limits, MAX_IDLE_CONNECTIONS)
    }

    /// A client that connects with this connector, and keeps up to `max_idle` unused connections per server.
    pub fn with_idle(connector: C, limits: Limits, max_idle: usize) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(max_idle)
            .build(connector);
        Self { client, limits }
    }

    /// Sends a request to the server in its URI and reads the whole response. The `Host` header is derived from the URI if
    /// it is missing.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let limit = self.limits.timeout;
        timeout(limit, self.exchange(request)).await.unwrap_or(Err(ClientError::TimedOut(limit)))
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let response = self.client.request(request.map(Full::new)).await.map_err(ClientError::from_request)?;
        let (head, body) = response.into_parts();
        let max_bytes = self.limits.max_body_bytes;
        match Limited::new(body, max_bytes).collect().await {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(ClientError::TooLarge { status: head.status, max_bytes })
            }
            Err(error) => Err(ClientError::Body { status: head.status, error }),
        }
    }
}

impl ClientError {
    /// The status, if the response had one and only its body could not be read.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::TooLarge { status, .. } | Self::Body { status, .. } => Some(*status),
            Self::Connect(_) | Self::Http(_) | Self::TimedOut(_) => None,
        }
    }

    fn from_request(error: legacy::Error) -> Self {
        if error.is_connect() { Self::Connect(io_error(&error)) } else { Self::Http(error) }
    }
}

/// The time that a server names in seconds by `Retry-After`. `None` for a date.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// The reason of a client error, which by itself only says in which step it occurred.
fn cause(error: &legacy::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The operating system's error in a chain of errors, or one with the text of the first cause.
fn io_error(error: &legacy::Error) -> io::Error {
    let chain = std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source());
    let found = chain.into_iter().find_map(|error| error.downcast_ref::<io::Error>());
    match found {
        Some(found) => match found.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(found.kind(), found.to_string()),
        },
        None => io::Error::other(cause(error)),
    }
}

#[cfg(test)]
mod tests;
