//! [`Backoff`]: delays after failures. [`Jitter`]: random variation of such delays.
//!
//! Both are plain values. Callers count failures, pass a random number and sleep. So tests choose both, and decisions
//! can be made without waiting.

use std::time::Duration;

/// Delays that double with each consecutive failure, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// Delays from `first` to `longest`, without jitter.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, jitter: Jitter(1.0, 1.0) }
    }

    /// The same delays with jitter.
    #[must_use]
    pub const fn with(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// The same delays with another maximum.
    #[must_use]
    pub const fn up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// The delay after this many consecutive failures. 0 counts as 1. `random` is between 0 and 1.
    pub fn wait(self, failures: u32, random: f64) -> Duration {
        self.wait_at_least(Duration::ZERO, failures, random)
    }

    /// Like [`wait`](Self::wait), but not less than a server demands. The demand is capped at the maximum.
    pub fn wait_at_least(self, demanded: Duration, failures: u32, random: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << (failures.max(1) - 1).min(16));
        self.jitter.of(doubled.max(demanded).min(self.longest), random)
    }
}

/// Multiplies a delay by a random factor between these two, so that callers do not all return at the same moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter(pub f64, pub f64);

impl Jitter {
    /// This delay with jitter. `random` is between 0 and 1.
    pub fn of(self, wait: Duration, random: f64) -> Duration {
        let Self(least, most) = self;
        let factor = least + (most - least) * random;
        Duration::try_from_secs_f64(wait.as_secs_f64() * factor).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff::new(SECOND, 10 * SECOND);
        let seconds = |backoff: Backoff| [0, 1, 2, 3, 4, 5, 40, u32::MAX].map(|n| backoff.wait(n, 0.5).as_secs());
        assert_eq!(seconds(backoff), [1, 1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(seconds(backoff.up_to(3 * SECOND)), [1, 1, 2, 3, 3, 3, 3, 3]);
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).wait(9, 0.0), Duration::MAX, "saturates");
    }

    #[test]
    fn a_server_lengthens_a_wait_up_to_the_longest() {
        let backoff = Backoff::new(SECOND, 10 * SECOND).with(Jitter(1.0, 1.5));
        let seconds = |demanded| [1, 3, 4].map(|n| backoff.wait_at_least(demanded * SECOND, n, 0.0).as_secs());
        assert_eq!([0, 5, 9999].map(seconds), [[1, 4, 8], [5, 5, 8], [10, 10, 10]]);
        assert_eq!(backoff.wait_at_least(9999 * SECOND, 1, 1.0), 15 * SECOND, "jitter comes last");
    }

    #[test]
    fn jitter_multiplies_by_a_factor_in_its_range() {
        let millis = |jitter: Jitter| [0.0, 0.5, 1.0].map(|random| jitter.of(SECOND, random).as_millis());
        assert_eq!(millis(Jitter(0.6, 1.0)), [600, 800, 1000]);
        assert_eq!(millis(Jitter(0.9, 1.1)), [900, 1000, 1100]);
    }
}
