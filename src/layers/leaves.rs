//! leaves: caches the few values that every client library requests and that do not change while the machine
//! runs.
//!
//! Client libraries request the project, the zone or the universe before they request a token, and some remember a
//! failure for the life of the process. Python first requests everything about its account, and does so again before
//! every token. Node.js follows the redirect of its ping to the list of `instance/`, and without that list concludes
//! that it is not on Google Cloud. So these values are fetched before the proxy reports readiness, served from memory
//! with the server's headers, and refreshed every ten minutes. If a refresh fails, the old value stays.
//!
//! `universe/universe-domain` is special: Go's library waits one second for it, treats 404 as the default domain, and
//! treats any other failure as fatal. While it is unknown, the proxy answers 404 if the server does not respond in
//! time.

use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use tokio::time::timeout;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::outcome::Outcome;
use crate::error::Error;
use crate::metadata::query::Param;
use crate::metadata::{CommonPath, Principal, Query, Request};
use crate::reply::{self, Body};

/// A value that is cached: a common path, requested in the one form that is cached.
///
/// The account, the list of accounts and the listing of `instance/` are directories of the server's tree, but clients
/// request them just as often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    path: CommonPath,
    is_recursive: bool,
}

/// Timeout of a request for the universe domain while it is unknown: half of what Go's library allows.
const UNIVERSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The cached values, by path.
#[derive(Debug, Default)]
pub struct Leaves {
    known: [RwLock<Option<Arc<Known>>>; CommonPath::ALL.len()],
}

/// A response of the server, without the headers that belong to one response only.
#[derive(Debug)]
struct Known {
    headers: HeaderMap,
    body: Bytes,
}

impl Leaf {
    /// The leaf at a path, or `None` if the path's value is cached elsewhere.
    pub fn from_path(path: CommonPath) -> Option<Self> {
        let is_recursive = match path {
            // In the token cache.
            CommonPath::DefaultToken => return None,
            CommonPath::DefaultAccount | CommonPath::Accounts => true,
            CommonPath::UniverseDomain
            | CommonPath::ProjectId
            | CommonPath::NumericProjectId
            | CommonPath::InstanceId
            | CommonPath::Zone
            | CommonPath::Hostname
            | CommonPath::DefaultEmail
            | CommonPath::Instance => false,
        };
        Some(Self { path, is_recursive })
    }

    /// All leaves.
    pub fn all() -> impl Iterator<Item = Self> {
        CommonPath::ALL.into_iter().filter_map(Self::from_path)
    }

    /// The path of this leaf.
    pub fn path(self) -> CommonPath {
        self.path
    }

    /// The request that fetches this leaf.
    pub fn request(self) -> Request {
        Request::get(self.path.into(), Query::from_params(self.is_recursive.then(|| (Param::Recursive, "true".into()))))
    }
}

impl Leaves {
    /// Caches a response if it is successful. Returns its body.
    pub fn keep(&self, leaf: Leaf, status: StatusCode, mut headers: HeaderMap, body: &Bytes) -> Option<Bytes> {
        if status != StatusCode::OK {
            return None;
        }
        headers.remove(header::DATE);
        headers.remove(header::CONTENT_LENGTH);
        // Copied, because a slice would keep the whole read buffer.
        for value in headers.values_mut() {
            *value = HeaderValue::from_bytes(value.as_bytes()).expect("a copy of a valid value");
        }
        let known = Arc::new(Known { headers, body: Bytes::copy_from_slice(body) });
        // A value is replaced whole, so a panic elsewhere cannot leave it half written.
        *self.known[leaf.path as usize].write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Some(body.clone())
    }

    /// Whether a request is answered from the cache.
    pub fn knows(&self, request: &Request) -> bool {
        self.leaf(request).is_some_and(|leaf| self.answer(leaf).is_some())
    }

    /// The leaf that a request asks for in the cached form. Any other parameter leaves the request to the server.
    ///
    /// Only the node's requests qualify, because the cached responses were given to the node, and other principals have
    /// other accounts. Python requests its account by the alias first, and then by the email in that response.
    fn leaf(&self, request: &Request) -> Option<Leaf> {
        if request.principal != Principal::Node {
            return None;
        }
        let account = request.path.as_str().strip_prefix(CommonPath::Accounts.as_str());
        let path = match account.and_then(|account| account.strip_suffix('/')) {
            Some(email) if self.is_default_email(email) => CommonPath::DefaultAccount,
            _ => request.path.common()?,
        };
        Leaf::from_path(path).filter(|leaf| has_only_recursive(&request.query, leaf.is_recursive))
    }

    fn is_default_email(&self, email: &str) -> bool {
        let known = self.known[CommonPath::DefaultEmail as usize].read().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|known| known.body == email)
    }

    fn answer(&self, leaf: Leaf) -> Option<Response<Body>> {
        let known = self.known[leaf.path as usize].read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let mut response = Response::new(Body::Whole(known.body.clone()));
        response.headers_mut().clone_from(&known.headers);
        Some(response)
    }
}

/// Whether a query consists of `recursive` alone, or is empty, as wanted.
fn has_only_recursive(query: &Query, wanted: bool) -> bool {
    query.unknown().is_none() && query.params().map(|(param, _)| param).eq(wanted.then_some(Param::Recursive))
}

/// Answers requests for these values.
pub fn layer<S>(leaves: &Arc<Leaves>) -> impl Layer<S, Service = KnownLeaves<S>> + Clone + use<S> {
    let leaves = Arc::clone(leaves);
    layer_fn(move |inner| KnownLeaves { inner, leaves: Arc::clone(&leaves) })
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct KnownLeaves<S> {
    inner: S,
    leaves: Arc<Leaves>,
}

impl<S> Service<Box<Request>> for KnownLeaves<S>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Outcome<S::Future, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Box<Request>) -> Self::Future {
        let Some(leaf) = self.leaves.leaf(&request) else {
            return Outcome::passed(self.inner.call(request));
        };
        if let Some(answer) = self.leaves.answer(leaf) {
            return Outcome::decided(Ok(answer));
        }
        let inner = self.inner.call(request);
        if leaf.path == CommonPath::UniverseDomain { Outcome::pending(universe(inner)) } else { Outcome::passed(inner) }
    }
}

async fn universe<E>(asked: impl Future<Output = Result<Response<Body>, E>>) -> Result<Response<Body>, E> {
    match timeout(UNIVERSE_TIMEOUT, asked).await {
        Ok(Ok(response)) if matches!(response.status(), StatusCode::OK | StatusCode::NOT_FOUND) => Ok(response),
        _ => {
            let sentence = "The universe domain is not known here; the usual one, googleapis.com, is meant.\n";
            Ok(reply::sentence(StatusCode::NOT_FOUND, sentence))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;
    use http_body_util::BodyExt;
    use tokio::time::{Instant, sleep};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::failure::Failure;
    use crate::metadata::Endpoint;

    async fn text(response: Response<Body>) -> String {
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }

    fn leaf(path: CommonPath) -> Leaf {
        Leaf::from_path(path).expect("a leaf")
    }

    fn kept(leaf: Leaf, value: &'static str) -> Arc<Leaves> {
        let leaves = Arc::new(Leaves::default());
        let mut headers = HeaderMap::new();
        headers.insert(header::ETAG, HeaderValue::from_static("0123456789abcdef"));
        headers.insert(header::DATE, HeaderValue::from_static("yesterday"));
        leaves.keep(leaf, StatusCode::OK, headers, &Bytes::from_static(value.as_bytes()));
        leaves
    }

    #[test]
    fn each_leaf_is_found_by_its_own_request() {
        for leaf in Leaf::all() {
            assert_eq!(Leaves::default().leaf(&leaf.request()), Some(leaf));
        }
    }

    #[test]
    fn a_cached_value_is_served_only_to_the_node() {
        let leaves = kept(leaf(CommonPath::DefaultEmail), "a@b.c");
        let mut request = leaf(CommonPath::DefaultEmail).request();
        assert!(leaves.knows(&request));
        request.principal = Principal::Stranger;
        assert!(!leaves.knows(&request));
    }

    #[test]
    fn a_recursive_account_request_is_found_by_alias_and_by_email() {
        let account = |name: &str, query: &str| {
            let path = format!("{}{name}/", CommonPath::Accounts.as_str());
            let query = Query::parse(Some(query)).expect("a query");
            Request::own(Endpoint::ServiceAccounts, &path, query, Principal::Node)
        };
        let leaves = kept(leaf(CommonPath::DefaultEmail), "a@b.c");
        for (name, query) in [("default", "recursive=true"), ("a@b.c", "recursive=True")] {
            assert_eq!(leaves.leaf(&account(name, query)), Some(leaf(CommonPath::DefaultAccount)), "{name}?{query}");
        }
        for (name, query) in
            [("default", ""), ("a@b.c", ""), ("default", "recursive=true&alt=text"), ("another@b.c", "recursive=true")]
        {
            assert_eq!(leaves.leaf(&account(name, query)), None, "{name}?{query}");
        }
        assert_eq!(Leaves::default().leaf(&account("a@b.c", "recursive=true")), None, "the email is not known yet");
    }

    #[tokio::test]
    async fn a_cached_value_has_the_servers_headers_without_the_date() {
        let inner = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(Failure::Closed)) });
        let service = layer(&kept(leaf(CommonPath::Zone), "projects/1/zones/z")).layer(inner);
        let response = service.clone().oneshot(leaf(CommonPath::Zone).request().into()).await.expect("an answer");
        assert_eq!(response.headers()["etag"], "0123456789abcdef");
        assert!(!response.headers().contains_key(header::DATE), "the response gets its own date");
        assert_eq!(text(response).await, "projects/1/zones/z");
        assert!(
            service.oneshot(leaf(CommonPath::InstanceId).request().into()).await.is_err(),
            "other values are requested from the server"
        );
    }

    #[tokio::test]
    async fn a_value_in_another_form_is_requested_from_the_server() {
        let inner = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(Failure::Closed)) });
        let service = layer(&kept(leaf(CommonPath::Zone), "z")).layer(inner);
        let query = Query::parse(Some("alt=json")).expect("a query");
        assert!(service.oneshot(Request { query, ..leaf(CommonPath::Zone).request() }.into()).await.is_err());
    }

    #[test]
    fn an_error_does_not_replace_a_value() {
        let leaves = kept(leaf(CommonPath::Zone), "z");
        for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE] {
            assert_eq!(leaves.keep(leaf(CommonPath::Zone), status, HeaderMap::new(), &Bytes::new()), None);
        }
        assert!(leaves.answer(leaf(CommonPath::Zone)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_universe_is_a_404_within_half_a_second() {
        let slow = service_fn(|_: Box<Request>| async {
            sleep(Duration::from_secs(2)).await;
            Ok::<_, Error>(Response::new(Body::Whole(Bytes::new())))
        });
        let failing = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(Failure::Closed)) });
        let refusing =
            service_fn(|_: Box<Request>| async { Ok::<_, Error>(reply::sentence(StatusCode::FORBIDDEN, "")) });
        let asked = Instant::now();
        let leaves = Arc::default();
        let (slow, failing, refusing) =
            (layer(&leaves).layer(slow), layer(&leaves).layer(failing), layer(&leaves).layer(refusing));
        for answer in [
            slow.oneshot(leaf(CommonPath::UniverseDomain).request().into()).await,
            failing.oneshot(leaf(CommonPath::UniverseDomain).request().into()).await,
            refusing.oneshot(leaf(CommonPath::UniverseDomain).request().into()).await,
        ] {
            assert_eq!(answer.expect("an answer").status(), StatusCode::NOT_FOUND);
        }
        assert_eq!(asked.elapsed(), UNIVERSE_TIMEOUT);
    }
}
