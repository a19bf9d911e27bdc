//! `TokenMetrics`: counts token requests and fetches.

use prometheus::IntCounter;

use telemetry::labels;
use telemetry::registry::{CounterGrid, Counters, Registry};
use telemetry::table;

labels! {
    /// How a request for a token was answered.
    TokenOutcome {
        /// From memory.
        Fresh = "fresh",
        /// From memory, while a new token was being fetched.
        Stale = "stale",
        /// After a fetch that it started.
        Miss = "miss",
        /// After a fetch that another request started.
        Coalesced = "coalesced",
        /// With a failure so recent that the server was not asked again.
        Failure = "failure",
    }
}

labels! {
    /// Why a token was fetched.
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
        /// A token that was not known.
        New = "new",
        /// The token that was known.
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
