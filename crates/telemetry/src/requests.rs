//! [`Requests`]: counts responses and refusals.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use prometheus::{IntCounter, IntCounterVec};
use tokio::time::Instant;

use super::compat::RequestCount;
use super::latency::RequestOutcome;
use super::registry::{self, Registry};
use super::sampled::{Full, Sampled, SampledBy};
use super::table;

/// Values of the label `code`.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Interval between log lines about refusals of a client on one topic, and about panics.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum pairs of a topic and a client that have log lines of their own. A client that is refused for every possible
/// reason, and by every rule, takes three quarters of them.
const MAX_PAIRS: usize = 40;

/// Rules of a policy from this number on share a topic. The built-in policies have fewer.
const MAX_RULES: usize = 12;

/// Reason of a refusal, and the number of the policy's rule, or 0.
type Topic = (&'static str, usize);

/// More than the number of reasons.
const MAX_REASONS: usize = 64;

/// Counts responses to clients.
#[derive(Debug)]
pub struct Requests {
    by_class: [IntCounter; CLASSES.len()],
    by_status: Arc<RequestCount>,
    refusals: IntCounterVec,
    passed_failures: AtomicU64,
    refusal_log: SampledBy<(Topic, IpAddr)>,
    /// For the clients without a place in `refusal_log`: each reason is logged, whatever clients do.
    crowd_log: SampledBy<&'static str>,
    panics: IntCounter,
    panic_log: Sampled,
}

impl Requests {
    /// Registers its metrics.
    pub fn new(registry: &Registry) -> Self {
        let by_class = registry.counter_vec(&table::REQUESTS);
        let by_status = Arc::<RequestCount>::default();
        registry.export(by_status.exported());
        Self {
            by_class: CLASSES.map(|class| by_class.with_label_values(&[class])),
            by_status,
            refusals: registry.counter_vec(&table::REFUSALS),
            passed_failures: AtomicU64::new(0),
            refusal_log: SampledBy::new(LOG_INTERVAL, MAX_PAIRS),
            crowd_log: SampledBy::new(LOG_INTERVAL, MAX_REASONS),
            panics: registry.counter(&table::PANICS),
            panic_log: Sampled::new(LOG_INTERVAL),
        }
    }

    /// Counts a response.
    pub fn answered(&self, outcome: RequestOutcome, status: StatusCode) {
        self.by_status.count(outcome, status);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len());
        self.by_class[class - 1].inc();
    }

    /// Number of responses so far.
    pub fn count(&self) -> u64 {
        self.by_class.iter().map(IntCounter::get).sum()
    }

    /// Counts a request that the proxy refused or failed, for a reason from a fixed set.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.with_label_values(&[reason]).inc();
    }

    /// Counts a failure of the metadata server that was passed on. No refusal of the proxy's own.
    pub fn passed_failure(&self) {
        self.passed_failures.fetch_add(1, Relaxed);
    }

    /// Number of failures of the metadata server that were passed on so far.
    pub fn passed_failures(&self) -> u64 {
        self.passed_failures.load(Relaxed)
    }

    /// Counts a refusal of a client for the log. If a log line is due, returns the number of refusals since the last
    /// one: those of this client on this topic, or those of all clients without lines of their own.
    pub fn refusal_line_due(&self, (reason, rule): Topic, client: IpAddr, now: Instant) -> Option<u64> {
        let own = self.refusal_log.due_by_itself(((reason, rule.min(MAX_RULES)), client), now);
        own.unwrap_or_else(|Full| self.crowd_log.due(reason, now))
    }

    /// Counts a request that panicked. If a log line is due, returns the number of panics since the last one.
    pub fn panicked(&self) -> Option<u64> {
        self.panics.inc();
        self.panic_log.due(Instant::now())
    }

    /// Number of requests that panicked so far.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Refusals and failures so far, by reason.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        registry::counts(&self.refusals)
    }
}

/// Not registered anywhere.
impl Default for Requests {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_counted_under_its_class() {
        let registry = Registry::default();
        let requests = Requests::new(&registry);
        for code in [200, 301, 403, 404, 503] {
            requests.answered(RequestOutcome::Passed, StatusCode::from_u16(code).expect("a status"));
        }
        let text = registry.render();
        for line in [
            r#"metadata_proxy_requests_total{code="2xx"} 1"#,
            r#"metadata_proxy_requests_total{code="4xx"} 2"#,
            r#"metadata_proxy_requests_total{code="1xx"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
    }

    #[test]
    fn a_client_that_is_refused_all_the_time_hides_no_other_and_no_reason() {
        let requests = Requests::default();
        let client = |number: u32| IpAddr::from(number.to_be_bytes());
        let start = Instant::now();
        assert_eq!(requests.refusal_line_due(("concealed", 0), client(1), start), Some(1));
        assert_eq!(requests.refusal_line_due(("concealed", 0), client(1), start), None);
        assert_eq!(requests.refusal_line_due(("unidentified", 0), client(2), start), Some(1));
        // A client that invents addresses.
        let lines =
            (100..10_100).filter_map(|number| requests.refusal_line_due(("concealed", 0), client(number), start));
        assert_eq!(lines.count(), MAX_PAIRS - 2 + 1);
        assert_eq!(requests.refusal_line_due(("no_account", 0), client(3), start), Some(1));
        assert_eq!(requests.refusal_line_due(("concealed", 0), client(1), start + LOG_INTERVAL), Some(2));
    }

    #[test]
    fn what_one_rule_conceals_does_not_hide_what_another_does() {
        let requests = Requests::default();
        let now = Instant::now();
        let lines = (0..3 * MAX_RULES).filter_map(|number| {
            let rule = number % (2 * MAX_RULES);
            requests.refusal_line_due(("concealed", rule), [10, 0, 0, 1].into(), now)
        });
        assert_eq!(lines.collect::<Vec<_>>(), [1; MAX_RULES + 1], "each once, and the rest together");
    }

    #[tokio::test(start_paused = true)]
    async fn panics_are_counted_and_logged_once_a_minute() {
        let requests = Requests::default();
        assert_eq!([requests.panicked(), requests.panicked()], [Some(1), None]);
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!((requests.panicked(), requests.panics()), (Some(2), 3));
    }
}
