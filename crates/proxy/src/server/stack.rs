//! [`Stack`] and [`NewStack`]: the server's requirements for the service that answers requests.
//!
//! A stack is created for each connection that serves requests, and dropped when the connection is parked.

use http::{Request, Response};
use tower::Service;

use super::arrival::Arrival;
use super::reset::Reset;

/// The part of a request after its head. Its bytes are passed on only if the server keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No body, or an empty body that was read to its end.
    Empty,
    /// A body that is not empty, or may not be.
    Some,
    /// The body of a POST, where the server keeps it ([`Bodies`](super::Bodies)): empty if it is none that is read to its end.
    Posted(Box<[u8]>),
}

/// Answers the requests of one connection. Turns errors into responses, or resets the connection.
///
/// It is called for one request after the other. A request that must wait until its body was read, or until the stack is
/// ready, has a clone of its own. So a clone must release unused reservations of `poll_ready` when it is dropped.
pub trait Stack:
    Service<Request<Payload>, Response = Response<Self::Body>, Error = Reset, Future: Send> + Clone + Send + 'static
{
    type Body: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static;
}

impl<S, B> Stack for S
where
    S: Service<Request<Payload>, Response = Response<B>, Error = Reset, Future: Send> + Clone + Send + 'static,
    B: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static,
{
    type Body = B;
}

/// Creates the stack of a connection. A parked connection has none, and gets another one for its next request.
pub trait NewStack {
    /// The service that answers requests.
    type Stack: Stack;

    /// State shared by all stacks of a connection. Kept while the connection is parked, so it should be small.
    type Memory: Send + Sync;

    /// Creates the state shared by the stacks of a new connection. Called before the first stack is created.
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

/// Creates the shared state with the first function, and stacks with the second.
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
