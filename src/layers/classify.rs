//! classify: parses a request once, refuses one that is invalid or ambiguous, and looks up who sent it.
//!
//! It precedes every other decision, so that all later layers and metrics use
//! [`metadata::Request`](crate::metadata::Request).

use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::Body;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::latency::Timeline;
use super::outcome::Outcome;
use crate::error::Error;
use crate::identity::Visitor;
use crate::metadata::Request;
use crate::metadata::host::AllowedHosts;

/// Accepts requests under these host names. Without a visitor, all clients act as the node.
pub fn layer<S>(
    hosts: &Arc<AllowedHosts>,
    visitor: Option<&Arc<Visitor>>,
    timeline: &Arc<Timeline>,
) -> impl Layer<S, Service = Classify<S>> + Clone + use<S> {
    let (hosts, visitor, timeline) = (Arc::clone(hosts), visitor.cloned(), Arc::clone(timeline));
    layer_fn(move |inner| Classify {
        inner,
        hosts: Arc::clone(&hosts),
        visitor: visitor.clone(),
        timeline: Arc::clone(&timeline),
    })
}

/// The service of this layer: [`http::Request`] in, [`Request`] out.
#[derive(Debug, Clone)]
pub struct Classify<S> {
    inner: S,
    hosts: Arc<AllowedHosts>,
    visitor: Option<Arc<Visitor>>,
    timeline: Arc<Timeline>,
}

impl<S> Classify<S> {
    fn read<B: Body>(&self, request: http::Request<B>) -> Result<Box<Request>, Error> {
        let (head, body) = request.into_parts();
        let mut request = Request::parse(head, !body.is_end_stream(), Some(self.timeline.peer()), &self.hosts)?;
        if let Some(visitor) = &self.visitor {
            (request.principal, request.pod) = visitor.sender().map_err(|_| Error::Outdated)?;
        }
        Ok(request)
    }
}

impl<S, B> Service<http::Request<B>> for Classify<S>
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

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match self.read(request) {
            Ok(request) => {
                self.timeline.asks_for((&request.endpoint).into());
                Outcome::passed(self.inner.call(request))
            }
            Err(error) => Outcome::decided(Err(error)),
        }
    }
}
