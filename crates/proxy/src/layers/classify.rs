//! classify: parses a request once, refuses invalid and ambiguous requests, and identifies the sender.
//!
//! It precedes every other decision, so that all later layers and metrics use
//! [`metadata::Request`](protocol::metadata::Request).

use std::sync::Arc;
use std::task::{Context, Poll};

use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::latency::Timeline;
use crate::error::Error;
use crate::outcome::Outcome;
use crate::server::Payload;
use protocol::metadata::host::AllowedHosts;
use protocol::metadata::{Principal, Request, Sender};

/// Identifies the sender of a connection's requests.
pub trait Identify {
    /// The current sender, or [`Principal::Unknown`] if the sender is not known yet.
    fn sender(&self) -> Result<Sender, Error>;
}

/// All clients act as the node.
impl Identify for () {
    fn sender(&self) -> Result<Sender, Error> {
        Ok((Principal::Node, None))
    }
}

impl<I: Identify> Identify for Arc<I> {
    fn sender(&self) -> Result<Sender, Error> {
        I::sender(self)
    }
}

/// `None`: all clients act as the node.
impl<I: Identify> Identify for Option<I> {
    fn sender(&self) -> Result<Sender, Error> {
        self.as_ref().map_or_else(|| ().sender(), I::sender)
    }
}

/// Accepts requests with these host names, and attributes them to this client.
pub fn layer<S, I: Clone>(
    hosts: &Arc<AllowedHosts>,
    client: I,
    timeline: &Arc<Timeline>,
) -> impl Layer<S, Service = Classify<S, I>> + Clone + use<S, I> {
    let (hosts, timeline) = (Arc::clone(hosts), Arc::clone(timeline));
    layer_fn(move |inner| Classify {
        inner,
        hosts: Arc::clone(&hosts),
        client: client.clone(),
        timeline: Arc::clone(&timeline),
    })
}

/// The service of this layer: [`http::Request`] in, [`Request`] out.
#[derive(Debug, Clone)]
pub struct Classify<S, I> {
    inner: S,
    hosts: Arc<AllowedHosts>,
    client: I,
    timeline: Arc<Timeline>,
}

impl<S, I: Identify> Classify<S, I> {
    fn read(&self, request: http::Request<Payload>) -> Result<Box<Request>, Error> {
        let (head, payload) = request.into_parts();
        let (peer, hosts) = (Some(self.timeline.peer()), &self.hosts);
        let mut request = match payload {
            Payload::Posted(body) => Request::parse_posted(head, &body, peer, hosts),
            other => Request::parse(head, other == Payload::Some, peer, hosts),
        }?;
        (request.principal, request.pod) = self.client.sender()?;
        Ok(request)
    }
}

impl<S, I> Service<http::Request<Payload>> for Classify<S, I>
where
    I: Identify,
    S: Service<Box<Request>, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Outcome<S::Future, Result<S::Response, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Payload>) -> Self::Future {
        match self.read(request) {
            Ok(request) => {
                self.timeline.asks_for((&*request).into());
                Outcome::passed(self.inner.call(request))
            }
            Err(error) => Outcome::decided(Err(error)),
        }
    }
}
