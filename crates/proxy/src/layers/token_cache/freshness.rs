//! Decides whether a token is fresh and when to fetch the next one. Pure functions of the entry and the time.

use std::time::Duration;

use base::backoff::{Backoff, Jitter};
use base::clock::BootTime;

/// The keeper begins to refresh a token this long before it expires. The earliest library starts at 300 s (Node's),
/// which is also when the server begins to return a new token. Starting half a minute earlier notices that immediately.
pub(super) const REFRESH_BEFORE_EXPIRY: Duration = Duration::from_secs(330);

/// Jitter of the first refresh, so that keys that were fetched together are not refreshed together.
pub(super) const REFRESH_SPREAD: Duration = Duration::from_secs(20);

/// Interval between fetches while the server still returns the same token.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time without requests after which an entry is removed.
pub(super) const MAX_UNUSED: Duration = Duration::from_secs(60 * 60);

/// Delay before the next fetch after failures.
pub(super) const BACK_OFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(10)).with(Jitter(0.6, 1.0));

/// Time for which an identity token is served. Verifiers may accept each token only once, and Go's library assumes that
/// it is valid for an hour after it was received, less five minutes. A workload's token is served until it expires
/// while its source fails.
pub(super) const MAX_IDENTITY_AGE: Duration = Duration::from_secs(60);

/// The freshness of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Valid for this many whole seconds.
    Fresh(u32),
    /// Valid for this many whole seconds, and due for a refresh.
    Stale(u32),
    /// Expired. Less than a whole second counts as expired, because an `expires_in` of 0 breaks clients.
    Expired,
}

impl Freshness {
    /// Whole seconds until expiry, or 0 if expired.
    pub(super) fn seconds(self) -> u32 {
        match self {
            Self::Fresh(seconds) | Self::Stale(seconds) => seconds,
            Self::Expired => 0,
        }
    }
}

/// Determines the freshness of a token from its expiry.
pub(super) fn judge(expires: BootTime, now: BootTime) -> Freshness {
    // Parsing rejects lifetimes of more than a day, so the seconds fit.
    match u32::try_from(expires.seconds_since(now)).unwrap_or(u32::MAX) {
        0 => Freshness::Expired,
        seconds if expires > now + REFRESH_BEFORE_EXPIRY => Freshness::Fresh(seconds),
        seconds => Freshness::Stale(seconds),
    }
}

/// Time when a token with this expiry becomes [`Freshness::Expired`].
pub(super) fn expired_at(expires: BootTime) -> BootTime {
    expires - (Duration::from_secs(1) - Duration::from_nanos(1))
}

/// Time of the next fetch after a fetch that returned a token. `jitter` is between 0 and 1.
pub(super) fn next_refresh(expires: BootTime, now: BootTime, jitter: f64) -> BootTime {
    (expires - REFRESH_BEFORE_EXPIRY + REFRESH_SPREAD.mul_f64(jitter)).max(now + RECHECK_INTERVAL)
}

/// Time of the next fetch of a workload's token that was issued at `since`: at 75 % of its life, plus or minus 5 %. Its
/// source issues a new one at any time, and has servers that may be unreachable for minutes. `jitter` is between 0 and
/// 1.
pub(super) fn next_renewal(since: BootTime, expires: BootTime, now: BootTime, jitter: f64) -> BootTime {
    (since + expires.since(since).mul_f64(0.7 + 0.1 * jitter)).max(now + RECHECK_INTERVAL)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> (BootTime, BootTime) {
        let now = BootTime::now();
        (now + Duration::from_secs(seconds), now)
    }

    #[test]
    fn a_token_becomes_stale_and_expires() {
        for (left, freshness) in [
            (3599, Freshness::Fresh(3599)),
            (331, Freshness::Fresh(331)),
            (330, Freshness::Stale(330)),
            (1, Freshness::Stale(1)),
            (0, Freshness::Expired),
        ] {
            let (expires, now) = at(left);
            assert_eq!(judge(expires, now), freshness, "{left}");
        }
        let (expires, now) = at(10);
        assert_eq!(
            judge(expires, now + Duration::from_millis(9001)),
            Freshness::Expired,
            "less than a second is expired"
        );
        assert_eq!(judge(now, expires), Freshness::Expired);
    }

    #[test]
    fn refreshes_begin_before_any_librarys_and_are_at_least_five_seconds_apart() {
        let (expires, now) = at(3599);
        assert_eq!(next_refresh(expires, now, 0.0), expires - REFRESH_BEFORE_EXPIRY);
        assert_eq!(next_refresh(expires, now, 1.0), expires - REFRESH_BEFORE_EXPIRY + REFRESH_SPREAD);
        let (expires, now) = at(280);
        assert_eq!(next_refresh(expires, now, 0.5), now + RECHECK_INTERVAL);
    }

    #[test]
    fn a_workloads_token_is_renewed_at_three_quarters_of_its_life() {
        let (expires, since) = at(3600);
        let seconds = |now, jitter| next_renewal(since, expires, now, jitter).seconds_since(since);
        assert_eq!([0.0, 0.5, 1.0].map(|jitter| seconds(since, jitter)), [2520, 2700, 2880]);
        let late = since + Duration::from_secs(3000);
        assert_eq!(seconds(late, 0.5), 3005, "while the source returns the same");
    }

    proptest! {
        /// The remaining seconds are never more than the real lifetime, never 0, and never increase.
        #[test]
        fn the_remaining_seconds_are_correct(left in 0u64..90_000_000, later in 0u64..90_000_000) {
            let now = BootTime::now();
            let expires = now + Duration::from_millis(left);
            let seconds = |freshness| match freshness {
                Freshness::Fresh(seconds) | Freshness::Stale(seconds) => Some(seconds),
                Freshness::Expired => None,
            };
            let (first, second) = (seconds(judge(expires, now)), seconds(judge(expires, now + Duration::from_millis(later))));
            prop_assert_eq!(first, (left >= 1000).then(|| u32::try_from(left / 1000).expect("small")));
            prop_assert!(second <= first);
            prop_assert_eq!(first.is_none(), expired_at(expires) <= now);
        }

        /// The keeper refreshes before expiry where that is possible, and never in a busy loop.
        #[test]
        fn refreshes_are_in_time(left in 1u64..90_000, jitter in 0.0f64..=1.0) {
            let (expires, now) = at(left);
            let look = next_refresh(expires, now, jitter);
            prop_assert!(look >= now + RECHECK_INTERVAL);
            let latest = expires - Duration::from_secs(left.min(310)) + RECHECK_INTERVAL.max(Duration::from_secs(5));
            prop_assert!(look <= latest || left < 310);
        }
    }
}
