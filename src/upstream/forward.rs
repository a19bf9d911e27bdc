//! [`Forward`]: asks the upstream. The only place that says what goes on its wire.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header;
use http::uri::PathAndQuery;
use http::{HeaderMap, Response};
use http_body_util::Empty;
use tower::Service;

use super::Failure;
use super::client::{Client, Outgoing, Patience};
use crate::error::Error;
use crate::metadata::headers::{self, GOOGLE, METADATA_FLAVOR, PASSED_ON};
use crate::metadata::{Method, Request};
use crate::reply::Body;

/// The innermost service: [`Request`] in, the upstream's answer out.
#[derive(Debug, Clone)]
pub struct Forward {
    client: Arc<Client>,
}

impl Forward {
    /// Asks through this client.
    pub fn new(client: Client) -> Self {
        Self { client: Arc::new(client) }
    }

    /// Asks the upstream this.
    pub async fn ask(&self, request: &Request) -> Result<Response<Body>, Failure> {
        let response = self
            .client
            .send(|| outgoing(request, &self.client), (&request.endpoint).into(), patience_for(request), request.peer)
            .await?;
        Ok(clean(response, request.method == Method::Head))
    }
}

impl Service<Box<Request>> for Forward {
    type Response = Response<Body>;
    type Error = Error;
    // Boxed, because hyper reserves room for the whole stack's future in every connection, and most never come here.
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        // It waits for the upstream from here on, a watch for hours.
        request.detach();
        let forward = self.clone();
        Box::pin(async move { Ok(forward.ask(&request).await?) })
    }
}

fn patience_for(request: &Request) -> Patience {
    if request.hangs() {
        Patience::Hanging { timeout_sec: request.query.timeout_seconds() }
    } else {
        Patience::Ordinary
    }
}

/// The request as it is sent, written from what was parsed.
fn outgoing(request: &Request, client: &Client) -> Outgoing {
    let mut outgoing = Outgoing::new(Empty::new());
    *outgoing.method_mut() = request.method.into();
    *outgoing.uri_mut() = target(request).into();
    *outgoing.headers_mut() = headers_for(request, client);
    outgoing
}

fn target(request: &Request) -> PathAndQuery {
    let text = format!("{}{}", request.path, request.query);
    text.try_into().expect("a canonical path and an encoded query are a request target")
}

fn headers_for(request: &Request, client: &Client) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    let host = request.host.as_ref().map_or_else(|| client.target().as_header(), |host| host.as_header().clone());
    headers.insert(header::HOST, host);
    headers.insert(METADATA_FLAVOR, GOOGLE);
    for name in PASSED_ON {
        if let Some(value) = request.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers
}

/// The answer as it is passed on: the upstream's own headers, less those of the hop and of its framing. An error of some stand-in for the
/// real server may lack the flavor; clients take an answer without it for somebody else's, so it is put on.
fn clean(mut response: Response<Body>, is_head: bool) -> Response<Body> {
    headers::strip_framing(response.headers_mut(), is_head);
    response.headers_mut().insert(METADATA_FLAVOR, GOOGLE);
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::metadata::{Endpoint, Principal, Query};
    use crate::room::{CutUnread, Room};
    use crate::telemetry::Metrics;
    use crate::upstream::{Health, Target};

    #[tokio::test]
    async fn a_request_that_waits_for_the_upstream_keeps_nothing_of_the_read_buffer() {
        let target = Target::parse("http://127.0.0.1:1").expect("a target");
        let room = Room::new(0, CutUnread::never());
        let mut forward = Forward::new(Client::new(target, Arc::<Health>::default(), room, Metrics::leak()));
        let buffer = Bytes::from("an-agent/1.0".repeat(10));
        let path = "/computeMetadata/v1/instance/tags";
        let mut request = Request::own(Endpoint::Leaf, path, Query::default(), Principal::Node);
        let agent = HeaderValue::from_maybe_shared(buffer.clone()).expect("a value");
        request.headers.insert(header::USER_AGENT, agent);
        let asked = forward.call(request.into());
        assert!(buffer.is_unique());
        drop(asked);
    }
}
