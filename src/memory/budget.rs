//! [`Budget`]: how the memory limit is divided.

use crate::server::{OPEN_BYTES, SERVING_BYTES};

const MIB: usize = 1024 * 1024;

/// What the proxy is to live on if nothing else is said, in bytes, with the default limits on connections and requests.
const USUAL_BYTES: usize = 25 * MIB;

/// The process at rest, in bytes: its program, its runtime, its metrics and its policy.
const REST_BYTES: usize = 5 * MIB;

/// A request to the metadata server under way, in bytes: a connection with its buffers on either side of the kernel.
const EXCHANGE_BYTES: usize = 12 * 1024;

/// The least that a part gets, in bytes, however small the limit is.
const LEAST_BYTES: usize = MIB / 2;

/// The parts of the memory limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Connections of clients, with what the kernel keeps for them.
    pub connections: usize,
    /// Kept tokens.
    pub tokens: usize,
    /// Answers that are held because they are large.
    pub answers: usize,
}

/// How much may come at once, as the flags say.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// `--max-connections`.
    pub connections: usize,
    /// `--max-in-flight` and `--max-hanging`, since each may be a request to the metadata server.
    pub exchanges: usize,
}

/// What the default flags ask for.
const USUAL: Demand = Demand { connections: 1000, exchanges: 264 };

impl Budget {
    /// Divides a memory limit in bytes. A fifth of it stays free. Without a limit, the proxy takes no more than 25 MiB with
    /// the default flags, and in proportion where they are raised.
    pub fn new(limit: Option<u64>, demand: Demand) -> Self {
        let wanted = demand.bytes();
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let total = (limit.min(wanted) / 5 * 4).saturating_sub(REST_BYTES);
        // Tokens and answers take a tenth each of the usual limit.
        let part = (total / 10).clamp(LEAST_BYTES, 3 * MIB / 2);
        let exchanges = (demand.exchanges * EXCHANGE_BYTES).min(total / 4);
        let connections = total.saturating_sub(2 * part + exchanges).max(LEAST_BYTES);
        Self { connections, tokens: part, answers: part }
    }
}

impl Demand {
    /// The limit that suits this demand, in bytes.
    fn bytes(self) -> usize {
        let more = |asked: usize, usual: usize| asked.saturating_sub(usual);
        let connections = more(self.connections, USUAL.connections) * (OPEN_BYTES + SERVING_BYTES);
        let exchanges = more(self.exchanges, USUAL.exchanges) * (EXCHANGE_BYTES + SERVING_BYTES);
        USUAL_BYTES + (connections + exchanges) / 4 * 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_leave_a_fifth_of_the_limit_free() {
        for mib in [16, 25, 32, 64, 512] {
            let limit = mib * MIB;
            let budget = Budget::new(Some(limit as u64), USUAL);
            let exchanges = USUAL.exchanges * EXCHANGE_BYTES;
            let exchanges = exchanges.min((limit / 5 * 4).saturating_sub(REST_BYTES) / 4);
            let sum = REST_BYTES + exchanges + budget.connections + budget.tokens + budget.answers;
            assert!(sum <= limit / 5 * 4 + LEAST_BYTES, "{mib} MiB: {budget:?}");
        }
    }

    #[test]
    fn the_default_limits_fit_into_25_mib() {
        let budget = Budget::new(Some(25 << 20), USUAL);
        assert_eq!(budget, Budget::new(None, USUAL), "without a limit the same is taken");
        assert!(budget.connections / OPEN_BYTES >= 850, "{budget:?}");
        assert!(budget.connections / (OPEN_BYTES + SERVING_BYTES) >= 250, "{budget:?}");
    }

    #[test]
    fn raised_flags_get_what_they_need_where_there_is_no_limit() {
        let budget = Budget::new(None, Demand { connections: 4000, exchanges: 4064 });
        assert!(budget.connections / (OPEN_BYTES + SERVING_BYTES) >= 4000, "{budget:?}");
        let bounded = Budget::new(Some(25 << 20), Demand { connections: 4000, exchanges: 264 });
        assert_eq!(bounded.connections, Budget::new(None, USUAL).connections, "the limit counts");
    }
}
