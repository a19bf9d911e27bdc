//! The pages of the admin listener.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use super::statusz::{self, Status};
use crate::cli;
use crate::metadata::headers::{Lines, Signs};
use crate::metadata::host::{AllowedHosts, HostError};
use crate::reply;
use crate::server::{NewStack, Reset, Stack};
use crate::shared::Shared;
use crate::telemetry::logging::{self, Levels, LevelsError};

const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The page contains text that pods influence, so scripts and external resources are forbidden.
const CONTENT_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'");

const INDEX: &str = "\
gce-metadata-proxy

/statusz               status page for a browser; from this machine only
/statusz?format=json   status as JSON
/flagz                 flags with their current values; from this machine only
/metrics               Prometheus metrics
/healthz               200 while the process is alive; does not depend on the metadata server
/readyz                200 if ready or degraded, 503 if starting or draining
/readyz?verbose        readiness as JSON
/loglevel              log levels; from this machine: PUT /loglevel?levels=info,gce_metadata_proxy=debug
";

/// Answers operators.
#[derive(Debug, Clone)]
pub struct Admin {
    shared: Arc<Shared>,
    hosts: Arc<AllowedHosts>,
}

type Page = Response<Full<Bytes>>;

impl Admin {
    /// Shows these.
    pub fn new(shared: Arc<Shared>) -> Self {
        let hosts = AllowedHosts::of_operators(shared.config.metrics_allowed_hosts.iter().cloned());
        Self { shared, hosts: Arc::new(hosts) }
    }

    /// What answers on a connection.
    pub fn into_stacks(
        self,
    ) -> impl NewStack<Stack: Stack<Body = Full<Bytes>, Future: Send> + Send + Sync> + Send + Sync {
        move |peer| {
            let admin = self.clone();
            tower::service_fn(move |request: Request<Incoming>| ready(Ok::<_, Reset>(admin.answer(&request, peer))))
        }
    }

    fn answer<B>(&self, request: &Request<B>, peer: SocketAddr) -> Page {
        if let Err(error) = is_meant(&self.hosts, request) {
            return not_meant(&error);
        }
        let (method, uri) = (request.method(), request.uri());
        if !is_for(method, uri.path(), peer) {
            return text(StatusCode::FORBIDDEN, "Only available from this machine, through its loopback address.\n");
        }
        match (method, uri.path()) {
            (&Method::GET | &Method::HEAD, path) => self.show(path, uri.query()),
            (&Method::PUT, "/loglevel") => set_levels(uri.query(), peer),
            (_, "/loglevel") => not_allowed("GET, HEAD, PUT"),
            _ => not_allowed("GET, HEAD"),
        }
    }

    fn show(&self, path: &str, query: Option<&str>) -> Page {
        match path {
            "/" => text(StatusCode::OK, INDEX),
            "/statusz" if value(query, "format").as_deref() == Some("json") => self.statusz_json(),
            "/statusz" => {
                let mut response = page(StatusCode::OK, HTML, statusz::html(&Status::of(&self.shared)));
                response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
                response
            }
            "/flagz" => {
                let flags = cli::flags(&self.shared.config).into_iter();
                let lines: Vec<String> = flags.map(|(flag, value)| format!("{flag}={value}\n")).collect();
                text(StatusCode::OK, lines.concat())
            }
            "/metrics" => page(StatusCode::OK, PROMETHEUS, self.shared.registry.render()),
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readyz(query.is_some_and(|query| query.starts_with("verbose"))),
            "/loglevel" => text(
                StatusCode::OK,
                logging::in_force().map_or_else(|| "off\n".to_owned(), |levels| format!("{levels}\n")),
            ),
            _ => text(StatusCode::NOT_FOUND, "Not found; / lists all pages.\n"),
        }
    }

    fn statusz_json(&self) -> Page {
        let json =
            serde_json::to_string_pretty(&Status::of(&self.shared)).expect("numbers and strings are always JSON");
        page(StatusCode::OK, JSON, json + "\n")
    }

    fn readyz(&self, verbose: bool) -> Page {
        let state = self.shared.readiness.state();
        let status = if state.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if verbose {
            let json = serde_json::to_string(&state).expect("a tag and a string are always JSON");
            page(status, JSON, json + "\n")
        } else {
            text(status, format!("{state}\n"))
        }
    }
}

/// Checks that a request uses a name of this listener. With DNS rebinding, an attacker's page in a browser on
/// this machine could otherwise read responses. The name is in `Host`, which browsers always send; an
/// HTTP/1.0 request without it comes from a script.
fn is_meant<B>(hosts: &AllowedHosts, request: &Request<B>) -> Result<(), HostError> {
    match Signs::of(request.headers()).host {
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
    let concerns_the_node_alone = matches!(path, "/statusz" | "/flagz") || *method == Method::PUT;
    !concerns_the_node_alone || peer.ip().to_canonical().is_loopback()
}

fn set_levels(query: Option<&str>, peer: SocketAddr) -> Page {
    let Some(levels) = value(query, "levels") else {
        return text(StatusCode::BAD_REQUEST, "Missing levels; use PUT /loglevel?levels=LEVELS.\n");
    };
    match levels.parse::<Levels>() {
        Ok(parsed) if logging::change(&parsed) => {
            tracing::warn!(target: logging::CHANGES, %peer, levels = %parsed, "log levels changed");
            text(StatusCode::OK, format!("{parsed}\n"))
        }
        Ok(_) => text(StatusCode::CONFLICT, "This process does not log.\n"),
        Err(LevelsError) => text(StatusCode::BAD_REQUEST, format!("Expected {}.\n", LevelsError::EXPECTED)),
    }
}

/// The value of a key in a query.
fn value(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(name, _)| *name == key)?.1;
    percent_decode_str(value).decode_utf8().ok().map(Into::into)
}

fn not_allowed(allowed: &'static str) -> Page {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("Method not allowed; use {allowed}.\n"));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
    page(status, reply::PLAIN_TEXT, body)
}

fn page(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Page {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(version: Version, target: &str, hosts: &[&str]) -> Result<(), HostError> {
        let request = Request::get(target).version(version);
        let request = hosts.iter().fold(request, |request, host| request.header(header::HOST, *host));
        is_meant(&AllowedHosts::of_operators(["node-1".to_owned()]), &request.body(()).expect("a request"))
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
