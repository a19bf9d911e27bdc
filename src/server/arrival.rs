//! [`Arrival`]: a request with the client's address, as the server passes it to the stack.

use std::net::SocketAddr;

/// A request as it was received.
#[derive(Debug)]
pub struct Arrival<B> {
    /// The head, and the body that should not be there.
    pub request: http::Request<B>,
    /// The other end of the connection.
    pub peer: SocketAddr,
}
