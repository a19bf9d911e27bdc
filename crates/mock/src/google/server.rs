//! [`Google`]: the server.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::answer::Refusal;
use super::routes;
use super::state::State;
use super::{Handle, Settings};
use crate::listening::{accept, listen, stopped};

/// Any free port.
const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Maximum size of a request's body, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The server of a fake Google.
#[derive(Debug, Clone, Copy)]
pub struct Google;

impl Google {
    /// Listens, and serves in a separate task until [`Handle::stop`] or the end of the runtime.
    ///
    /// # Panics
    ///
    /// If no port can be bound.
    #[expect(clippy::unused_async, reason = "only a runtime can listen, as with tokio's TcpListener")]
    pub async fn start(settings: Settings) -> Handle {
        let tls = TlsAcceptor::from(Arc::new(settings.authority.tls()));
        let listener = listen(ADDR).expect("the loopback address has a free port");
        let state = Arc::new(State::new(listener.local_addr().expect("it is bound"), settings));
        tokio::spawn(run(listener, tls, Arc::clone(&state), state.stop.subscribe()));
        Handle { state }
    }
}

/// Serves until a stop is requested, then closes all connections.
async fn run(listener: TcpListener, tls: TlsAcceptor, state: Arc<State>, mut stop: watch::Receiver<bool>) {
    accept(listener, stopped(&mut stop), |stream| serve(stream, tls.clone(), Arc::clone(&state))).await;
}

async fn serve(stream: TcpStream, tls: TlsAcceptor, state: Arc<State>) {
    let mut away = state.away.subscribe();
    if *away.borrow() {
        return;
    }
    // Without this option responses are late, but complete.
    let _ = stream.set_nodelay(true);
    let served = async {
        match tls.accept(stream).await {
            Ok(stream) => http(stream, &state).await,
            // Clients that do not trust the certificate, or reset the connection, are not reported.
            Err(error) => tracing::debug!(%error, "a TLS handshake with the fake Google failed"),
        }
    };
    tokio::select! {
        () = served => {}
        _ = away.changed() => {}
    }
}

async fn http(stream: TlsStream<TcpStream>, state: &State) {
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(state, request).await));
    // No timeout: with tokio's clock paused it would expire at once.
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the fake Google ended early");
    }
}

async fn respond(state: &State, request: http::Request<Incoming>) -> http::Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let response = match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(body) => routes::answer(state, &parts, &body.to_bytes()).await,
        Err(_) => Refusal::Status(StatusCode::PAYLOAD_TOO_LARGE).answer(),
    };
    response.map(Full::new)
}
