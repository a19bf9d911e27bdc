//! [`Doing`]: the state that decides on a connection's deadline.

use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use super::Activity;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Doing {
    /// The client has not been reading its response since this time.
    NotReading(Instant),
    /// A response is being made.
    Answering,
    /// A complete head has been waiting for memory since this time.
    WaitingForRoom(Instant),
    /// The client has been sending a head, or the body that the server reads, since this time.
    Sending(Instant),
    /// Idle since this time, and the process is draining.
    Leaving(Instant),
    /// Idle since this time.
    Idle(Instant),
}

impl Activity {
    /// The state of the connection, as far as its deadline depends on it. The first match applies.
    pub(in crate::server) fn doing(&self) -> Doing {
        if let Some(since) = self.blocked.get(self.began) {
            return Doing::NotReading(since);
        }
        if self.is_answering() && !self.is_receiving_body() {
            return Doing::Answering;
        }
        if let Some(since) = self.waiting.get(self.began) {
            return Doing::WaitingForRoom(since);
        }
        if let Some(since) = self.request_began.get(self.began) {
            return Doing::Sending(since);
        }
        if self.last_call.load(Relaxed) { Doing::Leaving(self.moved_at()) } else { Doing::Idle(self.moved_at()) }
    }
}
