//! [`Clock`]: the fake's time, and Google's time format.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::time::Instant;

/// The system's time at the start, advanced by tokio's clock, which stops and jumps in tests that pause it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// System time at the start, since 1970.
    base: Duration,
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        // A test is not expected to run on a machine whose clock is before 1970.
        let base = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { base, start: Instant::now() }
    }

    /// Whole seconds since 1970.
    pub(super) fn now(&self) -> u64 {
        (self.base + self.start.elapsed()).as_secs()
    }
}

/// The format in JSON: `2026-01-31T23:59:59Z`.
pub(super) fn rfc3339(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).expect("within the calendar");
    Timestamp::from_second(seconds).expect("within the calendar").to_string()
}
