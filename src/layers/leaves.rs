//! leaves: caches the few values that every client library requests and that do not change while the machine
//! runs.
//!
//! A library that starts asks for the project, the zone or the universe before it asks for a token, and some remember a
//! failure for as long as the process lives. Python's first request of all is for everything about its account, and it asks
//! again before every token; Node's follows the redirect of its ping to the list of `instance/`, and without that list takes
//! the machine for none of Google's. So these values are fetched before the proxy says that it is ready, answered
//! from memory as the server answered them (its headers included), and fetched again every ten minutes; a failure leaves
//! the old value in place.
//!
//! `universe/universe-domain` is a case of its own: Go's library has one second for it, takes 404 for the usual domain,
//! and takes anything else for fatal. As long as it is not known, a server that does not give it at once is answered for
//! with 404.

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

/// A leaf that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// Part of every API's host name.
    UniverseDomain,
    /// The project, by name.
    ProjectId,
    /// The project, by number.
    NumericProjectId,
    /// The machine, by number.
    InstanceId,
    /// Where the machine is.
    Zone,
    /// The machine, by name.
    Hostname,
    /// What the alias `default` stands for.
    DefaultEmail,
    /// The default account's aliases, e-mail and scopes. It is no leaf of the tree but the whole of an account, and asked for
    /// as one.
    DefaultAccount,
    /// The same of every account.
    Accounts,
    /// The list of what there is about the machine. It is no leaf either, but where Node's ping ends.
    Instance,
}

/// Each leaf that is kept, with its path and whether it is asked for with `recursive`.
const PATHS: [(Leaf, CommonPath, bool); 10] = [
    (Leaf::UniverseDomain, CommonPath::UniverseDomain, false),
    (Leaf::ProjectId, CommonPath::ProjectId, false),
    (Leaf::NumericProjectId, CommonPath::NumericProjectId, false),
    (Leaf::InstanceId, CommonPath::InstanceId, false),
    (Leaf::Zone, CommonPath::Zone, false),
    (Leaf::Hostname, CommonPath::Hostname, false),
    (Leaf::DefaultEmail, CommonPath::DefaultEmail, false),
    (Leaf::DefaultAccount, CommonPath::DefaultAccount, true),
    (Leaf::Accounts, CommonPath::Accounts, true),
    (Leaf::Instance, CommonPath::Instance, false),
];

const ACCOUNTS: &str = CommonPath::Accounts.as_str();

/// How long the universe may take while it is not known: half of what Go's library grants.
const UNIVERSE: Duration = Duration::from_millis(500);

/// The values that are known.
#[derive(Debug, Default)]
pub struct Leaves {
    known: [RwLock<Option<Arc<Known>>>; PATHS.len()],
}

/// An answer of the server's, less what belongs to its moment.
#[derive(Debug)]
struct Known {
    headers: HeaderMap,
    body: Bytes,
}

impl Leaf {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        PATHS.into_iter().map(|(leaf, ..)| leaf)
    }

    /// The request that asks the server for it.
    pub fn request(self) -> Request {
        let (_, path, is_recursive) = PATHS[self as usize];
        Request::get(path.into(), Query::of(is_recursive.then(|| (Param::Recursive, "true".into()))))
    }

    /// The leaf that a path and query ask for in the form that is kept; any other parameter makes it the server's business.
    fn of(path: CommonPath, query: &Query) -> Option<Self> {
        let found = PATHS.into_iter().find(|(_, known, _)| *known == path);
        found.filter(|(.., is_recursive)| has_only_recursive(query, *is_recursive)).map(|(leaf, ..)| leaf)
    }
}

impl Leaves {
    /// Keeps an answer, if it is the value. Returns the value.
    pub fn keep(&self, leaf: Leaf, status: StatusCode, mut headers: HeaderMap, body: &Bytes) -> Option<Bytes> {
        if status != StatusCode::OK {
            return None;
        }
        headers.remove(header::DATE);
        headers.remove(header::CONTENT_LENGTH);
        // A few bytes of the answer would keep all of the buffer that it was read into.
        for value in headers.values_mut() {
            *value = HeaderValue::from_bytes(value.as_bytes()).expect("it was one");
        }
        let known = Arc::new(Known { headers, body: Bytes::copy_from_slice(body) });
        // A value is replaced whole, so a panic elsewhere cannot leave it half written.
        *self.known[leaf as usize].write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Some(body.clone())
    }

    /// Whether a request is answered from here.
    pub fn knows(&self, request: &Request) -> bool {
        self.leaf(request).is_some_and(|leaf| self.answer(leaf).is_some())
    }

    /// The leaf that the node asks for: what is kept was answered to the node, and other principals have other accounts. Python asks for its account by the alias at first, and by the e-mail that it was told
    /// from then on.
    fn leaf(&self, request: &Request) -> Option<Leaf> {
        if request.principal != Principal::Node {
            return None;
        }
        let (path, query) = (request.path.as_str(), &request.query);
        let email = path.strip_prefix(ACCOUNTS).and_then(|account| account.strip_suffix('/'));
        if email.is_some_and(|email| self.is_default_email(email)) {
            return has_only_recursive(query, true).then_some(Leaf::DefaultAccount);
        }
        Leaf::of(request.path.common()?, query)
    }

    fn is_default_email(&self, email: &str) -> bool {
        let known = self.known[Leaf::DefaultEmail as usize].read().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|known| known.body == email)
    }

    fn answer(&self, leaf: Leaf) -> Option<Response<Body>> {
        let known = self.known[leaf as usize].read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let mut response = Response::new(Body::Whole(known.body.clone()));
        response.headers_mut().clone_from(&known.headers);
        Some(response)
    }
}

/// Whether a query says `recursive`, or does not, and nothing else.
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
        if leaf == Leaf::UniverseDomain { Outcome::pending(universe(inner)) } else { Outcome::passed(inner) }
    }
}

async fn universe<E>(asked: impl Future<Output = Result<Response<Body>, E>>) -> Result<Response<Body>, E> {
    match timeout(UNIVERSE, asked).await {
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
    fn what_was_answered_to_the_node_is_for_the_node_alone() {
        let leaves = kept(Leaf::DefaultEmail, "a@b.c");
        let mut request = Leaf::DefaultEmail.request();
        assert!(leaves.knows(&request));
        request.principal = Principal::Stranger;
        assert!(!leaves.knows(&request));
    }

    #[test]
    fn an_account_is_found_by_its_alias_and_by_its_email_when_all_of_it_is_asked_for() {
        let account = |name: &str, query: &str| {
            let path = format!("{ACCOUNTS}{name}/");
            let query = Query::parse(Some(query)).expect("a query");
            Request::own(Endpoint::ServiceAccounts, &path, query, Principal::Node)
        };
        let leaves = kept(Leaf::DefaultEmail, "a@b.c");
        for (name, query) in [("default", "recursive=true"), ("a@b.c", "recursive=True")] {
            assert_eq!(leaves.leaf(&account(name, query)), Some(Leaf::DefaultAccount), "{name}?{query}");
        }
        for (name, query) in
            [("default", ""), ("a@b.c", ""), ("default", "recursive=true&alt=text"), ("another@b.c", "recursive=true")]
        {
            assert_eq!(leaves.leaf(&account(name, query)), None, "{name}?{query}");
        }
        assert_eq!(Leaves::default().leaf(&account("a@b.c", "recursive=true")), None, "nobody has told whose it is");
    }

    #[tokio::test]
    async fn a_known_value_is_answered_as_the_server_answered_it() {
        let inner = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(Failure::Closed)) });
        let service = layer(&kept(Leaf::Zone, "projects/1/zones/z")).layer(inner);
        let response = service.clone().oneshot(Leaf::Zone.request().into()).await.expect("an answer");
        assert_eq!(response.headers()["etag"], "0123456789abcdef");
        assert!(!response.headers().contains_key(header::DATE), "the answer has its own moment");
        assert_eq!(text(response).await, "projects/1/zones/z");
        assert!(
            service.oneshot(Leaf::InstanceId.request().into()).await.is_err(),
            "the others are the server's business"
        );
    }

    #[tokio::test]
    async fn a_value_in_another_form_is_the_servers_business() {
        let inner = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(Failure::Closed)) });
        let service = layer(&kept(Leaf::Zone, "z")).layer(inner);
        let query = Query::parse(Some("alt=json")).expect("a query");
        assert!(service.oneshot(Request { query, ..Leaf::Zone.request() }.into()).await.is_err());
    }

    #[test]
    fn an_error_replaces_no_value() {
        let leaves = kept(Leaf::Zone, "z");
        for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE] {
            assert_eq!(leaves.keep(Leaf::Zone, status, HeaderMap::new(), &Bytes::new()), None);
        }
        assert!(leaves.answer(Leaf::Zone).is_some());
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
            slow.oneshot(Leaf::UniverseDomain.request().into()).await,
            failing.oneshot(Leaf::UniverseDomain.request().into()).await,
            refusing.oneshot(Leaf::UniverseDomain.request().into()).await,
        ] {
            assert_eq!(answer.expect("an answer").status(), StatusCode::NOT_FOUND);
        }
        assert_eq!(asked.elapsed(), UNIVERSE);
    }
}
