//! [`Pace`]: limits the rate of a workload's requests to Google for non-default tokens. [`RenewalPace`]: that of a node's renewals.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use base::clock::BootTime;

/// Maximum exchanges of a workload at once.
pub(super) const BURST: u32 = 120;

/// Time after which a workload may have one more exchange. At this pace a workload takes 2 % of the 6,000 exchanges a
/// minute that Google allows a project, on each node.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// Limits the exchanges of one workload, which could otherwise use up its project's quota by inventing scopes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The allowance is used up to this time, in nanoseconds of [`BootTime`]. It lies at most a burst before the present.
    used_until: AtomicU64,
}

impl Pace {
    /// Takes one exchange, or returns the time until there is one.
    pub(super) fn take(&self, now: BootTime) -> Result<(), Duration> {
        self.take_of(BURST, INTERVAL, now)
    }

    /// The same for another burst and interval.
    fn take_of(&self, burst: u32, interval: Duration, now: BootTime) -> Result<(), Duration> {
        let (now, earliest) = (now.as_nanos(), now.as_nanos().saturating_sub(nanos(interval.saturating_mul(burst))));
        let interval = nanos(interval);
        let taken = self.used_until.fetch_update(Relaxed, Relaxed, |used| {
            let next = used.max(earliest) + interval;
            (next <= now).then_some(next)
        });
        match taken {
            Ok(_) => Ok(()),
            Err(used) => Err(Duration::from_nanos((used.max(earliest) + interval).saturating_sub(now))),
        }
    }
}

/// How much faster than its tokens come due on average a node renews them. After an outage it catches up by the rest, and a fleet
/// whose renewals take five sixths of Google's quota stays below it.
const CATCHING_UP: f64 = 1.2;

/// Mean time from when a token is issued until it is due: half of an hour.
const MEAN_AGE: Duration = Duration::from_secs(1800);

/// Limits the rate at which a node renews tokens that are valid: not faster than they come due on average, and a little more.
///
/// Nodes have no common clock, and after an outage or a start of all of them many tokens are due. If each node then takes as much time
/// for its own as the tokens' life gives it, the fleet's rate is at no time higher than its mean, and a little more. The oldest is
/// first, and the times are such that none ends before its turn when Google was away for 20 minutes.
#[derive(Debug, Default)]
pub(super) struct RenewalPace {
    pace: Pace,
    /// Number of tokens that are renewed.
    tokens: AtomicUsize,
}

impl RenewalPace {
    /// Sets the number of tokens that are renewed.
    pub(super) fn share(&self, tokens: usize) {
        self.tokens.store(tokens, Relaxed);
    }

    /// Time between renewals.
    pub(super) fn interval(&self) -> Duration {
        let tokens = u32::try_from(self.tokens.load(Relaxed)).unwrap_or(u32::MAX).max(1);
        MEAN_AGE.div_f64(CATCHING_UP * f64::from(tokens))
    }

    /// Gives back what was taken for a renewal that failed.
    pub(super) fn give_back(&self) {
        self.pace.used_until.store(0, Relaxed);
    }

    /// Whether a token may be renewed now.
    pub(super) fn take(&self, now: BootTime) -> bool {
        self.pace.take_of(1, self.interval(), now).is_ok()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(nanos(Duration::from_secs(3600)) + millis * 1_000_000)
    }

    #[test]
    fn a_burst_is_free_and_then_one_comes_each_interval() {
        let pace = Pace::default();
        assert_eq!((0..500).filter(|_| pace.take(at(0)).is_ok()).count(), BURST as usize);
        assert_eq!(pace.take(at(0)), Err(INTERVAL));
        assert_eq!(pace.take(at(200)), Err(Duration::from_millis(300)));
        assert_eq!((pace.take(at(500)), pace.take(at(500))), (Ok(()), Err(INTERVAL)));
        assert_eq!((0..500).filter(|_| pace.take(at(10_500)).is_ok()).count(), 20);
    }

    #[test]
    fn a_nodes_renewals_take_the_time_that_its_tokens_give_it() {
        let renewals = RenewalPace::default();
        renewals.share(30);
        assert_eq!(renewals.interval(), Duration::from_secs(50));
        // All of them are due, after an outage: the last has its turn in time.
        let taken: Vec<_> = (0..1460).filter(|second| renewals.take(at(second * 1000))).collect();
        assert_eq!((taken[0], taken[1], taken[29]), (0, 50, 1450));
        assert!(!renewals.take(at(1_460_000)));
        renewals.give_back();
        assert!(renewals.take(at(1_460_000)), "the last one failed");
        renewals.share(110);
        assert!(renewals.interval() < Duration::from_secs(14));
    }

    #[test]
    fn an_unused_allowance_does_not_grow() {
        let pace = Pace::default();
        assert_eq!(pace.take(at(0)), Ok(()));
        assert_eq!((0..500).filter(|_| pace.take(at(10_000_000)).is_ok()).count(), BURST as usize);
    }
}
