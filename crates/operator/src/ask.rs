//! Sends requests to the proxy's listener for operators on this machine. [`AskError`]: why there is no usable answer.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::SERVER;
use http::{Request, Response, StatusCode};

use crate::pages::CANARY;
use http_client::{HttpClient, Limits};

/// The proxy answers from memory. Its status takes some hundred KiB at most.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(3), max_body_bytes: 2 * 1024 * 1024 };

/// Why the proxy gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nothing answers at this address.
    #[error("cannot reach the proxy at {0} (--metrics-addr): {1}")]
    Unreachable(SocketAddr, String),
    /// The proxy does not identify pods.
    #[error("{0}")]
    NoIdentity(String),
    /// The proxy refuses to answer here, such as on an address that is not loopback.
    #[error("it refuses to say: {0}")]
    Refused(String),
    /// The canary answers at this address.
    #[error("at {0} (--metrics-addr) is the canary, not a proxy: run `check --last`, or give the proxy's address")]
    Canary(SocketAddr),
    /// A server that is no proxy answers at this address, with this status.
    #[error("at {0} (--metrics-addr) is another server ({status}), not a proxy: give the proxy's address", status = .1.as_u16())]
    Another(SocketAddr, StatusCode),
    /// The response has another format.
    #[error("its answer has another form; the proxy is of another version")]
    Unclear,
}

/// The address at which this machine reaches a listener. One that listens on all addresses also listens on loopback.
pub fn from_here(addr: SocketAddr) -> SocketAddr {
    let ip = match addr {
        SocketAddr::V4(addr) if addr.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(addr) if addr.ip().is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => addr.ip(),
    };
    SocketAddr::new(ip, addr.port())
}

/// Fetches the page at this path, with its query.
pub async fn get(admin: SocketAddr, target: &str) -> Result<String, AskError> {
    let response = fetch(admin, target).await.map_err(|error| AskError::Unreachable(admin, error))?;
    if response.headers().get(SERVER).is_some_and(|server| server == CANARY) {
        return Err(AskError::Canary(admin));
    }
    match text(&response) {
        // The pages that are asked for are JSON, and refusals are sentences.
        (status, text) if text.trim_start().starts_with('<') => Err(AskError::Another(admin, status)),
        (status, text) if status.is_success() => Ok(text),
        (StatusCode::NOT_FOUND, text) => Err(AskError::NoIdentity(text.trim_end().to_owned())),
        (_, text) => Err(AskError::Refused(text.trim_end().to_owned())),
    }
}

/// Requests this path, with its query. Returns any response.
pub(crate) async fn send(admin: SocketAddr, target: &str) -> Result<(StatusCode, String), String> {
    fetch(admin, target).await.map(|response| text(&response))
}

async fn fetch(admin: SocketAddr, target: &str) -> Result<Response<Bytes>, String> {
    let request = Request::get(format!("http://{}{target}", from_here(admin))).body(Bytes::new());
    let request = request.map_err(|error| error.to_string())?;
    HttpClient::plain(LIMITS).send(request).await.map_err(|error| error.to_string())
}

fn text(response: &Response<Bytes>) -> (StatusCode, String) {
    (response.status(), String::from_utf8_lossy(response.body()).into_owned())
}
