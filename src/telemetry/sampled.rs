//! [`Sampled`]: limits how often a frequent event is logged.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Decides when the next log line is due.
#[derive(Debug)]
pub(crate) struct Sampled {
    /// Minimum interval between lines.
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_logged: Option<Instant>,
    /// Events since then.
    unlogged: u64,
}

impl Sampled {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, state: Mutex::default() }
    }

    /// Counts an event. If a log line is due, returns the number of events since the last one.
    pub(crate) fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unlogged += 1;
        if state.last_logged.is_some_and(|last| now < last + self.interval) {
            return None;
        }
        state.last_logged = Some(now);
        Some(std::mem::take(&mut state.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_once_per_interval_with_the_number_of_events() {
        let second = Duration::from_secs(1);
        let sampled = Sampled::new(second);
        let start = Instant::now();
        assert_eq!(sampled.due(start), Some(1));
        for _ in 0..9 {
            assert_eq!(sampled.due(start + Duration::from_millis(999)), None);
        }
        assert_eq!(sampled.due(start + second), Some(10));
    }
}
