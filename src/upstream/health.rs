//! [`Health`]: whether the upstream answered when it was last asked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Failure;

/// The last word on the upstream. Changes are logged once each, so that an outage is two lines and not a flood.
#[derive(Debug, Default)]
pub struct Health {
    failing: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Health {
    /// Why the upstream is failing; nothing while it answers.
    pub fn failure(&self) -> Option<String> {
        self.lock().clone()
    }

    pub(super) fn answered(&self) {
        if self.failing.swap(false, Ordering::Relaxed) {
            *self.lock() = None;
            tracing::info!("the metadata server answers again");
        }
    }

    pub(super) fn failed(&self, failure: &Failure) {
        *self.lock() = Some(failure.to_string());
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!("the metadata server fails: {failure}; pods get 503 for what it alone knows");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        // The text is replaced whole, so a panic elsewhere cannot leave it half written.
        self.reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
