//! [`Sampled`]: what happens often is told now and then, with a count.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Says when it is time for another line.
#[derive(Debug)]
pub(super) struct Sampled {
    /// Between two lines.
    every: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    untold: u64,
}

impl Sampled {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, state: Mutex::default() }
    }

    /// It happened. How often it did since the last line, if it is time for another.
    pub(super) fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold += 1;
        if state.told.is_some_and(|told| now < told + self.every) {
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_once_a_second_how_many_there_were() {
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
