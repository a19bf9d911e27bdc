//! [`ExchangeTimer`]: measures the duration of upstream requests.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::server::Server;
use telemetry::latency::{EndpointClass, Latency, UpstreamOutcome};

/// Time without a response after which a request that is abandoned is a failure of the server. Clients that leave do so
/// after a second at the earliest (Go's look-up of the universe domain, `curl -m 1`), part of which has passed when the request
/// is sent. The server needs a few ms, and about 100 ms for a new token.
const TOO_LONG: Duration = Duration::from_millis(800);

/// An upstream request whose response is not complete. Dropping it counts the request as abandoned: no client waits for
/// it any more.
#[derive(Debug)]
pub(super) struct ExchangeTimer {
    latency: Arc<Latency>,
    /// Told if the request is abandoned after [`TOO_LONG`]. `None` once something of the response has arrived, and for a hanging
    /// GET, which may wait for as long as it likes.
    awaited_from: Option<Arc<Server>>,
    began: Instant,
    endpoint: EndpointClass,
    /// The outcome by the response's status, once it is known.
    answered: Option<UpstreamOutcome>,
    /// The outcome recorded on drop.
    outcome: UpstreamOutcome,
}

impl ExchangeTimer {
    /// Starts measuring: the request is being sent. `awaited_from`: the server, if it should respond at once.
    pub(super) fn start(latency: Arc<Latency>, endpoint: EndpointClass, awaited_from: Option<Arc<Server>>) -> Self {
        let (began, outcome) = (Instant::now(), UpstreamOutcome::Abandoned);
        Self { latency, awaited_from, began, endpoint, answered: None, outcome }
    }

    /// Something of the response has arrived, read or not.
    pub(super) fn arrived(&mut self) {
        self.awaited_from = None;
    }

    /// The response head has arrived.
    pub(super) fn first_byte(&mut self, status: StatusCode) {
        let outcome = outcome_of(status);
        self.answered = Some(outcome);
        self.arrived();
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
        let lasted = self.began.elapsed();
        self.latency.upstream.last_byte.record(self.endpoint, self.outcome, lasted);
        if let Some(server) = &self.awaited_from
            && self.outcome == UpstreamOutcome::Abandoned
            && lasted >= TOO_LONG
        {
            server.given_up(lasted);
        }
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
