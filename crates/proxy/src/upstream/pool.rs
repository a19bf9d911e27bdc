//! Idle connections to the upstream.
//!
//! There is one upstream and one kind of request, so a stack of idle connections is enough: the connection
//! used last is most likely to be alive. (A pool for many hosts does not report whether a connection is new,
//! which the retry in `client` needs to know.)
//!
//! Nothing watches an idle connection: whether its server has closed it is found when it is taken.
//!
//! While there are idle connections, a task with a timer closes those that have been idle for too long, so that a
//! burst's connections are closed even without further requests. Connections are idle while the machine is suspended, too: their
//! server may be another one afterwards that does not answer on them, and a request on one would wait in vain.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connection::Connection;
use base::clock::BootTime;

/// Maximum idle time of a connection. The real server's own limit is not published; a connection that it
/// closed costs one retry.
const MAX_IDLE_FOR: Duration = Duration::from_secs(30);

/// Maximum number of connections that are kept for that long.
const MAX_IDLE_CONNECTIONS: usize = 32;

/// Maximum idle time of further connections. A burst opens as many as there are seats. They are kept briefly for its
/// next wave, because each takes memory here and a connection of the server, which the whole machine shares.
const MAX_IDLE_OF_BURST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    /// Notified when further connections become idle, because the oldest one's deadline moves earlier.
    crowded: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// The connection used last is the last element.
    idle: VecDeque<Idle>,
    /// Whether a task runs [`keep`].
    is_kept: bool,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: BootTime,
}

/// A connection in use. [`finish`](Lease::finish) returns it to the pool. Dropping it earlier closes the
/// connection, which cancels the request at the upstream.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) connection: Connection,
    pool: Arc<Pool>,
}

impl Pool {
    /// The most recently used connection that can take a request.
    pub(super) fn take(self: &Arc<Self>) -> Option<Lease> {
        while let Some(connection) = self.pop(BootTime::now()) {
            if connection.is_quiet() {
                return Some(self.lease(connection));
            }
        }
        None
    }

    pub(super) fn lease(self: &Arc<Self>, connection: Connection) -> Lease {
        Lease { connection, pool: Arc::clone(self) }
    }

    /// Closes all idle connections.
    pub(super) fn clear(&self) {
        // Dropping them does more than is done under a lock.
        let idle = std::mem::take(&mut self.state.lock().idle);
        drop(idle);
    }

    fn pop(&self, now: BootTime) -> Option<Connection> {
        let mut state = self.state.lock();
        trim(&mut state.idle, now);
        state.idle.pop_back().map(|idle| idle.connection)
    }

    fn push(self: &Arc<Self>, connection: Connection, now: BootTime) {
        let mut state = self.state.lock();
        trim(&mut state.idle, now);
        state.idle.push_back(Idle { connection, since: now });
        if !std::mem::replace(&mut state.is_kept, true) {
            tokio::spawn(keep(Arc::downgrade(self), Arc::clone(&self.crowded)));
        } else if state.idle.len() == MAX_IDLE_CONNECTIONS + 1 {
            self.crowded.notify_one();
        }
    }

    /// Closes connections that have been idle for too long. Returns the time of the next run, or `None` if none is
    /// left, which ends the task.
    fn tidy(&self, now: BootTime) -> Option<BootTime> {
        let mut state = self.state.lock();
        trim(&mut state.idle, now);
        let due = state.idle.front().map(|oldest| oldest.since + limit(state.idle.len()));
        state.is_kept = due.is_some();
        due
    }
}

/// Closes idle connections until the pool is empty or dropped.
async fn keep(pool: Weak<Pool>, crowded: Arc<Notify>) {
    while let Some(due) = pool.upgrade().and_then(|pool| pool.tidy(BootTime::now())) {
        // Either way, check again.
        let _ = timeout(due.since(BootTime::now()), crowded.notified()).await;
    }
}

impl Lease {
    /// The response was read to its end: the connection may serve another request.
    pub(super) fn finish(self) {
        self.pool.push(self.connection, BootTime::now());
    }
}

/// Closes connections that have been idle for too long.
fn trim(idle: &mut VecDeque<Idle>, now: BootTime) {
    while idle.front().is_some_and(|oldest| now.since(oldest.since) >= limit(idle.len())) {
        idle.pop_front();
    }
}

/// Maximum idle time of the oldest connection, given the number of idle connections.
fn limit(idle: usize) -> Duration {
    if idle > MAX_IDLE_CONNECTIONS { MAX_IDLE_OF_BURST } else { MAX_IDLE_FOR }
}

#[cfg(test)]
impl Pool {
    /// Number of idle connections.
    pub(super) fn size(&self) -> usize {
        self.state.lock().idle.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use tokio::time::advance;

    use super::*;
    use base::clock::suspend;

    /// Returns this many connections to the pool, as after a burst. Their other ends stay open.
    fn after_a_burst(pool: &Arc<Pool>, size: usize) -> Vec<TcpStream> {
        let finished = |_| {
            let (connection, far) = Connection::pair();
            pool.lease(connection).finish();
            far
        };
        (0..size).map(finished).collect()
    }

    /// Whether the other end sees that the connection was closed.
    fn is_closed(end: &mut TcpStream) -> bool {
        end.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
        end.read(&mut [0]).is_ok_and(|read| read == 0)
    }

    /// Lets this much time pass without using the pool.
    async fn quiet(time: Duration) {
        tokio::time::sleep(time + Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_bursts_connections_are_closed_without_further_requests() {
        let pool = Arc::<Pool>::default();
        let mut ends = after_a_burst(&pool, 100);
        quiet(MAX_IDLE_OF_BURST).await;
        assert_eq!(pool.size(), MAX_IDLE_CONNECTIONS);
        assert!(is_closed(&mut ends[0]), "the upstream sees the close");
        quiet(MAX_IDLE_FOR).await;
        assert_eq!(pool.size(), 0);
        assert!(!pool.state.lock().is_kept, "no task runs for an empty pool");
        let _ends = after_a_burst(&pool, 1);
        quiet(MAX_IDLE_FOR).await;
        assert_eq!(pool.size(), 0, "the task is started again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_that_follows_quiet_use_is_noticed() {
        let pool = Arc::<Pool>::default();
        let _first = after_a_burst(&pool, 1);
        quiet(Duration::from_secs(5)).await;
        let _ends = after_a_burst(&pool, 100);
        quiet(MAX_IDLE_OF_BURST).await;
        assert_eq!(pool.size(), MAX_IDLE_CONNECTIONS);
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_does_not_keep_the_pool_alive() {
        let pool = Arc::<Pool>::default();
        let mut ends = after_a_burst(&pool, 1);
        drop(pool);
        assert!(is_closed(&mut ends[0]), "its connections are closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bursts_connections_are_kept_for_its_next_wave_and_then_closed() {
        let pool = Arc::<Pool>::default();
        let _ends = after_a_burst(&pool, 100);
        assert_eq!(pool.size(), 100);
        advance(MAX_IDLE_OF_BURST).await;
        let lease = pool.take().expect("an open connection");
        assert_eq!(pool.size(), MAX_IDLE_CONNECTIONS - 1, "the others were idle for too long");
        lease.finish();
        assert_eq!(pool.size(), MAX_IDLE_CONNECTIONS);
        advance(Duration::from_millis(29_999)).await;
        assert!(pool.take().is_some(), "just before its maximum idle time");
        assert_eq!(pool.size(), 0, "the other connections were idle for longer");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_from_before_a_suspension_are_not_used() {
        let pool = Arc::<Pool>::default();
        let mut ends = after_a_burst(&pool, 2);
        suspend(MAX_IDLE_FOR / 2);
        pool.take().expect("an open connection").finish();
        suspend(MAX_IDLE_FOR / 2);
        pool.take().expect("it was used since").finish();
        assert_eq!(pool.size(), 1);
        assert!(is_closed(&mut ends[0]), "it was idle for too long");
        suspend(MAX_IDLE_FOR);
        assert!(pool.take().is_none());
        let _ends = after_a_burst(&pool, 1);
        quiet(MAX_IDLE_FOR).await;
        assert_eq!(pool.size(), 0, "the timer still runs");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_not_finished_is_closed() {
        let pool = Arc::<Pool>::default();
        let mut ends = after_a_burst(&pool, 1);
        drop(pool.take().expect("an open connection"));
        assert!(is_closed(&mut ends[0]));
        assert_eq!(pool.size(), 0);
    }
}
