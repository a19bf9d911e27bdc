//! [`Health`]: whether the last upstream request succeeded.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::failure::Failure;
use telemetry::sampled::Sampled;

/// Minimum interval between log lines about outages, because an upstream that fails every other request would fill the
/// log. A pod can cause that with its requests.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The upstream's last known state. An outage is logged twice: when it begins and when it ends.
#[derive(Debug, Default)]
pub struct Health(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Reason for the current outage, and its start.
    failing: Option<(String, Instant)>,
    outages: Sampled,
    /// The failure was logged, but not the recovery.
    is_logged_failing: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { failing: None, outages: Sampled::new(LOG_INTERVAL), is_logged_failing: false }
    }
}

impl Health {
    /// Reason why the upstream is failing, or `None` while it is available.
    pub fn failure(&self) -> Option<String> {
        self.0.lock().failing.as_ref().map(|(reason, _)| reason.clone())
    }

    /// Time since the last outage began, in which no request has succeeded. `None` while the upstream is available.
    pub fn failing_for(&self) -> Option<Duration> {
        self.0.lock().failing.as_ref().map(|(_, since)| since.elapsed())
    }

    pub(super) fn answered(&self) {
        if self.0.lock().answered() {
            tracing::info!("metadata server available again");
        }
    }

    pub(super) fn failed(&self, failure: &Failure) {
        if self.0.lock().failed(failure, Instant::now()) {
            tracing::warn!("metadata server unavailable: {failure}; requests that are not cached get 503");
        }
    }
}

impl State {
    /// Records a success. Returns whether to log it.
    fn answered(&mut self) -> bool {
        self.failing = None;
        std::mem::take(&mut self.is_logged_failing)
    }

    /// Records a failure. Returns whether to log it.
    fn failed(&mut self, failure: &Failure, now: Instant) -> bool {
        let since = self.failing.take().map_or(now, |(_, since)| since);
        self.failing = Some((failure.to_string(), since));
        let is_logged = !self.is_logged_failing && self.outages.due(now).is_some();
        self.is_logged_failing |= is_logged;
        is_logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_twice() {
        let mut state = State::default();
        let start = Instant::now();
        let lines = [0, 1, 120].map(|second| state.failed(&Failure::Closed, start + Duration::from_secs(second)));
        assert_eq!(lines, [true, false, false], "however long it lasts");
        assert_eq!(state.failing.as_ref().map(|(_, since)| *since), Some(start), "since the first failure");
        assert_eq!([state.answered(), state.answered()], [true, false]);
        assert!(state.failing.is_none());
    }

    #[test]
    fn alternating_failures_are_logged_twice_a_minute() {
        let mut state = State::default();
        let start = Instant::now();
        let lines: usize = (0..180)
            .map(|second| {
                let failed = state.failed(&Failure::Closed, start + Duration::from_secs(second));
                usize::from(failed) + usize::from(state.answered())
            })
            .sum();
        assert_eq!(lines, 6);
        assert!(!state.failed(&Failure::Closed, start + Duration::from_secs(179)), "logged 59 s ago");
        assert!(state.failed(&Failure::Closed, start + Duration::from_secs(180)), "still failing after a minute");
    }
}
