//! Scans on a paused clock, for tests.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::super::{Sandboxes, Scanned};
use super::Scans;

impl Scans {
    /// Scans in a task, on a paused clock.
    pub fn in_task(sandboxes: Sandboxes) -> Self {
        Self::slow(sandboxes, Duration::ZERO)
    }

    /// Each scan reads the processes when it begins, and ends this much later.
    pub fn slow(sandboxes: Sandboxes, time: Duration) -> Self {
        let (scans, scan_loop) = Self::new(sandboxes);
        let sandboxes = Arc::clone(&scans.sandboxes);
        tokio::spawn(scan_loop.run(move || {
            let scanned = sandboxes.scan();
            async move {
                if time > Duration::ZERO {
                    sleep(time).await;
                }
                // The scan is throttled most of the time.
                Ok(Scanned { cost: time / 6, ..scanned })
            }
        }));
        scans
    }
}
