//! Pages for operators in long-running commands other than the proxy: `check --interval`, `redirect install --keep`.

use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use rustix::io::Errno;
use tokio::time::sleep;

use proxy::reply::PLAIN_TEXT;
use proxy::server::{self, Arrival, Connections, Door, Drain, Payload, Server};
use telemetry::Registry;

/// A response of an admin listener.
pub type Page = Response<Full<Bytes>>;

/// Maximum connections to the listener for operators. Its clients are few: a scraper, the kubelet and operators.
pub const MAX_ADMIN_CONNECTIONS: usize = 32;

/// The `Server` header of the canary's pages. The proxy has pages of the same paths, which do not say what pods can reach.
pub(crate) const CANARY: HeaderValue = HeaderValue::from_static("gce-metadata-proxy-check");

/// An address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} ({flag}): {error}; {}", remedy(.error))]
pub struct ListenError {
    pub addr: SocketAddr,
    /// The flag that specifies the address.
    pub flag: &'static str,
    pub error: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another address",
        io::ErrorKind::PermissionDenied => {
            "a port below 1024 requires root or CAP_NET_BIND_SERVICE; grant it, or choose a higher port"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
        _ => match Errno::from_io_error(error) {
            Some(Errno::MFILE) => "this process may open no more files: raise its hard limit (ulimit -Hn)",
            Some(Errno::NFILE) => {
                "no process of this machine can open more files: raise fs.file-max, or find which one holds them"
            }
            _ => "choose another address",
        },
    }
}

/// Listens on the address for operators that this flag specifies. `share`: another process may listen on it too, as in a rolling update
/// on the node's network.
pub fn bind(addr: SocketAddr, share: bool, flag: &'static str) -> Result<Door, ListenError> {
    server::bind(addr, share).map_err(|error| ListenError { addr, flag, error })
}

/// A server for operators. Its connections and requests are counted separately from those of pods.
pub fn server<N>(stacks: N, drain: Drain) -> Arc<Server<N>> {
    let connections = Connections::of_operators(MAX_ADMIN_CONNECTIONS);
    Arc::new(Server { stacks: Arc::new(stacks), connections, drain, reads_interfaces: false, bodies: None })
}

/// Serves the page of each path, while polled. Pods may reach it, so the limits are those of the proxy's own listener for
/// operators.
pub async fn serve(door: Door, answer: impl Fn(&str) -> Page + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let stacks = move |_: Arrival| {
        let answer = Arc::clone(&answer);
        tower::service_fn(move |request: Request<Payload>| ready(Ok(answer(request.uri().path()))))
    };
    server(stacks, Drain::default()).run(0, door).await;
}

/// Time between attempts to listen on an address that something else has.
const LISTEN_AGAIN: Duration = Duration::from_secs(10);

/// Serves `/metrics` on the address that this flag specifies, while polled. Something else may have the address, for which
/// the command does not end: what it does otherwise matters more.
pub async fn serve_metrics(addr: SocketAddr, flag: &'static str, registry: Registry) {
    let mut is_reported = false;
    let door = loop {
        match bind(addr, true, flag) {
            Ok(door) => break door,
            Err(error) if !is_reported => {
                tracing::error!("no metrics: {error}; trying again every {} s", LISTEN_AGAIN.as_secs());
                is_reported = true;
            }
            Err(_) => {}
        }
        sleep(LISTEN_AGAIN).await;
    };
    if is_reported {
        tracing::info!("metrics are on {addr} now");
    }
    serve(door, move |path| match path {
        "/metrics" => metrics(&registry),
        _ => text(StatusCode::NOT_FOUND, "not found; there is /metrics\n"),
    })
    .await;
}

pub fn metrics(registry: &Registry) -> Page {
    page(StatusCode::OK, Registry::CONTENT_TYPE, registry.render())
}

pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
    page(status, PLAIN_TEXT, body)
}

pub fn page(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Page {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
