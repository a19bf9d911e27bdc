//! [`AtomicMillis`]: a time of a connection.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Milliseconds since a connection began, plus one; 0 for never.
#[derive(Debug, Default)]
pub(super) struct AtomicMillis(AtomicU64);

impl AtomicMillis {
    /// This long after the connection began.
    pub(super) fn at(elapsed: Duration) -> Self {
        // Overflows after 584 million years.
        Self(AtomicU64::new(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX - 1) + 1))
    }

    pub(super) fn set(&self, now: &Self) {
        self.0.store(now.0.load(Relaxed), Relaxed);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    pub(super) fn get(&self, began: Instant) -> Option<Instant> {
        let since = self.0.load(Relaxed).checked_sub(1)?;
        Some(began + Duration::from_millis(since))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}
