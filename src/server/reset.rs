//! [`Reset`]: in place of an answer. Whether a connection is reset, `layers::rescue` decides; how, [`socket`](super::socket).
//!
//! A reset tells a client at once, and without a byte of an answer, that its request was not served; libraries take it
//! for a reason to try again. It also leaves nothing behind here: no last bytes in a buffer, no socket in
//! `TIME_WAIT`.

/// In place of an answer: the connection is to be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is reset instead of sending a response")]
pub struct Reset;
