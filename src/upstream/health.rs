//! [`Health`]: whether the upstream answered when it was last asked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Failure;

/// Between two lines that it fails. One that answers every other request would otherwise fill the log.
const TELL: Duration = Duration::from_secs(10);

/// The last word on the upstream. An outage is two lines and not a flood: one when it begins, one when it is over.
#[derive(Debug, Default)]
pub struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Why it is failing.
    reason: Option<String>,
    /// When the last line said that it fails.
    told: Option<Instant>,
    /// No line has said since that it answers.
    is_told_failing: bool,
}

impl Health {
    /// Why the upstream is failing; nothing while it answers.
    pub fn failure(&self) -> Option<String> {
        self.lock().reason.clone()
    }

    pub(super) fn answered(&self) {
        if self.lock().answered() {
            tracing::info!("metadata server available again");
        }
    }

    pub(super) fn failed(&self, failure: &Failure) {
        if self.lock().failed(failure, Instant::now()) {
            tracing::warn!("metadata server unavailable: {failure}; requests that are not cached get 503");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each field stands by itself, so a panic elsewhere cannot leave a contradiction.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether that is worth a line.
    fn answered(&mut self) -> bool {
        self.reason = None;
        std::mem::take(&mut self.is_told_failing)
    }

    /// Whether that is worth a line.
    fn failed(&mut self, failure: &Failure, now: Instant) -> bool {
        self.reason = Some(failure.to_string());
        if self.is_told_failing || self.told.is_some_and(|told| now < told + TELL) {
            return false;
        }
        self.told = Some(now);
        self.is_told_failing = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_two_lines() {
        let mut state = State::default();
        let start = Instant::now();
        let lines: Vec<_> =
            (0..3).map(|second| state.failed(&Failure::Closed, start + Duration::from_secs(second))).collect();
        assert_eq!(lines, [true, false, false]);
        assert!(state.reason.is_some());
        assert_eq!([state.answered(), state.answered()], [true, false]);
        assert!(state.reason.is_none());
    }

    #[test]
    fn one_that_answers_every_other_request_is_two_lines_in_ten_seconds() {
        let mut state = State::default();
        let start = Instant::now();
        let lines: usize = (0..30)
            .map(|second| {
                let failed = state.failed(&Failure::Closed, start + Duration::from_secs(second));
                usize::from(failed) + usize::from(state.answered())
            })
            .sum();
        assert_eq!(lines, 6);
        assert!(!state.failed(&Failure::Closed, start + Duration::from_secs(29)), "told nine seconds ago");
        assert!(state.failed(&Failure::Closed, start + Duration::from_secs(30)), "it still fails, so that is said");
    }
}
