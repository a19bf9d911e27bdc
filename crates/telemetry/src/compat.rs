//! [`RequestCount`]: the metric of k8s-metadata-proxy, for existing dashboards and alerts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use http::StatusCode;

use super::export::{Exported, Labels, Value};
use super::latency::RequestOutcome;
use super::table;

/// Values of the label `filter_result`, for refused and other requests.
const RESULTS: [&str; 2] = ["filter_result_blocked", "filter_result_proxied"];

/// Number of status codes, from 100 to 999.
const CODES: usize = 900;

/// Requests by filter result and status code. The 7 KiB of each result are allocated at its first request.
#[derive(Debug, Default)]
pub(super) struct RequestCount {
    counts: [OnceLock<Box<[AtomicU64; CODES]>>; RESULTS.len()],
}

impl RequestCount {
    pub(super) fn count(&self, outcome: RequestOutcome, status: StatusCode) {
        let result = usize::from(outcome != RequestOutcome::Refused);
        let counts = self.counts[result].get_or_init(|| Box::new([const { AtomicU64::new(0) }; CODES]));
        counts[usize::from(status.as_u16() - 100)].fetch_add(1, Relaxed);
    }

    pub(super) fn exported(self: &Arc<Self>) -> Exported {
        let counts = Arc::clone(self);
        Exported::new(&[&table::REQUEST_COUNT], move || vec![(&table::REQUEST_COUNT, counts.series())])
    }

    fn series(&self) -> Vec<(Labels, Value)> {
        let mut series = Vec::new();
        for (result, counts) in RESULTS.into_iter().zip(&self.counts) {
            for (code, count) in counts.get().into_iter().flat_map(|counts| counts.iter()).enumerate() {
                #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in floats")]
                let count = count.load(Relaxed) as f64;
                if count > 0.0 {
                    let code = (100 + code).to_string();
                    series.push((vec![("code", code.into()), ("filter_result", result.into())], Value::Counter(count)));
                }
            }
        }
        series
    }
}
