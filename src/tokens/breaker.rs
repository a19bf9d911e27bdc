//! [`Breaker`]: stops asking a server that does not answer.
//!
//! Each key backs off by itself; with many keys that is still many requests to a server in trouble. After
//! [`TOLERATED`] failures in a row, over all keys, one request in [`PAUSE`] is let through to see whether it is back, and
//! the others fail at once. The pause is shorter than any key's own back-off, so with one key the breaker changes nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that may be bad luck.
const TOLERATED: u32 = 5;

/// Between two probes of a server that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    probed: Option<Instant>,
}

impl Breaker {
    /// Whether a request may be sent now.
    pub(super) fn lets_through(&self, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = state.failures >= TOLERATED;
        if is_open && state.probed.is_some_and(|probed| now < probed + PAUSE) {
            return false;
        }
        state.probed = Some(now);
        true
    }

    pub(super) fn succeeded(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failures = 0;
    }

    pub(super) fn failed(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures = state.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_probes_until_one_succeeds() {
        let breaker = Breaker::default();
        let start = Instant::now();
        for _ in 0..TOLERATED {
            assert!(breaker.lets_through(start));
            breaker.failed();
        }
        assert!(!breaker.lets_through(start));
        assert!(!breaker.lets_through(start + PAUSE - Duration::from_millis(1)));
        assert!(breaker.lets_through(start + PAUSE), "one probe");
        assert!(!breaker.lets_through(start + PAUSE), "and one only");
        breaker.succeeded();
        assert!(breaker.lets_through(start + PAUSE));
        assert!(breaker.lets_through(start + PAUSE));
    }

    #[test]
    fn a_success_in_between_keeps_it_closed() {
        let breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..3 * TOLERATED {
            breaker.failed();
            breaker.succeeded();
        }
        assert!(breaker.lets_through(now) && breaker.lets_through(now));
    }
}
