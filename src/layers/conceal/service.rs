//! The layer that carries the verdict out.

use std::task::{Context, Poll};

use tower::{Layer, Service};

use super::policy::{self, Verdict};
use crate::error::Error;
use crate::layers::outcome::Outcome;
use crate::metadata::Request;
use crate::metadata::query::Param;

/// Makes [`Conceal`].
#[derive(Debug, Clone, Default)]
pub struct ConcealLayer;

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Conceal<S> {
    inner: S,
}

impl<S> Layer<S> for ConcealLayer {
    type Service = Conceal<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Conceal { inner }
    }
}

impl<S> Service<Request> for Conceal<S>
where
    S: Service<Request, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Outcome<S::Future, Result<S::Response, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match policy::judge(&request) {
            Verdict::Allow => Outcome::passed(self.inner.call(request)),
            Verdict::AllowFlat => {
                let query = request.query.without(Param::Recursive);
                Outcome::passed(self.inner.call(Request { query, ..request }))
            }
            Verdict::Conceal(concealed) => Outcome::decided(Err(concealed.into())),
        }
    }
}
