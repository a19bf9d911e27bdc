//! [`Server`]: what is known of the upstream from exchanges with it.

use std::sync::Arc;
use std::time::Duration;

use super::Health;
use super::pool::Pool;

/// Idle connections to the server, and whether it answers.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) pool: Arc<Pool>,
    pub(super) health: Arc<Health>,
}

impl Server {
    pub(super) fn new(health: Arc<Health>) -> Arc<Self> {
        Arc::new(Self { pool: Arc::default(), health })
    }

    /// Records that a request was given up to which nothing had arrived for this time. The idle connections are closed: if its peer
    /// is gone, as after a live migration, so are theirs.
    pub(super) fn given_up(&self, after: Duration) {
        let millis = after.as_millis();
        self.health.failed(&format_args!("it had not answered after {millis} ms, when the request was given up"));
        self.pool.clear();
    }
}
