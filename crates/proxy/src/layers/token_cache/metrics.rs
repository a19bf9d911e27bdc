//! `TokenMetrics`: counts token requests and fetches.

use prometheus::IntCounter;

use telemetry::labels;
use telemetry::registry::{CounterGrid, Counters, Registry};
use telemetry::table;

labels! {
    /// The way in which a token request was answered.
    TokenOutcome {
        /// From memory.
        Fresh = "fresh",
        /// From memory, while a new token was being fetched.
        Stale = "stale",
        /// After a fetch that it started.
        Miss = "miss",
        /// After a fetch that another request started.
        Coalesced = "coalesced",
        /// With a recent failure, without another request to the server.
        Failure = "failure",
    }
}

labels! {
    /// Reason for fetching a token.
    FlightCause {
        /// A request waited for it.
        Demand = "demand",
        /// To replace a token before it expires.
        Refresh = "refresh",
    }
}

labels! {
    /// The result of fetching a token.
    FlightOutcome {
        /// A new token.
        New = "new",
        /// The known token.
        Same = "same",
        /// A response without a token.
        Refused = "refused",
        /// No response, or an invalid one.
        Failed = "failed",
    }
}

/// Counts token requests and fetches.
#[derive(Debug)]
pub(super) struct TokenMetrics {
    pub(super) requests: Counters<TokenOutcome>,
    pub(super) flights: CounterGrid<FlightCause, FlightOutcome>,
    pub(super) evictions: IntCounter,
}

impl TokenMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counters(&table::TOKEN_REQUESTS),
            flights: registry.counter_grid(&table::TOKEN_FLIGHTS),
            evictions: registry.counter(&table::TOKEN_EVICTIONS),
        }
    }
}
