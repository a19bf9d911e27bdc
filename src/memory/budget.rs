//! [`Budget`]: how the memory limit is divided.

const MIB: usize = 1024 * 1024;

/// What an open connection weighs, in bytes: its task and its place (3 KiB), the kernel's socket (3 KiB) and full buffers of
/// what was received and not read (4 KiB).
pub const OPEN_BYTES: usize = 10 * 1024;

/// What hyper's state and the answer in the kernel's send buffer weigh, in bytes.
pub const SERVING_BYTES: usize = 24 * 1024;

/// The process at rest, in bytes: its program, its runtime, its metrics and its policy.
const REST_BYTES: usize = 11 * MIB / 2;

/// A request to the metadata server under way, in bytes: a connection with its buffers on either side of the kernel.
const EXCHANGE_BYTES: usize = 15 * 1024;

/// The most that tokens get, and large answers, in bytes.
const LARGEST_PART_BYTES: usize = 3 * MIB / 2;

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

impl Budget {
    /// Divides a memory limit in bytes. A fifth of it stays free. Without a limit, connections and requests get what the flags
    /// allow them.
    pub fn new(limit: Option<u64>, demand: Demand) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let total = (limit / 5 * 4).saturating_sub(REST_BYTES).min(demand.bytes());
        // Tokens and answers take a tenth each of a limit of 25 MiB, and no more of a larger one.
        let part = (total / 10).clamp(LEAST_BYTES, LARGEST_PART_BYTES);
        let exchanges = (demand.exchanges * EXCHANGE_BYTES).min(total / 4);
        let connections = total.saturating_sub(2 * part + exchanges).max(LEAST_BYTES);
        Self { connections, tokens: part, answers: part }
    }
}

impl Demand {
    /// What all of it takes, in bytes.
    fn bytes(self) -> usize {
        // Newcomers leave an eighth of it to requests.
        let connections = self.connections * (OPEN_BYTES + SERVING_BYTES) / 7 * 8;
        connections + self.exchanges * EXCHANGE_BYTES + 2 * LARGEST_PART_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the default flags ask for.
    const USUAL: Demand = Demand { connections: 1000, exchanges: 264 };

    #[test]
    fn the_parts_leave_a_fifth_of_the_limit_free() {
        for mib in [16, 25, 32, 64, 512] {
            let limit = mib * MIB;
            let budget = Budget::new(Some(limit as u64), USUAL);
            let free = (limit / 5 * 4).saturating_sub(REST_BYTES);
            let exchanges = (USUAL.exchanges * EXCHANGE_BYTES).min(free / 4);
            let sum = exchanges + budget.connections + budget.tokens + budget.answers;
            assert!(sum <= free, "{mib} MiB: {budget:?}");
        }
    }

    #[test]
    fn the_default_flags_get_a_part_of_25_mib_that_serves_a_node() {
        let budget = Budget::new(Some(25 << 20), USUAL);
        assert!(budget.connections / OPEN_BYTES >= 800, "{budget:?}");
        assert!(budget.connections / (OPEN_BYTES + SERVING_BYTES) >= 230, "{budget:?}");
        let raised = Budget::new(Some(25 << 20), Demand { connections: 4000, exchanges: 264 });
        assert_eq!(raised, budget, "the limit counts, whatever the flags say");
    }

    #[test]
    fn without_a_limit_the_flags_count() {
        for demand in [USUAL, Demand { connections: 6000, exchanges: 5064 }] {
            let budget = Budget::new(None, demand);
            assert!(budget.connections >= demand.connections * (OPEN_BYTES + SERVING_BYTES), "{budget:?}");
        }
    }
}
