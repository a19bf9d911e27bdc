//! The pages of the admin listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use hyper::body::Body;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::guard::{guard, is_here};
use super::statusz::{self, Status};
use crate::cli;
use crate::condition::{self, Condition, Fact};
use crate::readiness::State;
use crate::shared::Shared;
use operator::pages::{Page, page, text};
use protocol::metadata::host::AllowedHosts;
use proxy::server::{Arrival, NewStack, Payload, Stack};
use telemetry::Registry;
use telemetry::logging::{self, Levels, LevelsError};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// Maximum age of the metrics, and of the readiness with its facts, that others than this machine get. Pods may reach them where Prometheus
/// does, and rendering them takes as long as many requests.
const MAX_AGE: Duration = Duration::from_secs(1);

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
    readiness: Arc<Recent>,
}

/// A page as last rendered, and when.
#[derive(Debug, Default)]
struct Recent(Mutex<Option<(Instant, StatusCode, Bytes)>>);

impl Recent {
    /// The last page for this client, or a new one if that is too old. All who ask meanwhile share its bytes. This machine gets a new one.
    fn page(&self, peer: SocketAddr, kind: HeaderValue, render: impl FnOnce() -> (StatusCode, String)) -> Page {
        if is_here(peer) {
            let (status, text) = render();
            return page(status, kind, text);
        }
        let mut last = self.0.lock();
        let last = match last.take() {
            Some(recent) if recent.0.elapsed() < MAX_AGE => last.insert(recent),
            _ => {
                let (status, text) = render();
                last.insert((Instant::now(), status, text.into()))
            }
        };
        page(last.1, kind, last.2.clone())
    }
}

impl Admin {
    /// Creates the pages about this process.
    pub fn new(shared: Arc<Shared>) -> Self {
        let hosts = AllowedHosts::for_admin(shared.config.metrics_allowed_hosts.iter().cloned());
        Self { shared, hosts: Arc::new(hosts), metrics: Arc::default(), readiness: Arc::default() }
    }

    /// Makes the stack of each connection.
    pub fn into_stacks(self) -> impl NewStack<Stack: Stack<Body: Body<Data: Send> + Send>> + Send + Sync {
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
            "/statusz" if value(query, "format").as_deref() == Some("json") => {
                json(StatusCode::OK, &Status::of(&self.shared))
            }
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
            "/metrics" => {
                let render = || (StatusCode::OK, self.shared.registry.render());
                self.metrics.page(peer, Registry::CONTENT_TYPE, render)
            }
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if query.is_some_and(|query| query.starts_with("verbose")) => {
                self.readiness.page(peer, JSON, || self.facts())
            }
            "/readyz" => {
                let state = self.shared.readiness.state();
                text(status_of(&state), format!("{state}\n"))
            }
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

    /// Readiness as JSON, with the facts behind it.
    fn facts(&self) -> (StatusCode, String) {
        let state = self.shared.readiness.state();
        let facts: Vec<Fact> = statusz::facts(&self.shared).into_iter().map(condition::for_anybody).collect();
        let verbose = Verbose { condition: Condition::of(&facts), state, facts };
        let json = serde_json::to_string(&verbose).expect("tags and strings are always JSON");
        (status_of(&verbose.state), json + "\n")
    }
}

fn status_of(state: &State) -> StatusCode {
    if state.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Readiness and the facts behind it. Pods may read it.
#[derive(Serialize)]
struct Verbose {
    #[serde(flatten)]
    state: State,
    condition: Condition,
    facts: Vec<Fact>,
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

fn json(status: StatusCode, value: &impl Serialize) -> Page {
    let json = serde_json::to_string_pretty(value).expect("numbers and strings are always JSON");
    page(status, JSON, json + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ([u8; 4], u16) = ([127, 0, 0, 1], 1);
    const A_POD: ([u8; 4], u16) = ([10, 0, 0, 7], 1);

    #[tokio::test(start_paused = true)]
    async fn a_page_is_rendered_once_a_second_for_all_who_are_not_here() {
        let (recent, mut rendered) = (Recent::default(), 0);
        let mut ask = |peer: ([u8; 4], u16)| {
            recent.page(peer.into(), JSON, || {
                rendered += 1;
                (StatusCode::OK, rendered.to_string())
            });
            rendered
        };
        for _ in 0..30 {
            ask(A_POD);
            tokio::time::sleep(MAX_AGE / 10).await;
        }
        assert_eq!((ask(HERE), ask(HERE)), (4, 5));
        assert_eq!((ask(A_POD), ask(A_POD)), (6, 6), "again after a second");
    }

    /// Each fact takes as long as many requests.
    #[tokio::test(start_paused = true)]
    async fn pods_get_the_readiness_with_its_facts_of_the_last_second() {
        let admin = Admin::new(Shared::of_flags(&["--upstream=http://127.0.0.1:1"], None).await);
        let status = async |peer: ([u8; 4], u16), target: &'static str| {
            admin.answer(&Method::GET, &Uri::from_static(target), peer.into()).await.status().as_u16()
        };
        assert_eq!(status(A_POD, "/readyz?verbose").await, 503);
        admin.shared.readiness.serving();
        admin.shared.readiness.warm();
        assert_eq!(status(A_POD, "/readyz?verbose").await, 503);
        assert_eq!((status(HERE, "/readyz?verbose").await, status(A_POD, "/readyz").await), (200, 200));
        tokio::time::sleep(MAX_AGE).await;
        assert_eq!(status(A_POD, "/readyz?verbose").await, 200);
    }
}
