//! `ExchangeMetrics`: counts requests to the API server and to Google for pods' tokens.

use super::rest::Rest;
use telemetry::labels;
use telemetry::registry::{CounterGrid, Registry};
use telemetry::table;

labels! {
    /// The server of a request.
    Step {
        /// The API server, for a Kubernetes token.
        Kubernetes = "kubernetes",
        /// Google's Security Token Service.
        Sts = "sts",
        /// Google's IAM Service Account Credentials API.
        Iam = "iam",
    }
}

labels! {
    /// The result of a request.
    Exchanged {
        /// A token.
        Issued = "issued",
        /// A refusal.
        Refused = "refused",
        /// The quota is used up.
        Throttled = "throttled",
        /// No response, or a server error.
        Failed = "failed",
    }
}

/// Counts requests for pods' tokens.
#[derive(Debug)]
pub(super) struct ExchangeMetrics(CounterGrid<Step, Exchanged>);

impl ExchangeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self(registry.counter_grid(&table::TOKEN_EXCHANGES))
    }

    /// Counts a request that failed with this rest, or succeeded.
    pub(super) fn count(&self, step: Step, failed: Option<Rest>) {
        let exchanged = match failed {
            None => Exchanged::Issued,
            Some(Rest::Fixed | Rest::Doubling) => Exchanged::Refused,
            Some(Rest::Throttled(_)) => Exchanged::Throttled,
            Some(Rest::Brief | Rest::None | Rest::Unasked) => Exchanged::Failed,
        };
        self.0.of(step, exchanged).inc();
    }

    #[cfg(test)]
    pub(super) fn counts(&self, step: Step) -> [u64; 4] {
        [Exchanged::Issued, Exchanged::Refused, Exchanged::Throttled, Exchanged::Failed]
            .map(|exchanged| self.0.of(step, exchanged).get())
    }
}
