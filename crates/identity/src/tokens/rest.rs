//! [`Rest`]: the time for which a step rests after a failure.

use std::time::Duration;

use base::backoff::{Backoff, Jitter};

/// Time for which another refusal by the Security Token Service or the API server is the answer. Somebody must change something.
const FIXED: Duration = Duration::from_secs(10);

/// Initial and maximum time for which a refusal by IAM is the answer, and one that Google accepts no token of the cluster. Bindings
/// take effect within a minute or two.
const REFUSAL: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));

/// Initial and maximum pause after a refusal because of too many requests. Never shorter than requested.
const THROTTLED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).with(Jitter(1.0, 1.5));

/// Initial and maximum pause after failures while there is a valid token.
const BACK_OFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10)).with(Jitter(0.6, 1.0));

/// The same as for the metadata server: recovery is noticed within a second.
const BRIEF: (Duration, Jitter) = (Duration::from_millis(600), Jitter(1.0, 1.5));

/// The time for which a step rests after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Not at all: the step before rests.
    None,
    /// Not at all, or with a valid token for longer each time: requests to its server are held back at present.
    Unasked,
    /// For less than a second, or with a valid token for longer each time.
    Brief,
    /// Ten seconds.
    Fixed,
    /// Longer each time.
    Doubling,
    /// Longer each time, and at least this long.
    Throttled(Duration),
    /// At least this long, which a server demands, and with a valid token longer each time.
    Demanded(Duration),
    /// This long: until the server's quota or the workload's pace lets the next request through.
    Held(Duration),
}

impl Rest {
    /// Whether it makes later rests longer. What was not sent does not: it comes as often as pods ask, and would make the first
    /// refusal of this server last as long as its tenth. With a valid token it backs off by their number.
    pub(super) fn is_counted(self, has_token: bool) -> bool {
        match self {
            Self::None | Self::Held(_) => false,
            Self::Unasked => has_token,
            Self::Brief | Self::Fixed | Self::Doubling | Self::Throttled(_) | Self::Demanded(_) => true,
        }
    }

    /// The time after this number of consecutive failures, at least 1 if this one is counted. `random` is between 0 and 1.
    pub(super) fn time(self, failures: u32, has_token: bool, random: f64) -> Duration {
        match self {
            Self::Brief | Self::Unasked if has_token => BACK_OFF.wait(failures, random),
            Self::None | Self::Unasked => Duration::ZERO,
            Self::Brief => BRIEF.1.of(BRIEF.0, random),
            Self::Fixed => FIXED,
            Self::Doubling => REFUSAL.wait(failures, random),
            Self::Throttled(least) => THROTTLED.wait_at_least(least, failures, random),
            Self::Demanded(least) => THROTTLED.wait_at_least(least, if has_token { failures } else { 1 }, random),
            Self::Held(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_rest_as_long_as_their_failure_says() {
        let millis = |rest: Rest, has_token, random| {
            [1, 2, 3, 4, 5, 9].map(|failures| rest.time(failures, has_token, random).as_millis())
        };
        assert_eq!(millis(Rest::None, true, 1.0), [0; 6]);
        assert_eq!(millis(Rest::Unasked, false, 1.0), [0; 6]);
        assert_eq!(millis(Rest::Unasked, true, 1.0), [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!(millis(Rest::Brief, false, 0.0), [600; 6]);
        assert_eq!(millis(Rest::Brief, false, 1.0), [900; 6]);
        assert_eq!(millis(Rest::Brief, true, 1.0), [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!(millis(Rest::Fixed, true, 1.0), [10_000; 6]);
        assert_eq!(millis(Rest::Doubling, false, 0.0), [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]);
        let throttled = |least| Rest::Throttled(Duration::from_secs(least));
        assert_eq!(millis(throttled(0), false, 0.0), [1_000, 2_000, 4_000, 8_000, 16_000, 60_000]);
        assert_eq!(millis(throttled(7), false, 0.0), [7_000, 7_000, 7_000, 8_000, 16_000, 60_000]);
        assert_eq!(millis(throttled(9999), true, 1.0), [90_000; 6]);
        let demanded = |least| Rest::Demanded(Duration::from_secs(least));
        assert_eq!(millis(demanded(0), false, 0.0), [1_000; 6]);
        assert_eq!(millis(demanded(7), false, 1.0), [10_500; 6]);
        assert_eq!(millis(demanded(7), true, 0.0), [7_000, 7_000, 7_000, 8_000, 16_000, 60_000]);
        assert_eq!(millis(Rest::Held(Duration::from_secs(7)), false, 1.0), [7_000; 6]);
    }
}
