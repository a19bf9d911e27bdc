//! [`Budget`]: divides the memory limit.

const MIB: usize = 1024 * 1024;

/// Charge of an open connection, in bytes: its task and its entry among the connections (3 KiB), the kernel's socket
/// (3 KiB) and a full receive buffer (4 KiB).
pub const OPEN_BYTES: usize = 10 * 1024;

/// Charge of hyper's state and of a response that the client reads, in bytes.
pub const SERVING_BYTES: usize = 10 * 1024;

/// Charge of a full send buffer and of hyper's data behind it, in bytes, while a client does not read.
pub const UNREAD_BYTES: usize = 14 * 1024;

/// Memory of the idle process, in bytes: binary, runtime, metrics and policy.
const IDLE_PROCESS_BYTES: usize = 11 * MIB / 2;

/// Maximum number of large pieces of responses that are on their way to clients at once.
pub const MAX_LARGE_WRITES: usize = 4;

/// Kernel memory for such a piece, in bytes.
const LARGE_WRITE_BYTES: usize = 32 * 1024;

/// Memory of an upstream request in flight, in bytes: a connection (7 KiB) with a full receive buffer (28 KiB). The buffer fills
/// only while a client does not read a large response. With 25 MiB not all are provided for: if all fill, the level of memory
/// pressure rises, and connections without progress are closed.
const EXCHANGE_BYTES: usize = 35 * 1024;

/// Maximum for tokens, and for large responses, in bytes. A tree of up to half this size can be redacted and watched: custom
/// metadata of a machine is limited to 512 KiB, and a tree also contains its other metadata.
pub const MAX_PART_BYTES: usize = 3 * MIB / 2;

/// Maximum for tokens if each account has its own, in bytes: 110 accounts of a node with four tokens each, of which a
/// long one takes 5 KiB, and a reserve.
const MAX_TOKENS_OF_ACCOUNTS_BYTES: usize = 5 * MIB / 2;

/// Minimum of each part, in bytes, regardless of the limit.
const MIN_PART_BYTES: usize = MIB / 2;

/// The parts of the memory limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Client connections, including kernel memory.
    pub connections: usize,
    /// Cached tokens.
    pub tokens: usize,
    /// Large responses held in memory.
    pub answers: usize,
}

/// Maximum concurrency, from the flags.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// `--max-connections`.
    pub connections: usize,
    /// Sum of `--max-in-flight` and `--max-hanging`, because each may be an upstream request.
    pub exchanges: usize,
    /// Whether each account of a pod has its own tokens.
    pub has_accounts: bool,
}

impl Budget {
    /// Divides a memory limit in bytes. A fifth of it stays free. Without a limit, connections and requests get as much
    /// as the flags allow.
    pub fn new(limit: Option<u64>, demand: Demand) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let total = (limit / 5 * 4).saturating_sub(IDLE_PROCESS_BYTES).min(demand.bytes());
        // With a limit of 25 MiB, tokens and responses get a tenth each; with a larger limit they get no more than
        // that. Tokens of accounts get an eighth, but no more than with a limit of 32 MiB.
        let answers = (total / 10).clamp(MIN_PART_BYTES, MAX_PART_BYTES);
        let tokens = if demand.has_accounts { total / 8 } else { total / 10 };
        let tokens = tokens.clamp(MIN_PART_BYTES, demand.token_bytes());
        let exchanges = (demand.exchanges * EXCHANGE_BYTES).min(total / 4);
        let large_writes = MAX_LARGE_WRITES * LARGE_WRITE_BYTES;
        let connections = total.saturating_sub(answers + tokens + exchanges + large_writes).max(MIN_PART_BYTES);
        Self { connections, tokens, answers }
    }
}

impl Demand {
    /// Sum of all parts, in bytes.
    fn bytes(self) -> usize {
        // New connections leave an eighth of this to requests.
        let connections = self.connections * (OPEN_BYTES + SERVING_BYTES + UNREAD_BYTES) / 7 * 8;
        connections + self.exchanges * EXCHANGE_BYTES + MAX_PART_BYTES + self.token_bytes()
    }

    /// Maximum for tokens, in bytes.
    fn token_bytes(self) -> usize {
        if self.has_accounts { MAX_TOKENS_OF_ACCOUNTS_BYTES } else { MAX_PART_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The demand of the default flags.
    const DEFAULT: Demand = Demand { connections: 1000, exchanges: 264, has_accounts: false };

    #[test]
    fn the_parts_leave_a_fifth_of_the_limit_free() {
        let sizes = [16, 25, 32, 64, 512];
        for (mib, has_accounts) in sizes.into_iter().flat_map(|mib| [(mib, false), (mib, true)]) {
            let limit = mib * MIB;
            let budget = Budget::new(Some(limit as u64), Demand { has_accounts, ..DEFAULT });
            let free = (limit / 5 * 4).saturating_sub(IDLE_PROCESS_BYTES);
            let exchanges = (DEFAULT.exchanges * EXCHANGE_BYTES).min(free / 4);
            let sum = exchanges + budget.connections + budget.tokens + budget.answers;
            assert!(sum <= free, "{mib} MiB: {budget:?}");
        }
    }

    #[test]
    fn with_25_mib_the_default_flags_get_enough_connections_for_a_node() {
        let budget = Budget::new(Some(25 << 20), DEFAULT);
        assert!(budget.connections / OPEN_BYTES >= 800, "{budget:?}");
        assert!(budget.connections / (OPEN_BYTES + SERVING_BYTES + UNREAD_BYTES) >= 230, "{budget:?}");
        let raised = Budget::new(Some(25 << 20), Demand { connections: 4000, exchanges: 264, has_accounts: false });
        assert_eq!(raised, budget, "the memory limit takes precedence over the flags");
    }

    #[test]
    fn with_32_mib_tokens_of_accounts_get_more_and_connections_lose_a_tenth_at_most() {
        let [without, with] =
            [false, true].map(|has_accounts| Budget::new(Some(32 << 20), Demand { has_accounts, ..DEFAULT }));
        assert_eq!((without.tokens, with.tokens), (MAX_PART_BYTES, MAX_TOKENS_OF_ACCOUNTS_BYTES));
        assert!(with.connections >= without.connections / 10 * 9 && with.answers == without.answers, "{with:?}");
    }

    #[test]
    fn without_a_memory_limit_the_flags_decide() {
        for demand in [DEFAULT, Demand { connections: 6000, exchanges: 5064, has_accounts: true }] {
            let budget = Budget::new(None, demand);
            assert!(
                budget.connections >= demand.connections * (OPEN_BYTES + SERVING_BYTES + UNREAD_BYTES),
                "{budget:?}"
            );
        }
    }
}
