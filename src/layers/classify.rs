//! classify: reads a request once, and refuses what cannot be read in exactly one way.
//!
//! It stands before everything that decides, so that every later layer and every metric works on
//! [`metadata::Request`](crate::metadata::Request).

use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::Body;
use tower::{Layer, Service};

use super::latency;
use super::outcome::Outcome;
use crate::error::Error;
use crate::metadata::Request;
use crate::metadata::host::AllowedHosts;
use crate::server::Arrival;

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
        let (head, body) = arrival.request.into_parts();
        match Request::parse(head, !body.is_end_stream(), Some(arrival.peer), &self.hosts) {
            Ok(request) => {
                latency::asks_for((&request.endpoint).into());
                Outcome::passed(self.inner.call(request))
            }
            Err(error) => Outcome::decided(Err(error.into())),
        }
    }
}
