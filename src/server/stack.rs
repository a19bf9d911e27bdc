//! [`Stack`] and [`NewStack`]: what the server requires of the service that answers requests.
//!
//! A stack is made for each connection that serves requests, and cloned for each request.

use http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use super::arrival::Arrival;
use super::reset::Reset;

/// Answers the requests of one connection. It turns errors into responses, or has the connection reset.
///
/// Each request is answered by a clone, which is dropped after the call. So a clone must release what it reserved
/// in `poll_ready` and did not use, and cloning should be cheap.
pub trait Stack: Service<Request<Incoming>, Response = Response<Self::Body>, Error = Reset> + Clone {
    /// The response body.
    type Body: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static;
}

impl<S, B> Stack for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Reset> + Clone,
    B: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static,
{
    type Body = B;
}

/// Creates the stack of a connection. A parked connection has none.
pub trait NewStack {
    /// The service that answers requests.
    type Stack: Stack;

    /// Creates the stack of a connection.
    fn new_stack(&self, arrival: Arrival) -> Self::Stack;
}

impl<F, S> NewStack for F
where
    F: Fn(Arrival) -> S,
    S: Stack,
{
    type Stack = S;

    fn new_stack(&self, arrival: Arrival) -> S {
        self(arrival)
    }
}
