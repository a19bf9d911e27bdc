//! [`Forward`]: sends requests to the upstream. The only place that decides which requests are sent, and where.

use std::future::ready;
use std::io::Write;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use tokio_util::either::Either;
use tower::Service;

use super::Values;
use super::client::UpstreamClient;
use super::outgoing::{Outgoing, RequestHead, RequestKind};
use super::spare::{Kept, Spare};
use crate::failure::Failure;
use crate::reply::{self, Body};
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR, forwarded};
use protocol::metadata::{Endpoint, Method, Principal, Request};

/// The innermost service: takes a [`Request`] and returns the upstream's response. Each connection has a clone.
#[derive(Debug, Clone)]
pub struct Forward {
    to: To,
    /// Memory for the connection's request that is passed on.
    spare: Spare<Answer>,
}

type Answer = Result<Response<Body>, Failure>;

/// What answers the requests.
#[derive(Debug, Clone)]
enum To {
    /// Sends requests to the metadata server.
    Server(Arc<UpstreamClient>),
    /// Answers them with configured values.
    Values(Arc<Values>),
}

impl Forward {
    /// Sends requests through this client.
    pub fn new(client: UpstreamClient) -> Self {
        To::Server(Arc::new(client)).into()
    }

    /// Answers requests with these values.
    pub fn to_values(values: Values) -> Self {
        To::Values(Arc::new(values)).into()
    }

    /// The configured values. `None` if there is a metadata server.
    pub fn values(&self) -> Option<&Arc<Values>> {
        match &self.to {
            To::Server(_) => None,
            To::Values(values) => Some(values),
        }
    }

    /// Whether the upstream has service accounts: those of the node.
    pub fn has_accounts(&self) -> bool {
        matches!(self.to, To::Server(_))
    }

    /// Sends a request to the upstream. What waits for the response keeps no more of the request than what is sent, because it
    /// may wait for hours, and the request shares the read buffer of its connection. The response may take the memory of the
    /// request's headers, which are gone afterwards.
    pub fn ask(&self, request: &mut Request) -> impl Future<Output = Answer> + Send + use<> {
        match &self.to {
            To::Server(client) => {
                let (client, mut request) = (Arc::clone(client), outgoing(request));
                Either::Left(async move { client.send(&mut request).await.map(clean) })
            }
            To::Values(values) => Either::Right(ready(Ok(values.answer(request)))),
        }
    }
}

impl From<To> for Forward {
    fn from(to: To) -> Self {
        Self { to, spare: Spare::default() }
    }
}

impl Service<Box<Request>> for Forward {
    type Response = Response<Body>;
    type Error = Failure;
    // In memory of its own, because hyper reserves memory for the whole stack's future in every connection, and most
    // requests never get here.
    type Future = Kept<Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        self.spare.keep(if may_pass(&request) {
            Either::Left(self.ask(&mut request))
        } else {
            Either::Right(ready(Err(Failure::Foreign)))
        })
    }
}

/// Whether a request may be sent: requests for the node's accounts only on behalf of the node, and older API versions, which
/// give its tokens under other paths. `identify` has already refused the others; this is a second lock.
fn may_pass(request: &Request) -> bool {
    let is_of_node =
        || request.path.concerns_accounts() || matches!(request.endpoint, Endpoint::Legacy | Endpoint::Unknown);
    request.principal == Principal::Node || !is_of_node()
}

/// Writes the upstream request. All of it was checked when the request was parsed: a canonical path, an encoded query, and
/// valid header values.
fn outgoing(request: &mut Request) -> Outgoing {
    let is_head = request.method == Method::Head;
    let mut bytes = RequestHead::new();
    bytes.extend_from_slice(if is_head { b"HEAD " } else { b"GET " });
    write!(bytes, "{}{} HTTP/1.1\r\n", request.path, request.query).expect("writing to memory does not fail");
    let mut add = |name: &HeaderName, value: &HeaderValue| {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    };
    add(&header::HOST, request.host.as_header());
    add(&METADATA_FLAVOR, &GOOGLE);
    forwarded(&request.headers).for_each(|(name, value)| add(&name, value));
    bytes.extend_from_slice(b"\r\n");
    let mut headers = mem::take(&mut request.headers);
    let kind = if request.hangs() {
        // It may wait for hours, so it keeps no spare memory.
        bytes.shrink_to_fit();
        headers = HeaderMap::new();
        RequestKind::Hanging { timeout_sec: request.query.timeout_seconds() }
    } else {
        if !reply::reusable(&mut headers) {
            headers = HeaderMap::new();
        }
        RequestKind::Ordinary
    };
    Outgoing { bytes, is_head, endpoint: (&*request).into(), kind, peer: request.peer, headers }
}

/// The response as passed on, without cookies. Clients share upstream connections, cached values and watches, so a cookie
/// would reach several of them. Errors of some emulators lack the flavor, which clients require, so it is added.
fn clean(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().remove(header::SET_COOKIE);
    response.headers_mut().insert(METADATA_FLAVOR, GOOGLE);
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::room::Room;
    use crate::upstream::Health;
    use base::hook::Hook;
    use protocol::metadata::Target;
    use protocol::metadata::{MetadataPath, Query, WorkloadId};

    #[tokio::test]
    async fn a_request_that_waits_for_the_upstream_does_not_keep_the_read_buffer() {
        let target = Target::parse("http://127.0.0.1:1").expect("a target");
        let room = Room::new(0, Hook::new(Arc::new(|_| false)));
        let mut forward = Forward::new(UpstreamClient::new(target, Arc::<Health>::default(), room, Arc::default()));
        let buffer = Bytes::from("an-agent/1.0".repeat(10));
        let path = "/computeMetadata/v1/instance/tags";
        let mut request = Request::own(Endpoint::Leaf, path, Query::default(), Principal::Node);
        let agent = HeaderValue::from_maybe_shared(buffer.clone()).expect("a value");
        request.headers.insert(header::USER_AGENT, agent);
        let asked = forward.call(request.into());
        assert!(buffer.is_unique());
        drop(asked);
    }

    /// What a server decodes of a target would be a second request, or another.
    #[test]
    fn a_request_is_written_in_the_form_that_was_judged() {
        let target = "/computeMetadata//v1/./instance/%40x?alt=a%20Host:b%2526&last_etag=%C3%A9+%26";
        let target: http::uri::PathAndQuery = target.parse().expect("a target");
        let query = Query::parse(target.query()).expect("a query");
        let mut request = Request::get(MetadataPath::parse(&target).expect("a path"), query);
        request.headers.insert(header::USER_AGENT, HeaderValue::from_bytes(b"a\tb\xff").expect("a value"));
        request.headers.insert("x-goog-api-client", "x".repeat(1025).parse().expect("a value"));
        request.headers.insert("range", HeaderValue::from_static("bytes=0-1"));
        let Outgoing { bytes, is_head, headers, .. } = outgoing(&mut request);
        assert!(
            headers.is_empty() && headers.capacity() > 0,
            "memory for the response's headers, and none of the request's"
        );
        let expected = b"GET /computeMetadata/v1/instance/@x?alt=a%20Host:b%2526&last_etag=%C3%A9%20%26 HTTP/1.1\r\n\
            host: metadata.google.internal\r\nmetadata-flavor: Google\r\nuser-agent: a\tb\xff\r\n\r\n";
        assert_eq!((bytes.escape_ascii().to_string(), is_head), (expected.escape_ascii().to_string(), false));
        request.method = Method::Head;
        let Outgoing { bytes, is_head, .. } = outgoing(&mut request);
        assert!(bytes.starts_with(b"HEAD /computeMetadata/") && is_head);
        request.headers.insert(header::USER_AGENT, HeaderValue::from_static("a"));
        request.query = Query::parse(Some("wait_for_change=true")).expect("a query");
        assert_eq!(outgoing(&mut request).headers.capacity(), 0, "it may wait for hours");
    }

    #[tokio::test]
    async fn the_nodes_accounts_are_asked_for_in_the_nodes_name_only() {
        let target = Target::parse("http://127.0.0.1:1").expect("a target");
        let room = Room::new(0, Hook::new(Arc::new(|_| false)));
        let mut forward = Forward::new(UpstreamClient::new(target, Arc::<Health>::default(), room, Arc::default()));
        for (path, principal, is_foreign) in [
            ("/computeMetadata/v1/instance/service-accounts/default/token", Principal::Workload(WorkloadId(1)), true),
            ("/computeMetadata/v1/instance/service-accounts/default/token", Principal::Unknown, true),
            ("/computeMetadata/v1/instance/service-accounts/default/token", Principal::Node, false),
            ("/0.1/meta-data/auth-token", Principal::Workload(WorkloadId(1)), true),
            ("/0.1/meta-data/auth-token", Principal::Unknown, true),
            ("/0.1/meta-data/auth-token", Principal::Node, false),
            ("/computeMetadata/v2/tokens", Principal::Workload(WorkloadId(1)), true),
            ("/computeMetadata/v1/instance/zone", Principal::Workload(WorkloadId(1)), false),
        ] {
            let path = MetadataPath::parse(&path.parse().expect("a target")).expect("a path");
            let request = Request { principal, ..Request::get(path, Query::default()) };
            let failure = forward.call(request.into()).await.expect_err("nothing listens there");
            assert_eq!(matches!(failure, Failure::Foreign), is_foreign, "{failure}");
        }
    }

    #[test]
    fn a_cookie_is_not_passed_on() {
        let response = Response::builder().header("set-cookie", "a=1").header("set-cookie", "b=2").header("etag", "x");
        let cleaned = clean(response.body(Body::Whole(Bytes::new())).expect("a response"));
        assert!(!cleaned.headers().contains_key("set-cookie") && cleaned.headers().contains_key("etag"));
    }
}
