//! classify: parses a request once, and refuses one that is invalid or ambiguous.
//!
//! It precedes every other decision, so that all later layers and metrics use
//! [`metadata::Request`](crate::metadata::Request).

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::Body;
use tower::{Layer, Service};

use super::latency;
use super::outcome::Outcome;
use crate::error::Error;
use crate::metadata::Request;
use crate::metadata::host::AllowedHosts;

/// Makes [`Classify`].
#[derive(Debug, Clone)]
pub struct ClassifyLayer {
    hosts: Arc<AllowedHosts>,
    peer: SocketAddr,
}

/// The service of this layer: [`http::Request`] in, [`Request`] out.
#[derive(Debug, Clone)]
pub struct Classify<S> {
    inner: S,
    hosts: Arc<AllowedHosts>,
    peer: SocketAddr,
}

impl ClassifyLayer {
    /// Requests of this peer under these names are let in.
    pub fn new(hosts: Arc<AllowedHosts>, peer: SocketAddr) -> Self {
        Self { hosts, peer }
    }
}

impl<S> Layer<S> for ClassifyLayer {
    type Service = Classify<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Classify { inner, hosts: Arc::clone(&self.hosts), peer: self.peer }
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
        let (head, body) = request.into_parts();
        match Request::parse(head, !body.is_end_stream(), Some(self.peer), &self.hosts) {
            Ok(request) => {
                latency::asks_for((&request.endpoint).into());
                Outcome::passed(self.inner.call(request))
            }
            Err(error) => Outcome::decided(Err(error.into())),
        }
    }
}
