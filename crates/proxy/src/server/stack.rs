//! [`Stack`] and [`NewStack`]: what the server requires of the service that answers requests.
//!
//! A stack is made for each connection that serves requests, and cloned for each request. It ends when the connection is parked.

use http::{Request, Response};
use tower::Service;

use super::arrival::Arrival;
use super::reset::Reset;

/// What follows the head of a request. Its bytes are passed on only if the server keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No body, or an empty one that was read to its end.
    Empty,
    /// A body that is not empty, or may not be.
    Some,
    /// The body of a POST, where the server keeps it ([`Bodies`](super::Bodies)): empty if it is none that is read to its end.
    Posted(Box<[u8]>),
}

/// Answers the requests of one connection. It turns errors into responses, or has the connection reset.
///
/// Each request is answered by a clone, which is dropped after the call. So a clone must release what it reserved
/// in `poll_ready` and did not use, and cloning should be cheap.
pub trait Stack: Service<Request<Payload>, Response = Response<Self::Body>, Error = Reset> + Clone {
    /// The response body.
    type Body: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static;
}

impl<S, B> Stack for S
where
    S: Service<Request<Payload>, Response = Response<B>, Error = Reset> + Clone,
    B: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static,
{
    type Body = B;
}

/// Creates the stack of a connection. A parked connection has none, and gets another one for its next request.
pub trait NewStack {
    /// The service that answers requests.
    type Stack: Stack;

    /// What all stacks of a connection share. It is kept while the connection is parked, so it should be small.
    type Memory: Send + Sync;

    /// What a new connection's stacks will share. Called before the first one is created.
    fn remember(&self, arrival: Arrival) -> Self::Memory;

    /// Creates a stack of a connection.
    fn new_stack(&self, arrival: Arrival, memory: &Self::Memory) -> Self::Stack;
}

/// Stacks that share nothing.
impl<F, S> NewStack for F
where
    F: Fn(Arrival) -> S,
    S: Stack,
{
    type Stack = S;
    type Memory = ();

    fn remember(&self, _: Arrival) {}

    fn new_stack(&self, arrival: Arrival, (): &()) -> S {
        self(arrival)
    }
}

/// Stacks that share what the first function makes of a connection. The second one creates them.
#[derive(Debug)]
pub struct Remembering<R, F>(pub R, pub F);

impl<R, M, F, S> NewStack for Remembering<R, F>
where
    R: Fn(Arrival) -> M,
    M: Send + Sync,
    F: Fn(Arrival, &M) -> S,
    S: Stack,
{
    type Stack = S;
    type Memory = M;

    fn remember(&self, arrival: Arrival) -> M {
        self.0(arrival)
    }

    fn new_stack(&self, arrival: Arrival, memory: &M) -> S {
        self.1(arrival, memory)
    }
}
