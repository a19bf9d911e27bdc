//! [`Pace`]: limits the rate of a workload's requests to Google for non-default tokens.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
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
        let (now, interval) = (now.as_nanos(), nanos(INTERVAL));
        let earliest = now.saturating_sub(nanos(INTERVAL * BURST));
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
    fn an_unused_allowance_does_not_grow() {
        let pace = Pace::default();
        assert_eq!(pace.take(at(0)), Ok(()));
        assert_eq!((0..500).filter(|_| pace.take(at(10_000_000)).is_ok()).count(), BURST as usize);
    }
}
