//! `ExchangeMetrics`: counts requests to the API server and to Google for pods' tokens.

use prometheus::IntCounter;

use super::halt::Halt;
use super::rest::Rest;
use proxy::tokens::Urgency;
use telemetry::labels;
use telemetry::labels::Label as _;
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
        /// A refusal that affects all accounts.
        Untrusted = "untrusted",
        /// Another refusal: of one account by Google, or by the API server.
        Refused = "refused",
        /// The server's own limit, or the quota that all accounts share, is used up.
        Throttled = "throttled",
        /// The quota of the account's own Google project is used up. Other projects' accounts are not affected.
        ProjectThrottled = "project_throttled",
        /// No response, or a server error.
        Failed = "failed",
    }
}

labels! {
    /// How urgent a request is.
    Sent {
        /// A pod waits for it.
        Demanded = "demanded",
        /// A token is renewed, or fetched in advance.
        Optional = "optional",
    }
}

/// Counts requests for pods' tokens.
#[derive(Debug)]
pub(super) struct ExchangeMetrics {
    results: CounterGrid<Step, Exchanged>,
    sent: CounterGrid<Step, Sent>,
}

/// Counts the requests to one server.
#[derive(Debug, Clone)]
pub(super) struct Spent {
    demanded: IntCounter,
    optional: IntCounter,
}

impl Spent {
    pub(super) fn count(&self, urgency: Urgency) {
        match urgency {
            Urgency::Demanded | Urgency::Soon => self.demanded.inc(),
            Urgency::Background => self.optional.inc(),
        }
    }
}

impl ExchangeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let sent = registry.counter_grid(&table::TOKEN_EXCHANGE_REQUESTS);
        Self { results: registry.counter_grid(&table::TOKEN_EXCHANGES), sent }
    }

    /// Counts the requests to a server.
    pub(super) fn spent(&self, step: Step) -> Spent {
        let of = |urgency| self.sent.of(step, urgency).clone();
        Spent { demanded: of(Sent::Demanded), optional: of(Sent::Optional) }
    }

    /// A line about the requests to each server: those that a pod waited for, and those that nobody waited for.
    pub(super) fn lines(&self) -> Vec<String> {
        let of = |step, urgency| self.sent.of(step, urgency).get();
        let line = |step: Step| {
            let (demanded, optional) = (of(step, Sent::Demanded), of(step, Sent::Optional));
            format!("{}: {demanded} demanded, {optional} optional", step.label())
        };
        Step::ALL.map(line).to_vec()
    }

    /// Counts a request that failed, or succeeded.
    pub(super) fn count(&self, step: Step, failed: Option<&Halt>) {
        let exchanged = failed.map_or(Exchanged::Issued, |halt| match halt.rest {
            _ if halt.is_untrusted() => Exchanged::Untrusted,
            Rest::Fixed => Exchanged::Refused,
            Rest::Doubling if halt.is_refusal() => Exchanged::Refused,
            Rest::Throttled(_) | Rest::Held(_) if halt.is_of_a_project() => Exchanged::ProjectThrottled,
            Rest::Throttled(_) | Rest::Held(_) => Exchanged::Throttled,
            Rest::None | Rest::Unasked | Rest::Brief | Rest::Demanded(_) | Rest::Doubling => Exchanged::Failed,
        });
        self.results.of(step, exchanged).inc();
    }

    /// By result, in the order of the variants.
    #[cfg(test)]
    pub(super) fn counts(&self, step: Step) -> Vec<u64> {
        Exchanged::ALL.iter().map(|exchanged| self.results.of(step, *exchanged).get()).collect()
    }
}
