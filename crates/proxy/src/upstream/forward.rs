//! [`Forward`]: sends requests to the upstream. The only place that decides which requests are sent, and where.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header;
use http::uri::PathAndQuery;
use http::{HeaderMap, Response, Version};
use http_body_util::Empty;
use tower::Service;

use super::Values;
use super::client::{Outgoing, RequestKind, UpstreamClient};
use crate::failure::Failure;
use crate::reply::Body;
use protocol::metadata::headers::{self, FORWARDED, GOOGLE, METADATA_FLAVOR};
use protocol::metadata::{Endpoint, Method, Principal, Request};

/// The innermost service: takes a [`Request`] and returns the upstream's response.
#[derive(Debug, Clone)]
pub struct Forward {
    to: To,
}

#[derive(Debug, Clone)]
enum To {
    Server(Arc<UpstreamClient>),
    Values(Arc<Values>),
}

impl Forward {
    /// Sends requests through this client.
    pub fn new(client: UpstreamClient) -> Self {
        Self { to: To::Server(Arc::new(client)) }
    }

    /// Answers requests with these values.
    pub fn to_values(values: Values) -> Self {
        Self { to: To::Values(Arc::new(values)) }
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

    /// Sends a request to the upstream.
    pub async fn ask(&self, request: &Request) -> Result<Response<Body>, Failure> {
        let client = match &self.to {
            To::Server(client) => client,
            To::Values(values) => return Ok(values.answer(request)),
        };
        let response = client.send(|| outgoing(request), request.into(), kind_of(request), request.peer).await?;
        Ok(clean(response, request.method == Method::Head))
    }
}

impl Service<Box<Request>> for Forward {
    type Response = Response<Body>;
    type Error = Failure;
    // Boxed, because hyper reserves memory for the whole stack's future in every connection, and most
    // requests never get here.
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        if !may_pass(&request) {
            return Box::pin(ready(Err(Failure::Foreign)));
        }
        // The request may wait for hours, so it must not keep the connection's read buffer.
        request.detach();
        let forward = self.clone();
        Box::pin(async move { forward.ask(&request).await })
    }
}

/// Whether a request may be sent: requests for the node's accounts only on behalf of the node, and older API versions, which
/// give its tokens under other paths. `identify` has already refused the others; this is a second lock.
fn may_pass(request: &Request) -> bool {
    let is_of_node =
        || request.path.concerns_accounts() || matches!(request.endpoint, Endpoint::Legacy | Endpoint::Unknown);
    request.principal == Principal::Node || !is_of_node()
}

fn kind_of(request: &Request) -> RequestKind {
    if request.hangs() {
        RequestKind::Hanging { timeout_sec: request.query.timeout_seconds() }
    } else {
        RequestKind::Ordinary
    }
}

/// Builds the upstream request from the parsed request.
fn outgoing(request: &Request) -> Outgoing {
    let mut outgoing = Outgoing::new(Empty::new());
    *outgoing.method_mut() = request.method.into();
    *outgoing.uri_mut() = target(request).into();
    *outgoing.headers_mut() = headers_for(request);
    outgoing
}

fn target(request: &Request) -> PathAndQuery {
    let text = format!("{}{}", request.path, request.query);
    text.try_into().expect("a canonical path and an encoded query are a request target")
}

fn headers_for(request: &Request) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(header::HOST, request.host.as_header().clone());
    headers.insert(METADATA_FLAVOR, GOOGLE);
    for name in FORWARDED {
        if let Some(value) = request.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers
}

/// The response as passed on, without hop-by-hop headers, framing headers and cookies. Clients share upstream
/// connections, cached values and watches, so a cookie would reach several of them. Errors of some emulators lack the
/// flavor, which clients require, so it is added. The HTTP version of the upstream is not passed on: hyper would answer
/// in the version of this response, and close the connection after HTTP/1.0.
fn clean(mut response: Response<Body>, is_head: bool) -> Response<Body> {
    headers::strip_framing(response.headers_mut(), is_head);
    response.headers_mut().remove(header::SET_COOKIE);
    response.headers_mut().insert(METADATA_FLAVOR, GOOGLE);
    *response.version_mut() = Version::HTTP_11;
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
        let cleaned = clean(response.body(Body::Whole(Bytes::new())).expect("a response"), false);
        assert!(!cleaned.headers().contains_key("set-cookie") && cleaned.headers().contains_key("etag"));
    }

    #[test]
    fn an_older_version_of_the_upstream_is_not_passed_on() {
        let response = Response::builder().version(Version::HTTP_10).body(Body::Whole(Bytes::new()));
        assert_eq!(clean(response.expect("a response"), false).version(), Version::HTTP_11);
    }
}
