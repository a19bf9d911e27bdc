//! [`Requests`]: counts responses and refusals.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::{IntCounter, IntCounterVec};
use tokio::time::Instant;

use super::compat::RequestCount;
use super::latency::RequestOutcome;
use super::registry::{self, Registry};
use super::sampled::Sampled;
use super::table;

/// Values of the label `code`.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Interval between log lines about refusals.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Counts responses to clients.
#[derive(Debug)]
pub struct Requests {
    by_class: [IntCounter; CLASSES.len()],
    by_status: Arc<RequestCount>,
    refusals: IntCounterVec,
    refusal_log: Sampled,
    panics: IntCounter,
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
            refusal_log: Sampled::new(LOG_INTERVAL),
            panics: registry.counter(&table::PANICS),
        }
    }

    /// Counts a response.
    pub fn answered(&self, outcome: RequestOutcome, status: StatusCode) {
        self.by_status.count(outcome, status);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len());
        self.by_class[class - 1].inc();
    }

    /// Counts a request that the proxy refused or failed, for a reason from a fixed set.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.with_label_values(&[reason]).inc();
    }

    /// Counts a refusal for the log. If a log line is due, returns the number of refusals since the last one.
    pub fn refusal_line_due(&self) -> Option<u64> {
        self.refusal_log.due(Instant::now())
    }

    /// Counts a request that panicked.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// The number of requests that panicked so far.
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
}
