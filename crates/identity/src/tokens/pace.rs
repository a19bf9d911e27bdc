//! [`Pace`]: limits the rate of a workload's requests to Google for non-default tokens. [`RenewalPace`]: that of a node's renewals.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

use base::backoff::{Backoff, Jitter};
use base::clock::BootTime;
use proxy::tokens::NoToken;

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

/// Pauses after renewals that a server failed. The longest is the interval between renewals: a server that is back is asked as often
/// as before, by each node at a time of its own, not by all of them at once.
const RETRY: Backoff = Backoff::new(Duration::from_millis(600), MEAN_AGE).with(Jitter(1.0, 1.5));

/// The longest pause, as a part of the time until the token ends.
const PART_OF_LIFE: u32 = 4;

/// Time before its end from which a token is renewed for a pod whether or not it has a turn: client libraries want one that lives
/// longer.
pub(super) const ENDS_SOON: Duration = Duration::from_secs(300);

/// Limits the rate at which a node renews tokens that are valid: not faster than they come due on average, and a little more.
///
/// Nodes have no common clock, and after an outage or a start of all of them many tokens are due. If each node then takes as much time
/// for its own as the tokens' life gives it, the fleet's rate is at no time higher than its mean, and a little more. That includes
/// the first minute after an outage, so a renewal that failed uses up its turn. The one that ends first is first, and the times are
/// such that none ends before its turn when Google was away for 20 minutes.
#[derive(Debug, Default)]
pub(super) struct RenewalPace {
    pace: Pace,
    /// Number of tokens that are renewed.
    tokens: AtomicUsize,
    /// Renewals in a row that a server failed.
    failures: AtomicU32,
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

    /// Takes a turn, if there is one now.
    pub(super) fn take(&self, now: BootTime) -> bool {
        self.pace.take_of(1, self.interval(), now).is_ok()
    }

    /// Takes the next turn before its time.
    pub(super) fn take_next(&self, now: BootTime) {
        self.pace.used_until.fetch_max(now.as_nanos(), Relaxed);
    }

    /// Gives no turn for this time.
    pub(super) fn rest(&self, time: Duration, now: BootTime) {
        self.pace.used_until.fetch_max((now + time - self.interval()).as_nanos(), Relaxed);
    }

    /// Records what came of the renewal of a token that ends at `expires`, for which a turn was taken.
    pub(super) fn ended(&self, failure: Option<&NoToken>, expires: BootTime, now: BootTime, random: f64) {
        match failure {
            None => self.failures.store(0, Relaxed),
            // That is one workload's, and takes nothing from the others.
            Some(NoToken::Refused(refused)) if refused.status.is_client_error() => {
                let turn = u64::try_from(self.interval().as_nanos()).unwrap_or(u64::MAX);
                let given_back = |used: u64| Some(used.saturating_sub(turn));
                let _ = self.pace.used_until.fetch_update(Relaxed, Relaxed, given_back);
            }
            Some(NoToken::Refused(_) | NoToken::Failed(_) | NoToken::Overloaded(_)) => {
                let failures = self.failures.load(Relaxed).saturating_add(1);
                self.failures.store(failures, Relaxed);
                let longest = self.interval().min(expires.since(now).max(ENDS_SOON) / PART_OF_LIFE);
                let next = now + RETRY.up_to(longest).wait(failures, random);
                self.pace.used_until.store((next - self.interval()).as_nanos(), Relaxed);
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::super::halt::refused;
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
        renewals.take_next(at(1_470_000));
        assert!(!renewals.take(at(1_510_000)) && renewals.take(at(1_520_000)), "one came before its turn");
        renewals.rest(Duration::from_secs(120), at(1_520_000));
        assert!(!renewals.take(at(1_639_000)) && renewals.take(at(1_640_000)));
        renewals.share(110);
        assert!(renewals.interval() < Duration::from_secs(14));
    }

    #[test]
    fn what_one_workload_is_refused_takes_no_turn_and_what_a_server_fails_takes_more_of_one_each_time() {
        let renewals = RenewalPace::default();
        renewals.share(30);
        let refused = |status| refused(StatusCode::from_u16(status).expect("a status"), "no");
        let ended = |why: NoToken, at: BootTime| renewals.ended(Some(&why), at + Duration::from_secs(900), at, 0.0);
        for _ in 0..100 {
            assert!(renewals.take(at(0)));
            ended(refused(403), at(0));
        }
        let mut waited = 0;
        for pause in [600, 1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 50_000, 50_000] {
            assert!(renewals.take(at(waited)));
            ended(refused(503), at(waited));
            assert!(!renewals.take(at(waited + pause - 1)), "{pause}");
            waited += pause;
        }
        assert!(renewals.take(at(waited)));
        renewals.ended(None, at(waited), at(waited), 0.0);
        assert!(renewals.take(at(waited + 50_000)));
        ended(refused(503), at(waited + 50_000));
        assert!(renewals.take(at(waited + 50_600)), "it worked meanwhile");

        // With few tokens the interval is long, and what is left of a token's life counts.
        renewals.share(1);
        for (left, pause) in [(1200, 300), (600, 150), (300, 75), (20, 75)] {
            let now = at(10_000_000 + left);
            for _ in 0..20 {
                let why = refused(503);
                renewals.ended(Some(&why), now + Duration::from_secs(left), now, 0.0);
            }
            let turn = now + Duration::from_secs(pause);
            assert!(!renewals.take(turn - Duration::from_millis(1)) && renewals.take(turn), "{left}");
        }
    }

    #[test]
    fn after_an_outage_a_fleet_comes_back_no_faster_than_it_renews() {
        const NODES: u64 = 1000;
        let mut seconds = [0_u64; 120];
        for _ in 0..NODES {
            let renewals = RenewalPace::default();
            renewals.share(30);
            for second in 0..1200 + seconds.len() {
                let now = at(second as u64 * 1000);
                if renewals.take(now) {
                    match second.checked_sub(1200) {
                        None => {
                            let why = refused(StatusCode::SERVICE_UNAVAILABLE, "it is away");
                            renewals.ended(Some(&why), now + Duration::from_secs(900), now, fastrand::f64());
                        }
                        Some(second) => seconds[second] += 1,
                    }
                }
            }
        }
        // Each 50 s one of each node.
        assert!(seconds[..60].iter().sum::<u64>() <= NODES * 60 / 50, "{seconds:?}");
        assert!(seconds[..10].iter().sum::<u64>() <= NODES / 5 * 6 / 5, "{seconds:?}");
        assert!(seconds.iter().sum::<u64>() >= NODES, "{seconds:?}");
    }

    #[test]
    fn an_unused_allowance_does_not_grow() {
        let pace = Pace::default();
        assert_eq!(pace.take(at(0)), Ok(()));
        assert_eq!((0..500).filter(|_| pace.take(at(10_000_000)).is_ok()).count(), BURST as usize);
    }
}
