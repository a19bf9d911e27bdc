//! [`Reset`]: the error that resets a connection instead of answering. `layers::rescue` decides when to
//! reset; [`socket`](super::socket) does it.
//!
//! A reset tells a client immediately, without any response, that its request was not served, and client
//! libraries retry. It also leaves nothing behind in the proxy: no bytes in a buffer, no socket in
//! `TIME_WAIT`.

/// Resets the connection instead of sending a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is reset instead of sending a response")]
pub struct Reset;
