//! Idle connections to the upstream.
//!
//! There is one upstream and one kind of request, so a stack of idle connections is all that is needed: the one used last
//! is the one most likely to be alive. (A pool for many hosts would not tell us whether a connection was fresh, and the
//! retry in `client` rests on that.)

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::SendRequest;
use tokio::time::Instant;

/// A connection on which a request can be sent.
pub(super) type Connection = SendRequest<Empty<Bytes>>;

/// Most connections kept idle. A burst may open more (as many as there are seats); what it leaves beyond this is closed.
const MAX_IDLE: usize = 32;

/// How long an idle connection is trusted. The real server's own limit is not published; one that closed in the meantime
/// is noticed and costs one retry.
const MAX_IDLE_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// A connection that goes back to its pool when [`finish`](Lease::finish) says that its exchange is over; dropped before
/// that, it is closed, and the upstream sees that nobody waits any more.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    pool: Arc<Pool>,
}

impl Pool {
    /// The connection used last that still lives.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Lease> {
        while let Some(mut connection) = self.pop(Instant::now()) {
            // Resolves at once: with an error where the connection's task has seen the other end close.
            if connection.ready().await.is_ok() {
                return Some(self.lease(connection));
            }
        }
        None
    }

    pub(super) fn lease(self: &Arc<Self>, connection: Connection) -> Lease {
        Lease { connection, pool: Arc::clone(self) }
    }

    fn pop(&self, now: Instant) -> Option<Connection> {
        let mut idle = self.lock();
        idle.retain(|idle| now.duration_since(idle.since) < MAX_IDLE_FOR);
        idle.pop().map(|idle| idle.connection)
    }

    fn push(&self, connection: Connection) {
        let mut idle = self.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        // Pushing and popping leave the list whole whatever happens elsewhere.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The answer was read to its end: the connection may serve another request.
    pub(super) fn finish(self) {
        if !self.connection.is_closed() {
            self.pool.push(self.connection);
        }
    }
}
