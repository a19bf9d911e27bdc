//! [`ExchangeTimer`]: measures the duration of upstream requests.

use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;

use telemetry::latency::{EndpointClass, Latency, UpstreamOutcome};

/// An upstream request whose response is not complete. Dropping it counts the request as abandoned: no client waits for
/// it any more.
#[derive(Debug)]
pub(super) struct ExchangeTimer {
    latency: Arc<Latency>,
    began: Instant,
    endpoint: EndpointClass,
    /// The outcome by the response's status, once it is known.
    answered: Option<UpstreamOutcome>,
    /// The outcome recorded on drop.
    outcome: UpstreamOutcome,
}

impl ExchangeTimer {
    /// Starts measuring: the request is being sent.
    pub(super) fn start(latency: Arc<Latency>, endpoint: EndpointClass) -> Self {
        Self { latency, began: Instant::now(), endpoint, answered: None, outcome: UpstreamOutcome::Abandoned }
    }

    /// The response head has arrived.
    pub(super) fn first_byte(&mut self, status: StatusCode) {
        let outcome = outcome_of(status);
        self.answered = Some(outcome);
        self.latency.upstream.first_byte.record(self.endpoint, outcome, self.began.elapsed());
    }

    /// The response is complete.
    pub(super) fn end(mut self) {
        self.outcome = self.answered.unwrap_or(UpstreamOutcome::Failed);
    }

    /// No complete response will arrive.
    pub(super) fn fail(mut self) {
        self.outcome = UpstreamOutcome::Failed;
    }
}

impl Drop for ExchangeTimer {
    fn drop(&mut self) {
        self.latency.upstream.last_byte.record(self.endpoint, self.outcome, self.began.elapsed());
    }
}

/// The outcome of an exchange whose response has this status.
pub(super) fn outcome_of(status: StatusCode) -> UpstreamOutcome {
    match status.as_u16() {
        200..=299 => UpstreamOutcome::Success,
        300..=399 => UpstreamOutcome::Redirect,
        429 => UpstreamOutcome::TooMany,
        400..=499 => UpstreamOutcome::Refusal,
        _ => UpstreamOutcome::Error,
    }
}
