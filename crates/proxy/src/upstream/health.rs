//! [`Health`]: whether the last upstream request succeeded.

use std::fmt::Display;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::failure;

/// Minimum interval between log lines about outages, because an upstream that fails every other request would fill the
/// log. A pod can cause that with its requests.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Interval between log lines about an outage that lasts, so that the last quarter of an hour of the log shows it.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The upstream's last known state. An outage is logged when it begins, while it lasts, and when it ends.
#[derive(Debug, Default)]
pub struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    has_succeeded: bool,
    /// Reason for the current outage, and its start.
    failing: Option<(String, Instant)>,
    /// Time of the last line about a failure.
    logged: Option<Instant>,
    /// The failure was logged, but not the recovery.
    is_logged_failing: bool,
}

impl Health {
    /// Reason why the upstream is failing, or `None` while it is available.
    pub fn failure(&self) -> Option<String> {
        self.0.lock().failing.as_ref().map(|(reason, _)| reason.clone())
    }

    /// Whether any request has succeeded since the start.
    pub fn has_succeeded(&self) -> bool {
        self.0.lock().has_succeeded
    }

    /// Time since the last outage began, in which no request has succeeded. `None` while the upstream is available.
    pub fn failing_for(&self) -> Option<Duration> {
        self.0.lock().failing.as_ref().map(|(_, since)| since.elapsed())
    }

    /// Records a complete response.
    pub(super) fn answered(&self, status: StatusCode) {
        if failure::is_failure(status) {
            self.failed(&format_args!("it answers {}", status.as_u16()));
        } else if self.0.lock().succeeded() {
            tracing::info!("metadata server available again");
        }
    }

    pub(super) fn failed(&self, why: &dyn Display) {
        if self.0.lock().failed(why, Instant::now()) {
            let seconds = self.failing_for().unwrap_or_default().as_secs();
            tracing::warn!(seconds, "metadata server unavailable: {why}; requests that are not cached fail");
        }
    }
}

impl State {
    /// Records a success. Returns whether to log it.
    fn succeeded(&mut self) -> bool {
        (self.has_succeeded, self.failing) = (true, None);
        std::mem::take(&mut self.is_logged_failing)
    }

    /// Records a failure. Returns whether to log it.
    fn failed(&mut self, why: &dyn Display, now: Instant) -> bool {
        let since = self.failing.take().map_or(now, |(_, since)| since);
        self.failing = Some((why.to_string(), since));
        let interval = if self.is_logged_failing { REPEAT_INTERVAL } else { LOG_INTERVAL };
        let is_due = self.logged.is_none_or(|last| now >= last + interval);
        if is_due {
            (self.logged, self.is_logged_failing) = (Some(now), true);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    #[test]
    fn an_outage_is_logged_at_its_beginning_and_end_and_each_ten_minutes() {
        let mut state = State::default();
        let start = Instant::now();
        let lines =
            [0, 1, 599, 600, 601].map(|second| state.failed(&Failure::Closed, start + Duration::from_secs(second)));
        assert_eq!(lines, [true, false, false, true, false]);
        assert_eq!(state.failing.as_ref().map(|(_, since)| *since), Some(start), "since the first failure");
        assert_eq!([state.succeeded(), state.succeeded()], [true, false]);
        assert!(state.failing.is_none());
    }

    #[test]
    fn a_server_that_cannot_serve_has_failed_and_one_that_refuses_has_not() {
        for (status, failure) in [
            (500, Some("it answers 500")),
            (503, Some("it answers 503")),
            (429, Some("it answers 429")),
            (200, None),
            (304, None),
            (403, None),
            (404, None),
        ] {
            let health = Health::default();
            if failure.is_none() {
                health.failed(&Failure::Closed);
            }
            health.answered(StatusCode::from_u16(status).expect("a status"));
            assert_eq!(health.failure().as_deref(), failure, "{status}");
            assert_eq!(health.has_succeeded(), failure.is_none(), "{status}");
        }
    }

    #[test]
    fn alternating_failures_are_logged_twice_a_minute() {
        let mut state = State::default();
        let start = Instant::now();
        let lines: usize = (0..180)
            .map(|second| {
                let failed = state.failed(&Failure::Closed, start + Duration::from_secs(second));
                usize::from(failed) + usize::from(state.succeeded())
            })
            .sum();
        assert_eq!(lines, 6);
        assert!(!state.failed(&Failure::Closed, start + Duration::from_secs(179)), "logged 59 s ago");
        assert!(state.failed(&Failure::Closed, start + Duration::from_secs(180)), "still failing after a minute");
    }
}
