//! [`Rate`]: the bound on new connections.

use std::num::NonZeroU32;

/// How many connections one source address may open, in connections per second, after a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(NonZeroU32);

impl Rate {
    /// Far above what honest pods need: a pod that opens a connection for each token, in a herd of retries, opens some hundred
    /// at once and then waits. A flood opens tens of thousands a second.
    pub const DEFAULT: Self = Self(NonZeroU32::new(500).expect("not 0"));

    /// The largest rate, in connections per second. The kernel's `hashlimit` allows bursts of up to a million packets.
    pub const MAX: u32 = 100_000;

    /// Seconds at this rate that may come at once.
    const BURST: u32 = 10;

    /// A rate in connections per second. `None` if it is 0 or more than [`MAX`](Self::MAX).
    pub fn new(per_second: u32) -> Option<Self> {
        NonZeroU32::new(per_second).filter(|rate| rate.get() <= Self::MAX).map(Self)
    }

    /// Connections per second.
    pub fn per_second(self) -> u32 {
        self.0.get()
    }

    /// Connections that may come at once.
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
