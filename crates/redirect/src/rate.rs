//! [`Rate`]: the bound on new connections.

use std::num::NonZeroU32;

/// Maximum rate at which one source address may open connections, after a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(NonZeroU32);

impl Rate {
    /// Far above the needs of honest pods: a pod that opens a connection for each token opens a few hundred at once in a
    /// herd of retries, and then waits. A flood opens tens of thousands per second.
    pub const DEFAULT: Self = Self(NonZeroU32::new(500).expect("not 0"));

    /// The largest rate, in connections per second. The kernel's `hashlimit` allows bursts of up to a million packets.
    pub const MAX: u32 = 100_000;

    /// Size of a burst, in seconds at this rate.
    const BURST: u32 = 10;

    /// A rate in connections per second. `None` if it is 0 or more than [`MAX`](Self::MAX).
    pub fn new(per_second: u32) -> Option<Self> {
        NonZeroU32::new(per_second).filter(|rate| rate.get() <= Self::MAX).map(Self)
    }

    pub fn per_second(self) -> u32 {
        self.0.get()
    }

    /// Maximum number of connections at once.
    pub fn burst(self) -> u32 {
        self.per_second() * Self::BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_burst_is_larger_than_the_kernel_allows() {
        assert_eq!(Rate::new(Rate::MAX).map(Rate::burst), Some(1_000_000));
        assert_eq!((Rate::new(Rate::MAX + 1), Rate::new(0)), (None, None));
        assert_eq!(Rate::DEFAULT.burst(), 5_000);
    }
}
