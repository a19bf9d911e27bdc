//! [`guard`]: which requests reach the pages of the admin listener.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Body;
use tower::{Service, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;

use operator::pages::{Page, text};
use protocol::metadata::headers::{Lines, Signs};
use protocol::metadata::host::{AllowedHosts, HostError};
use proxy::server::Reset;
use telemetry::panics;
use telemetry::requests::Requests;

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Refuses requests that must not reach the pages, catches their panics, and sets the headers of all responses.
#[expect(clippy::result_large_err, reason = "the signature of ValidateRequest")]
pub(super) fn guard<B, S>(
    hosts: Arc<AllowedHosts>,
    peer: SocketAddr,
    requests: Arc<Requests>,
    pages: S,
) -> impl Service<
    Request<B>,
    Response = Response<impl Body<Data = Bytes, Error = io::Error> + Send + use<B, S>>,
    Error = Reset,
    Future: Send,
> + Clone
+ Send
+ Sync
+ use<B, S>
where
    S: Service<Request<B>, Response = Page, Error = Reset, Future: Send + 'static> + Clone + Send + Sync,
{
    let in_known_name = move |request: &mut Request<B>| is_meant(&hosts, request).map_err(|error| not_meant(&error));
    let from_known_peer = move |request: &mut Request<B>| {
        if is_for(request.method(), request.uri().path(), peer) { Ok(()) } else { Err(not_for_this_peer()) }
    };
    ServiceBuilder::new()
        // The server requires an error type that implements `Error`.
        .map_response(|response: Response<_>| response.map(|body| BodyExt::map_err(body, io::Error::other)))
        .layer(SetResponseHeaderLayer::overriding(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF))
        .layer(SetResponseHeaderLayer::overriding(header::CACHE_CONTROL, NO_STORE))
        .layer(CatchPanicLayer::custom(move |panic: Box<_>| panicked(&requests, peer, &*panic)))
        .layer(ValidateRequestHeaderLayer::custom(in_known_name))
        .layer(ValidateRequestHeaderLayer::custom(from_known_peer))
        .service(pages)
}

fn panicked(requests: &Requests, peer: SocketAddr, panic: &(dyn Any + Send)) -> Page {
    if let Some(count) = requests.panicked() {
        let (panic, place) = panics::caught(panic);
        let location = place.as_deref();
        tracing::error!(%peer, panic, location, count, "an admin request panicked; its client gets status 500");
    }
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal error; see the log.\n")
}

/// Checks that a request uses a name of this listener. With DNS rebinding, an attacker's page in a browser on
/// this machine could otherwise read responses. The name is in `Host`, which browsers always send; an
/// HTTP/1.0 request without it comes from a script.
fn is_meant<B>(hosts: &AllowedHosts, request: &Request<B>) -> Result<(), HostError> {
    match Signs::new(request.headers()).host {
        Lines::One(host) => drop(hosts.admit(host)?),
        Lines::None if request.version() == Version::HTTP_10 => {}
        Lines::None | Lines::Several => return Err(HostError::Malformed),
    }
    request.uri().authority().map_or(Ok(()), |authority| hosts.admit_authority(authority).map(drop))
}

fn not_meant(error: &HostError) -> Page {
    match error {
        HostError::Malformed => {
            text(StatusCode::BAD_REQUEST, "Exactly one Host header with a name or address is required.\n")
        }
        HostError::NotAllowed(name) => text(
            StatusCode::FORBIDDEN,
            format!(
                "Refused: {name:?} is not a name of this listener; use an IP address or localhost, or allow the name with \
                 --metrics-allowed-host.\n"
            ),
        ),
    }
}

/// Whether this peer may make the request. If Prometheus can reach the metrics from outside the node, so can
/// pods: they must not learn which clients request which account's tokens, or fill the node's disk with logs.
fn is_for(method: &Method, path: &str, peer: SocketAddr) -> bool {
    let concerns_the_node_alone = matches!(path, "/statusz" | "/whois" | "/flagz") || *method == Method::PUT;
    !concerns_the_node_alone || is_here(peer)
}

/// Whether this peer is on this machine.
pub(super) fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

fn not_for_this_peer() -> Page {
    text(StatusCode::FORBIDDEN, "Only available from this machine, through its loopback address.\n")
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use proxy::reply;

    fn meant(version: Version, target: &str, hosts: &[&str]) -> Result<(), HostError> {
        let request = Request::get(target).version(version);
        let request = hosts.iter().fold(request, |request, host| request.header(header::HOST, *host));
        is_meant(&AllowedHosts::for_admin(["node-1".to_owned()]), &request.body(()).expect("a request"))
    }

    #[test]
    fn a_request_under_a_foreign_name_is_not_meant_for_operators() {
        let v1 = Version::HTTP_11;
        for host in ["127.0.0.1:989", "10.128.0.2:989", "[::1]:989", "localhost:8989", "node-1:989"] {
            assert_eq!(meant(v1, "/metrics", &[host]), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:989", "metadata.google.internal", "127.0.0.1.evil.example"] {
            assert!(matches!(meant(v1, "/metrics", &[host]), Err(HostError::NotAllowed(_))), "{host}");
        }
        let absolute = "http://evil.example/metrics";
        assert!(matches!(meant(v1, absolute, &["localhost"]), Err(HostError::NotAllowed(_))));
        assert_eq!(meant(v1, "/metrics", &[]), Err(HostError::Malformed));
        assert_eq!(meant(v1, "/metrics", &["localhost", "localhost"]), Err(HostError::Malformed));
        assert_eq!(meant(Version::HTTP_10, "/metrics", &[]), Ok(()), "no browser speaks HTTP/1.0");
    }

    #[tokio::test]
    async fn a_panic_is_answered_counted_and_ends_nothing_else() {
        let requests = Arc::<Requests>::default();
        let pages = tower::service_fn(|request: Request<()>| async move {
            assert!(request.uri().path() != "/panic", "on purpose");
            Ok(text(StatusCode::OK, "ok\n"))
        });
        let hosts = Arc::new(AllowedHosts::for_admin([]));
        let service = guard(hosts, ([10, 0, 0, 9], 1).into(), Arc::clone(&requests), pages);
        for (path, host, status) in [
            ("/panic", "localhost", 500),
            ("/metrics", "localhost", 200),
            ("/metrics", "evil.example", 403),
            ("/flagz", "localhost", 403),
        ] {
            let request = Request::get(path).header(header::HOST, host).body(()).expect("a request");
            let response = service.clone().oneshot(request).await.expect("a response");
            assert_eq!(response.status().as_u16(), status, "{path} of {host}");
            for (name, value) in [
                (header::CONTENT_TYPE, reply::PLAIN_TEXT),
                (header::X_CONTENT_TYPE_OPTIONS, NOSNIFF),
                (header::CACHE_CONTROL, NO_STORE),
            ] {
                assert_eq!(response.headers()[&name], value, "{path} of {host}: {name}");
            }
        }
        assert_eq!(requests.panics(), 1);
    }

    #[test]
    fn what_names_clients_or_changes_something_is_for_the_node_alone() {
        let (here, mapped, pod): (SocketAddr, SocketAddr, SocketAddr) = (
            ([127, 0, 0, 1], 1).into(),
            "[::ffff:127.0.0.1]:1".parse().expect("an address"),
            ([10, 0, 0, 9], 1).into(),
        );
        for (method, path) in
            [(Method::GET, "/statusz"), (Method::GET, "/whois"), (Method::HEAD, "/flagz"), (Method::PUT, "/loglevel")]
        {
            assert!(is_for(&method, path, here) && is_for(&method, path, mapped), "{path}");
            assert!(!is_for(&method, path, pod), "{path}");
        }
        for path in ["/metrics", "/healthz", "/readyz", "/"] {
            assert!(is_for(&Method::GET, path, pod), "{path}");
        }
    }
}
