//! classify: parses a request once, and refuses one that is invalid or ambiguous.
//!
//! It precedes every other decision, so that all later layers and metrics use
//! [`metadata::Request`](crate::metadata::Request). The checks run from the syntax of the message to its
//! meaning: an error about a missing header does not help a client whose framing is broken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Version;
use http::uri::{PathAndQuery, Scheme};
use http_body::Body;
use tower::{Layer, Service};

use super::latency;
use super::outcome::Outcome;
use crate::error::{Error, Malformed};
use crate::metadata::headers::{Lines, Signs};
use crate::metadata::host::AllowedHosts;
use crate::metadata::{Endpoint, Host, MetadataPath, Method, Principal, Query, Request};
use crate::server::Arrival;

/// Longest request target, in bytes, as it comes and as it goes upstream. The longest honest one is a token's list of scopes: Google knows about 500 scopes
/// of some 50 bytes, and nobody asks for a third of them at once.
const MAX_TARGET: usize = 8 * 1024;

/// Bytes that one byte of a request target can become on its way upstream: `%` and two digits.
const MAX_GROWTH: usize = 3;

/// Makes [`Classify`].
#[derive(Debug, Clone)]
pub struct ClassifyLayer {
    hosts: Arc<AllowedHosts>,
}

/// The service of this layer: [`Arrival`] in, [`Request`] out.
#[derive(Debug, Clone)]
pub struct Classify<S> {
    inner: S,
    hosts: Arc<AllowedHosts>,
}

impl ClassifyLayer {
    /// Requests under these names are let in.
    pub fn new(hosts: AllowedHosts) -> Self {
        Self { hosts: Arc::new(hosts) }
    }
}

impl<S> Layer<S> for ClassifyLayer {
    type Service = Classify<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Classify { inner, hosts: Arc::clone(&self.hosts) }
    }
}

impl<S, B> Service<Arrival<B>> for Classify<S>
where
    S: Service<Box<Request>, Error = Error>,
    B: Body,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Outcome<S::Future, Result<S::Response, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, arrival: Arrival<B>) -> Self::Future {
        match read(arrival, &self.hosts) {
            Ok(request) => {
                latency::asks_for((&request.endpoint).into());
                Outcome::passed(self.inner.call(request))
            }
            Err(error) => Outcome::decided(Err(error)),
        }
    }
}

fn read<B: Body>(arrival: Arrival<B>, hosts: &AllowedHosts) -> Result<Box<Request>, Error> {
    let (principal, peer) = (principal_of(arrival.peer), Some(arrival.peer));
    let (head, body) = arrival.request.into_parts();
    let method = method_of(&head.method)?;
    let signs = Signs::of(&head.headers);
    check_framing(&signs, &body)?;
    let target = target_of(&head.uri)?;
    let path = MetadataPath::parse(target)?;
    let endpoint = Endpoint::of(&path);
    let is_ping = endpoint == Endpoint::Root && target.query().is_none_or(str::is_empty);
    let host = host_of(&signs, &head, is_ping, hosts)?;
    if let Some(name) = signs.forwarded_by() {
        return Err(Error::Forwarded(name));
    }
    if !is_ping && !signs.has_flavor() {
        return Err(Error::Flavor);
    }
    let query = Query::parse(target.query())?;
    check_upstream_length(target, &path, &query)?;
    Ok(Box::new(Request { method, endpoint, path, query, principal, peer, host, headers: head.headers }))
}

/// Every caller is the node, until pods can be told apart.
fn principal_of(_peer: SocketAddr) -> Principal {
    Principal::Node
}

fn method_of(method: &http::Method) -> Result<Method, Error> {
    match *method {
        http::Method::GET => Ok(Method::Get),
        http::Method::HEAD => Ok(Method::Head),
        _ => Err(Error::Method(method.clone())),
    }
}

/// A body, announced or not, ends the connection after the answer; an upgrade would end our rules.
fn check_framing<B: Body>(signs: &Signs<'_>, body: &B) -> Result<(), Malformed> {
    if signs.has_transfer_encoding || !body.is_end_stream() {
        return Err(Malformed::Body);
    }
    if signs.has_upgrade {
        return Err(Malformed::Upgrade);
    }
    Ok(())
}

fn target_of(uri: &http::Uri) -> Result<&PathAndQuery, Error> {
    let target = uri.path_and_query().ok_or(Malformed::Target)?;
    bounded(target.as_str().len())?;
    // `OPTIONS *` ends up here as well.
    if !target.as_str().starts_with('/') || uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP) {
        return Err(Malformed::Target.into());
    }
    Ok(target)
}

/// Percent-encoding can make a target longer than it came. One that is short enough whatever becomes of it is not measured,
/// and nearly all are.
fn check_upstream_length(target: &PathAndQuery, path: &MetadataPath, query: &Query) -> Result<(), Error> {
    if target.as_str().len() <= MAX_TARGET / MAX_GROWTH {
        return Ok(());
    }
    bounded(path.as_str().len() + query.encoded_len())
}

fn bounded(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TARGET { Err(Error::TargetTooLong { bytes, limit: MAX_TARGET }) } else { Ok(()) }
}

/// Judges the `Host` header and, in an absolute target, the authority that stands there in its place; both must be let
/// in, and the target's is the one that counts (RFC 9112, section 3.2.2). HTTP/1.0 knows no `Host`; without one it may
/// only ask whether this is a metadata server.
fn host_of(
    signs: &Signs<'_>,
    head: &http::request::Parts,
    is_ping: bool,
    hosts: &AllowedHosts,
) -> Result<Option<Host>, Error> {
    let in_header = match signs.host {
        Lines::One(value) => Some(hosts.admit(value)?),
        Lines::None if head.version == Version::HTTP_10 && is_ping => None,
        _ => return Err(Malformed::HostCount.into()),
    };
    let in_target = head.uri.authority().map(|authority| hosts.admit_authority(authority)).transpose()?;
    Ok(in_target.or(in_header))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::tokens::TokenKey;

    const ID: &str = "/computeMetadata/v1/instance/id";

    fn arrival<B: Body>(request: http::Request<B>) -> Result<Box<Request>, Error> {
        read(Arrival { request, peer: ([10, 0, 0, 9], 40000).into() }, &AllowedHosts::default())
    }

    fn get(target: &str, headers: &[(&str, &str)]) -> Result<Box<Request>, Error> {
        let request =
            headers.iter().fold(http::Request::get(target), |request, (name, value)| request.header(*name, *value));
        arrival(request.body(Empty::<Bytes>::new()).expect("a request"))
    }

    const HOST: (&str, &str) = ("host", "169.254.169.254");
    const FLAVOR: (&str, &str) = ("metadata-flavor", "Google");

    #[test]
    fn a_good_request_is_read_once_and_whole() {
        let request = get("/computeMetadata//v1/instance/id?alt=json", &[HOST, FLAVOR]).expect("a good request");
        assert_eq!((request.method, request.endpoint), (Method::Get, Endpoint::Leaf));
        assert_eq!(request.path.as_str(), ID);
        assert_eq!(request.query.to_string(), "?alt=json");
        assert_eq!(request.host.as_ref().map(Host::as_str), Some("169.254.169.254"));
    }

    #[test]
    fn only_a_ping_needs_no_flavor() {
        assert!(get("/", &[HOST]).is_ok());
        assert!(get("/?", &[HOST]).is_ok());
        assert!(matches!(get("/?recursive=true", &[HOST]), Err(Error::Flavor)), "it would be asked with our flavor");
        assert!(get("/", &[HOST, ("metadata-flavor", "Not Google")]).is_ok());
        assert!(matches!(get(ID, &[HOST]), Err(Error::Flavor)));
        assert!(matches!(get("/computeMetadata/", &[HOST]), Err(Error::Flavor)));
    }

    #[test]
    fn requests_that_came_through_another_proxy_are_refused_even_at_the_root() {
        assert!(matches!(get("/", &[HOST, ("x-forwarded-for", "")]), Err(Error::Forwarded(_))));
        assert!(matches!(get(ID, &[HOST, FLAVOR, ("forwarded", "for=1")]), Err(Error::Forwarded(_))));
    }

    #[test]
    fn exactly_one_host_is_needed() {
        assert!(matches!(get(ID, &[FLAVOR]), Err(Error::Malformed(Malformed::HostCount))));
        assert!(matches!(get(ID, &[FLAVOR, HOST, HOST]), Err(Error::Malformed(Malformed::HostCount))));
        assert!(matches!(get(ID, &[FLAVOR, ("host", "evil.example")]), Err(Error::Host(_))));
    }

    #[test]
    fn http_1_0_without_a_host_may_only_ping() {
        let old = |target: &str| {
            let request = http::Request::get(target).version(Version::HTTP_10).header(FLAVOR.0, FLAVOR.1);
            arrival(request.body(Empty::<Bytes>::new()).expect("a request"))
        };
        assert!(old("/").is_ok());
        assert!(matches!(old(ID), Err(Error::Malformed(Malformed::HostCount))));
    }

    #[test]
    fn an_absolute_target_is_judged_by_its_own_authority_too() {
        let absolute = |authority: &str| get(&format!("http://{authority}{ID}"), &[HOST, FLAVOR]);
        let request = absolute("metadata.goog").expect("a name of the server");
        assert_eq!((request.path.as_str(), request.host.as_ref().map(Host::as_str)), (ID, Some("metadata.goog")));
        assert!(matches!(absolute("evil.example"), Err(Error::Host(_))));
        assert!(matches!(get("http://metadata/", &[("host", "evil.example")]), Err(Error::Host(_))));
        assert!(matches!(get("https://metadata/", &[HOST]), Err(Error::Malformed(Malformed::Target))));
    }

    #[test]
    fn a_body_or_an_upgrade_is_refused() {
        let with_body = http::Request::get("/")
            .header(HOST.0, HOST.1)
            .body(Full::new(Bytes::from_static(b"GET /")))
            .expect("a request");
        assert!(matches!(arrival(with_body), Err(Error::Malformed(Malformed::Body))));
        assert!(matches!(get("/", &[HOST, ("transfer-encoding", "chunked")]), Err(Error::Malformed(Malformed::Body))));
        assert!(matches!(get("/", &[HOST, ("upgrade", "h2c")]), Err(Error::Malformed(Malformed::Upgrade))));
    }

    #[test]
    fn targets_have_a_bound_and_must_be_paths() {
        let long = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
        assert!(!matches!(get(&long(MAX_TARGET), &[HOST, FLAVOR]), Err(Error::TargetTooLong { .. })));
        assert!(matches!(get(&long(MAX_TARGET + 1), &[HOST, FLAVOR]), Err(Error::TargetTooLong { .. })));
        assert!(matches!(get("*", &[HOST, FLAVOR]), Err(Error::Malformed(Malformed::Target))));
    }

    const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

    /// Longest target that arrives with this begin, filled with copies of a text.
    fn filled(begin: &str, text: &str) -> String {
        begin.to_owned() + &text.repeat((MAX_TARGET - begin.len()) / text.len())
    }

    #[test]
    fn a_target_that_grows_upstream_is_refused_with_the_numbers() {
        let refused = get(&filled(&format!("{TOKEN}?audience="), "\u{e9}"), &[HOST, FLAVOR]);
        let Err(Error::TargetTooLong { bytes, limit }) = refused else { panic!("{refused:?}") };
        assert!(bytes > 2 * limit && limit == MAX_TARGET, "{bytes} bytes, {limit} allowed");
    }

    #[test]
    fn a_long_list_of_scopes_is_read_in_every_spelling() {
        for scope in [
            "https://www.googleapis.com/auth/devstorage.read_only,",
            "https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fdevstorage.read_only%2C",
        ] {
            let request = get(&filled(&format!("{TOKEN}?scopes="), scope), &[HOST, FLAVOR]);
            assert!(request.is_ok(), "{scope}: {request:?}");
        }
    }

    proptest! {
        #[test]
        fn no_target_goes_upstream_with_more_bytes_than_are_allowed(
            path in select(vec![TOKEN, ID, "/x//y/./z", "/0.1/meta-data/%40"]),
            key in select(vec!["audience", "scopes", "last_etag", "%61lt", "unknown"]),
            text in "([a-z/:,@*?=+|{}\"'()^`~]|%[2-7][0-9a-f]|\u{e9}|\u{1f600}){1,6}",
            share in 1_usize..=16,
        ) {
            let mut target = filled(&format!("{path}?{key}="), &text);
            let keep = target.len() * share / 16;
            let at = (0..=keep).rev().find(|at| target.is_char_boundary(*at) && !target[..*at].ends_with('%'));
            target.truncate(at.unwrap_or_default());
            if target.parse::<PathAndQuery>().is_ok() && let Ok(request) = get(&target, &[HOST, FLAVOR]) {
                let sent = format!("{}{}", request.path, request.query);
                prop_assert!(sent.len() <= MAX_TARGET, "{} bytes of {}", sent.len(), target);
                if let Some((key, _)) = TokenKey::of(&request) {
                    let asked = key.request();
                    let asked = format!("{}{}", asked.path, asked.query);
                    prop_assert!(asked.len() <= MAX_TARGET, "{} bytes of {}", asked.len(), target);
                }
            }
        }
    }

    #[test]
    fn only_reading_is_let_through() {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get"] {
            let request =
                http::Request::builder().method(method).uri(ID).header(HOST.0, HOST.1).header(FLAVOR.0, FLAVOR.1);
            let read = arrival(request.body(Empty::<Bytes>::new()).expect("a request"));
            assert!(matches!(read, Err(Error::Method(_))), "{method}");
        }
    }
}
