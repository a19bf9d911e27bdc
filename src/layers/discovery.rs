//! discovery: answers requests that detect the metadata server, without an upstream request.
//!
//! Client libraries ping `/` when a process starts, Go's and gsutil's without any header, and Node's asks for
//! `/computeMetadata/v1/instance` and follows the redirect to the directory; they remember a failure for as long as the
//! process lives. So the answer must not depend on an upstream that is slow or busy (what that directory lists is one of the
//! values that are known from the start, `leaves`). Only what is served is listed: the
//! legacy tree beside `computeMetadata/` and the one beside `v1/` are left out.

use std::task::{Context, Poll};

use http::{Response, StatusCode};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::outcome::Outcome;
use crate::error::Error;
use crate::metadata::{Endpoint, Request};
use crate::reply::{self, Body};

/// The directory that Node's library looks for.
const INSTANCE: &str = "/computeMetadata/v1/instance";

/// Answers discovery requests.
pub fn layer<S>() -> impl Layer<S, Service = Discovery<S>> + Clone + use<S> {
    layer_fn(|inner| Discovery { inner })
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Discovery<S> {
    inner: S,
}

impl<S> Service<Box<Request>> for Discovery<S>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error>,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Outcome<S::Future, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Box<Request>) -> Self::Future {
        match answer(&request) {
            Some(answer) => Outcome::decided(Ok(answer)),
            None => Outcome::passed(self.inner.call(request)),
        }
    }
}

/// Whether this layer answers a request.
pub fn answers(request: &Request) -> bool {
    answer(request).is_some()
}

fn answer(request: &Request) -> Option<Response<Body>> {
    let listing = |text: &'static str| reply::local(StatusCode::OK, reply::APPLICATION_TEXT, text);
    match request.endpoint {
        // A question with a query is no ping; it is judged and answered as any other.
        _ if !request.query.is_empty() => None,
        Endpoint::Root => Some(listing("computeMetadata/\n")),
        Endpoint::Versions if request.path.is_directory() => Some(listing("v1/\n")),
        Endpoint::Leaf if request.path.as_str() == INSTANCE => Some(reply::directory_redirect(request)),
        _ => None,
    }
}
