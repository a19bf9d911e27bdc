//! The pages of the admin listener.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;
use tower::{Service, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;

use super::statusz::{self, Status};
use crate::cli;
use crate::condition::{self, Condition, Fact};
use crate::readiness::State;
use crate::shared::Shared;
use protocol::metadata::headers::{Lines, Signs};
use protocol::metadata::host::{AllowedHosts, HostError};
use proxy::reply;
use proxy::server::{Arrival, NewStack, Payload, Reset, Stack};
use telemetry::Registry;
use telemetry::logging::{self, Levels, LevelsError};
use telemetry::panics;
use telemetry::requests::Requests;

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// Maximum age of the metrics that others than this machine get. Pods may reach them where Prometheus does, and rendering them takes
/// as long as many requests.
const METRICS_AGE: Duration = Duration::from_secs(1);

/// The page contains text that pods influence, so scripts and external resources are forbidden.
const CONTENT_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'");

const INDEX: &str = "\
gce-metadata-proxy

/statusz               status page for a browser; from this machine only
/statusz?format=json   status as JSON
/whois?pod=NS/NAME     whom the proxy takes a pod for, with --workload-identity; from this machine only
/flagz                 flags with their current values; from this machine only
/metrics               Prometheus metrics
/healthz               200 while the process is alive; does not depend on the metadata server
/readyz                200 if ready or degraded, 503 if starting, unable or draining
/readyz?verbose        readiness as JSON, with what is wrong and what to do
/loglevel              log levels; from this machine: PUT /loglevel?levels=info,gce_metadata_proxy=debug
";

/// Answers requests of operators.
#[derive(Debug, Clone)]
pub struct Admin {
    shared: Arc<Shared>,
    hosts: Arc<AllowedHosts>,
    metrics: Arc<Recent>,
}

/// The metrics as last rendered, and when.
#[derive(Debug, Default)]
struct Recent(Mutex<Option<(Instant, Bytes)>>);

impl Recent {
    /// The last page, or a new one if that is too old. All who ask meanwhile share its bytes.
    fn page(&self, render: impl FnOnce() -> String) -> Bytes {
        let mut last = self.0.lock();
        match &*last {
            Some((rendered, page)) if rendered.elapsed() < METRICS_AGE => page.clone(),
            _ => last.insert((Instant::now(), render().into())).1.clone(),
        }
    }
}

type Page = Response<Full<Bytes>>;

impl Admin {
    /// Creates the pages about this process.
    pub fn new(shared: Arc<Shared>) -> Self {
        let hosts = AllowedHosts::for_admin(shared.config.metrics_allowed_hosts.iter().cloned());
        Self { shared, hosts: Arc::new(hosts), metrics: Arc::default() }
    }

    /// Makes the stack of each connection.
    pub fn into_stacks(
        self,
    ) -> impl NewStack<Stack: Stack<Body: Body<Data: Send> + Send, Future: Send> + Send + Sync> + Send + Sync {
        move |Arrival { peer, .. }: Arrival| {
            let admin = self.clone();
            let (hosts, requests) = (Arc::clone(&self.hosts), Arc::clone(&self.shared.measures.requests));
            let pages = tower::service_fn(move |request: Request<Payload>| {
                let (admin, (head, _)) = (admin.clone(), request.into_parts());
                async move { Ok(admin.answer(&head.method, &head.uri, peer).await) }
            });
            guard(hosts, peer, requests, pages)
        }
    }

    async fn answer(&self, method: &Method, uri: &Uri, peer: SocketAddr) -> Page {
        match (method, uri.path()) {
            (&Method::GET | &Method::HEAD, path) => self.show(path, uri.query(), peer).await,
            (&Method::PUT, "/loglevel") => set_levels(uri.query(), peer),
            (_, "/loglevel") => not_allowed("GET, HEAD, PUT"),
            _ => not_allowed("GET, HEAD"),
        }
    }

    async fn show(&self, path: &str, query: Option<&str>, peer: SocketAddr) -> Page {
        match path {
            "/" => text(StatusCode::OK, INDEX),
            "/statusz" if value(query, "format").as_deref() == Some("json") => self.statusz_json(),
            "/statusz" => {
                let mut response = page(StatusCode::OK, HTML, statusz::html(&Status::of(&self.shared)));
                response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
                response
            }
            "/whois" => self.whois(query).await,
            "/flagz" => {
                let flags = cli::flags(&self.shared.config).into_iter();
                let lines: Vec<String> = flags.map(|(flag, value)| format!("{flag}={value}\n")).collect();
                text(StatusCode::OK, lines.concat())
            }
            "/metrics" if is_here(peer) => page(StatusCode::OK, Registry::CONTENT_TYPE, self.shared.registry.render()),
            "/metrics" => {
                page(StatusCode::OK, Registry::CONTENT_TYPE, self.metrics.page(|| self.shared.registry.render()))
            }
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readyz(query.is_some_and(|query| query.starts_with("verbose"))),
            "/loglevel" => text(
                StatusCode::OK,
                logging::in_force().map_or_else(|| "off\n".to_owned(), |levels| format!("{levels}\n")),
            ),
            _ => text(StatusCode::NOT_FOUND, "Not found; / lists all pages.\n"),
        }
    }

    async fn whois(&self, query: Option<&str>) -> Page {
        let Some(identity) = &self.shared.identity else {
            return text(StatusCode::NOT_FOUND, "Pods are not identified; see --workload-identity.\n");
        };
        let pod = value(query, "pod");
        let Some((namespace, name)) = pod.as_deref().and_then(|pod| pod.split_once('/')) else {
            return text(StatusCode::BAD_REQUEST, "Missing pod; use /whois?pod=NAMESPACE/NAME.\n");
        };
        let whois = identity.whois(namespace, name).await;
        match value(query, "format").as_deref() {
            Some("json") => json(StatusCode::OK, &whois),
            _ => text(StatusCode::OK, whois.to_string()),
        }
    }

    fn statusz_json(&self) -> Page {
        json(StatusCode::OK, &Status::of(&self.shared))
    }

    fn readyz(&self, verbose: bool) -> Page {
        let state = self.shared.readiness.state();
        let status = if state.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if verbose {
            let facts: Vec<Fact> = statusz::facts(&self.shared).into_iter().map(condition::for_anybody).collect();
            let verbose = Verbose { state, condition: Condition::of(&facts), facts };
            let json = serde_json::to_string(&verbose).expect("tags and strings are always JSON");
            page(status, JSON, json + "\n")
        } else {
            text(status, format!("{state}\n"))
        }
    }
}

/// Readiness and the facts behind it. Pods may read it.
#[derive(Serialize)]
struct Verbose {
    #[serde(flatten)]
    state: State,
    condition: Condition,
    #[serde(with = "condition::json")]
    facts: Vec<Fact>,
}

/// Refuses requests that must not reach the pages, catches their panics, and sets the headers of all responses.
#[expect(clippy::result_large_err, reason = "the signature of ValidateRequest")]
fn guard<B, S>(
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

fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

fn not_for_this_peer() -> Page {
    text(StatusCode::FORBIDDEN, "Only available from this machine, through its loopback address.\n")
}

fn set_levels(query: Option<&str>, peer: SocketAddr) -> Page {
    let Some(levels) = value(query, "levels") else {
        return text(StatusCode::BAD_REQUEST, "Missing levels; use PUT /loglevel?levels=LEVELS.\n");
    };
    match levels.parse::<Levels>() {
        Ok(parsed) if logging::change(&parsed) => {
            tracing::warn!(target: logging::CHANGES, %peer, levels = %parsed, "log levels changed");
            let lines = [Some(parsed.to_string()), parsed.doubt()];
            text(StatusCode::OK, lines.into_iter().flatten().map(|line| line + "\n").collect::<String>())
        }
        Ok(_) => text(StatusCode::CONFLICT, "This process does not log.\n"),
        Err(LevelsError) => text(StatusCode::BAD_REQUEST, format!("Expected {}.\n", LevelsError::EXPECTED)),
    }
}

/// The value of a key in a query.
fn value(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query?.as_bytes());
    pairs.find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
}

fn not_allowed(allowed: &'static str) -> Page {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("Method not allowed; use {allowed}.\n"));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
    page(status, reply::PLAIN_TEXT, body)
}

fn json(status: StatusCode, value: &impl Serialize) -> Page {
    let json = serde_json::to_string_pretty(value).expect("numbers and strings are always JSON");
    page(status, JSON, json + "\n")
}

fn page(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Page {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

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

    #[tokio::test(start_paused = true)]
    async fn metrics_are_rendered_once_a_second_for_all() {
        let (recent, mut rendered) = (Recent::default(), 0);
        for _ in 0..30 {
            recent.page(|| {
                rendered += 1;
                rendered.to_string()
            });
            tokio::time::sleep(METRICS_AGE / 10).await;
        }
        assert_eq!((rendered, recent.page(String::new)), (3, Bytes::new()), "and again after a second");
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
        for (method, path) in [(Method::GET, "/statusz"), (Method::HEAD, "/flagz"), (Method::PUT, "/loglevel")] {
            assert!(is_for(&method, path, here) && is_for(&method, path, mapped), "{path}");
            assert!(!is_for(&method, path, pod), "{path}");
        }
        for path in ["/metrics", "/healthz", "/readyz", "/"] {
            assert!(is_for(&Method::GET, path, pod), "{path}");
        }
    }
}
