//! Decides whether a token is fresh and when to fetch the next one. Pure functions of the entry and the time.

use std::time::Duration;

use crate::clock::BootTime;

/// The keeper begins to look for a new token when so little is left. The earliest that any library does is 300 s (Node's),
/// and that is also when the server begins to give a new one; looking half a minute earlier loses no moment of it.
pub(super) const LOOK: Duration = Duration::from_secs(330);

/// Looks are spread over this much, so that keys that began together do not look together.
pub(super) const SPREAD: Duration = Duration::from_secs(20);

/// Between two looks while the server still gives the same token.
pub(super) const SAME: Duration = Duration::from_secs(5);

/// An entry that nobody asked for in this time is let go.
pub(super) const UNUSED: Duration = Duration::from_secs(60 * 60);

/// Longest back-off with a valid token in hand.
const LONGEST: Duration = Duration::from_secs(10);

/// Longest use of one identity token: verifiers may take each only once, and Go's library believes that it lives an hour
/// from when it was given, with five minutes to spare.
pub(super) const IDENTITY: Duration = Duration::from_secs(60);

/// How fresh a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Good, for so many whole seconds.
    Fresh(u32),
    /// Good, but a new one is being looked for.
    Stale(u32),
    /// Over. Less than a whole second counts as over: 0 breaks clients.
    Expired,
}

impl Freshness {
    /// Whole seconds that are left; 0 only of what is over.
    pub(super) fn seconds(self) -> u32 {
        match self {
            Self::Fresh(seconds) | Self::Stale(seconds) => seconds,
            Self::Expired => 0,
        }
    }
}

/// Judges a token by its end.
pub(super) fn judge(expires: BootTime, now: BootTime) -> Freshness {
    // A token that is believed lives a day at most, so its seconds fit.
    match u32::try_from(expires.seconds_since(now)).unwrap_or(u32::MAX) {
        0 => Freshness::Expired,
        seconds if expires > now + LOOK => Freshness::Fresh(seconds),
        seconds => Freshness::Stale(seconds),
    }
}

/// When a token with this end begins to be [`Freshness::Expired`].
pub(super) fn over(expires: BootTime) -> BootTime {
    expires - (Duration::from_secs(1) - Duration::from_nanos(1))
}

/// When to look again after a look that gave a token. `jitter` is between 0 and 1.
pub(super) fn next_look(expires: BootTime, now: BootTime, jitter: f64) -> BootTime {
    (expires - LOOK + SPREAD.mul_f64(jitter)).max(now + SAME)
}

/// How long to leave the server alone after so many failures in a row, with a valid token in hand.
pub(super) fn back_off(failures: u32, jitter: f64) -> Duration {
    let ceiling = Duration::from_secs(1 << failures.saturating_sub(1).min(4)).min(LONGEST);
    ceiling.mul_f64(0.6 + 0.4 * jitter)
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
    fn a_token_grows_stale_and_expires() {
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
        assert_eq!(judge(expires, now + Duration::from_millis(9001)), Freshness::Expired, "a part of a second is none");
        assert_eq!(judge(now, expires), Freshness::Expired);
    }

    #[test]
    fn looks_begin_before_the_first_library_does_and_are_never_closer_than_five_seconds() {
        let (expires, now) = at(3599);
        assert_eq!(next_look(expires, now, 0.0), expires - LOOK);
        assert_eq!(next_look(expires, now, 1.0), expires - LOOK + SPREAD);
        let (expires, now) = at(280);
        assert_eq!(next_look(expires, now, 0.5), now + SAME);
    }

    #[test]
    fn back_off_doubles_up_to_ten_seconds() {
        let ceilings: Vec<u64> = (1..=6).map(|failures| back_off(failures, 1.0).as_secs()).collect();
        assert_eq!(ceilings, [1, 2, 4, 8, 10, 10]);
        assert_eq!(back_off(u32::MAX, 0.0), Duration::from_secs(6));
    }

    proptest! {
        /// What is promised is never more than there is, never 0, and falls as time goes by.
        #[test]
        fn no_promise_is_broken(left in 0u64..90_000_000, later in 0u64..90_000_000) {
            let now = BootTime::now();
            let expires = now + Duration::from_millis(left);
            let seconds = |freshness| match freshness {
                Freshness::Fresh(seconds) | Freshness::Stale(seconds) => Some(seconds),
                Freshness::Expired => None,
            };
            let (first, second) = (seconds(judge(expires, now)), seconds(judge(expires, now + Duration::from_millis(later))));
            prop_assert_eq!(first, (left >= 1000).then(|| u32::try_from(left / 1000).expect("small")));
            prop_assert!(second <= first);
            prop_assert_eq!(first.is_none(), over(expires) <= now);
        }

        /// The keeper looks while the token is still good if it can, and never in a busy loop.
        #[test]
        fn looks_are_in_time(left in 1u64..90_000, jitter in 0.0f64..=1.0) {
            let (expires, now) = at(left);
            let look = next_look(expires, now, jitter);
            prop_assert!(look >= now + SAME);
            prop_assert!(look <= expires - Duration::from_secs(left.min(310)) + SAME.max(Duration::from_secs(5)) || left < 310);
        }
    }
}
