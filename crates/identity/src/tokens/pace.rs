//! [`Pace`]: limits the rate of a workload's requests to Google for non-default tokens. [`RenewalPace`]: that of a node's renewals.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

use base::backoff::{Backoff, Jitter};
use base::clock::{BootTime, nanos};
use proxy::failure::{ExchangeFailure, TokenFailure, Withheld};
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

/// A node renews its tokens at most this many times as fast as they come due on average. That is enough to catch up after an
/// outage, and a fleet whose renewals take five sixths of Google's quota stays below it.
const CATCHING_UP: f64 = 1.2;

/// Mean time from when a token is issued until it is due: half of an hour.
const MEAN_AGE: Duration = Duration::from_secs(1800);

/// Pauses after renewals that failed at a server. The longest is the interval between renewals: a server that is back is asked as often
/// as before, by each node at a time of its own, not by all of them at once.
const RETRY: Backoff = Backoff::new(Duration::from_millis(600), MEAN_AGE).with(Jitter(1.0, 1.5));

/// Minimum time between rests: processes that take over and end again and again do not keep a node from renewing.
const BETWEEN_RESTS: Duration = Duration::from_secs(900);

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
    /// Renewals in a row that failed at a server.
    failures: AtomicU32,
    /// The end of the last rest, in nanoseconds of [`BootTime`].
    rests_until: AtomicU64,
}

/// A turn of the pace, for a token that ends at `expires`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RenewalTurn {
    expires: BootTime,
    /// How much of the allowance it took.
    took: Duration,
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

    /// Takes a turn for a token that ends at `expires`, if there is one now.
    pub(super) fn take(&self, expires: BootTime, now: BootTime) -> Option<RenewalTurn> {
        let took = self.interval();
        let is_resting = now.as_nanos() < self.rests_until.load(Relaxed);
        (!is_resting && self.pace.take_of(1, took, now).is_ok()).then_some(RenewalTurn { expires, took })
    }

    /// Takes the next turn before it is due.
    pub(super) fn take_next(&self, expires: BootTime, now: BootTime) -> RenewalTurn {
        let before = self.pace.used_until.fetch_max(now.as_nanos(), Relaxed);
        let took = Duration::from_nanos(now.as_nanos().saturating_sub(before)).min(self.interval());
        RenewalTurn { expires, took }
    }

    /// Gives no turn for this time, unless the last rest ended less than [`BETWEEN_RESTS`] ago.
    pub(super) fn rest(&self, time: Duration, now: BootTime) {
        let until = (now + time).as_nanos();
        let _ = self.rests_until.fetch_update(Relaxed, Relaxed, |last| {
            let is_first = last == 0 || now.as_nanos() >= last.saturating_add(nanos(BETWEEN_RESTS));
            is_first.then_some(until)
        });
    }

    /// Records the outcome of a turn in which this many workloads were tried. Returns whether a server failed for all.
    pub(super) fn ended(
        &self,
        turn: RenewalTurn,
        failure: Option<&NoToken>,
        tried: usize,
        now: BootTime,
        random: f64,
    ) -> bool {
        let has_failed = failure.is_some_and(|why| affects_all(why, tried));
        match failure {
            None => self.failures.store(0, Relaxed),
            // Only this workload was refused, so the next one gets the turn.
            Some(_) if !has_failed => {
                let give_back = |used: u64| Some(used.saturating_sub(nanos(turn.took)));
                let _ = self.pace.used_until.fetch_update(Relaxed, Relaxed, give_back);
            }
            Some(_) => {
                let failures = self.failures.load(Relaxed).saturating_add(1);
                self.failures.store(failures, Relaxed);
                let longest = self.interval().min(turn.expires.since(now).max(ENDS_SOON) / PART_OF_LIFE);
                let next = now + RETRY.up_to(longest).wait(failures, random);
                self.pace.used_until.store((next - self.interval()).as_nanos(), Relaxed);
            }
        }
        has_failed
    }
}

/// Whether a server fails, not only for one workload. 429 for the quota of a project is about one, and so is a refusal of the API server,
/// unless it refuses all of several.
fn affects_all(why: &NoToken, tried: usize) -> bool {
    match why {
        NoToken::Refused(refused) => why.is_outage() && refused.withheld != Some(Withheld::Project),
        NoToken::Failed(failure) => {
            tried > 1 || !matches!(**failure, TokenFailure::Exchange(ExchangeFailure::KubernetesRefused(_), _))
        }
        NoToken::Overloaded(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::super::halt::{Halt, no_token, refused};
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
        let has_turn = |millis| renewals.take(at(millis + 900_000), at(millis)).is_some();
        let taken: Vec<_> = (0..1460).filter(|second| has_turn(second * 1000)).collect();
        assert_eq!((taken[0], taken[1], taken[29]), (0, 50, 1450));
        assert!(!has_turn(1_460_000));
        renewals.take_next(at(1_770_000), at(1_470_000));
        assert!(!has_turn(1_510_000) && has_turn(1_520_000), "one came before its turn");
        renewals.share(110);
        assert!(renewals.interval() < Duration::from_secs(14));
    }

    #[test]
    fn rests_are_not_too_frequent() {
        let renewals = RenewalPace::default();
        renewals.share(30);
        let has_turn = |millis| renewals.take(at(millis + 900_000), at(millis)).is_some();
        renewals.rest(Duration::from_secs(120), at(0));
        assert!(!has_turn(119_000) && has_turn(120_000));
        for seconds in [10, 119, 121, 1_000] {
            renewals.rest(Duration::from_secs(120), at(seconds * 1000));
        }
        assert!(has_turn(1_001_000));
        renewals.rest(Duration::from_secs(120), at(1_020_000));
        // A failure or refusal meanwhile does not end the rest.
        let turn = renewals.take_next(at(1_030_000), at(1_021_000));
        renewals.ended(turn, Some(&refused(StatusCode::FORBIDDEN, "no")), 1, at(1_021_000), 0.0);
        renewals.ended(turn, Some(&refused(StatusCode::SERVICE_UNAVAILABLE, "no")), 1, at(1_021_000), 0.0);
        assert!(!has_turn(1_139_000) && has_turn(1_140_000));
    }

    #[test]
    fn a_turn_that_was_taken_early_gives_back_no_more_than_it_took() {
        let renewals = RenewalPace::default();
        renewals.share(30);
        assert!(renewals.take(at(900_000), at(0)).is_some());
        for second in [10, 20, 30, 40] {
            let turn = renewals.take_next(at(300_000), at(second * 1000));
            renewals.ended(turn, Some(&refused(StatusCode::FORBIDDEN, "no")), 1, at(second * 1000), 0.0);
            assert!(renewals.take(at(900_000), at(second * 1000)).is_none(), "{second}");
        }
        assert!(renewals.take(at(900_000), at(50_000)).is_some());
    }

    #[test]
    fn what_one_workload_is_refused_takes_no_turn_and_what_a_server_fails_takes_more_of_one_each_time() {
        let renewals = RenewalPace::default();
        renewals.share(30);
        let refused = |status| refused(StatusCode::from_u16(status).expect("a status"), "no");
        let take = |millis| renewals.take(at(millis + 900_000), at(millis));
        let ends = |millis, why: Option<NoToken>| {
            let turn = take(millis).expect("a turn");
            renewals.ended(turn, why.as_ref(), 1, at(millis), 0.0);
        };
        for _ in 0..100 {
            ends(0, Some(refused(403)));
        }
        let mut waited = 0;
        for pause in [600, 1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 50_000, 50_000] {
            ends(waited, Some(refused(503)));
            assert!(take(waited + pause - 1).is_none(), "{pause}");
            waited += pause;
        }
        ends(waited, None);
        ends(waited + 50_000, Some(refused(503)));
        assert!(take(waited + 50_600).is_some(), "it worked meanwhile");

        // With few tokens the interval is long, and what is left of a token's life counts.
        renewals.share(1);
        for (left, pause) in [(1200, 300), (600, 150), (300, 75), (20, 75)] {
            let now = at(10_000_000 + left);
            let ends = now + Duration::from_secs(left);
            for _ in 0..20 {
                let turn = renewals.take_next(ends, now);
                renewals.ended(turn, Some(&refused(503)), 1, now, 0.0);
            }
            let next = now + Duration::from_secs(pause);
            assert!(renewals.take(ends, next - Duration::from_millis(1)).is_none(), "{left}");
            assert!(renewals.take(ends, next).is_some(), "{left}");
        }
    }

    #[test]
    fn what_one_workload_alone_is_refused_takes_no_turn_and_what_all_of_several_are_does() {
        let renewals = RenewalPace::default();
        renewals.share(30);
        let project = Halt::throttled(Withheld::Project, "no".to_owned(), Duration::ZERO).why;
        let all = Halt::throttled(Withheld::Quota, "no".to_owned(), Duration::ZERO).why;
        let refused = no_token(ExchangeFailure::KubernetesRefused("no".to_owned()));
        let failed = no_token(ExchangeFailure::Kubernetes("no".to_owned()));
        for (why, tried, is_left) in [
            (&refused, 1, true),
            (&refused, 2, false),
            (&failed, 1, false),
            (&project, 1, true),
            (&project, 2, true),
            (&all, 1, false),
        ] {
            let turn = renewals.take(at(900_000), at(0)).expect("a turn");
            renewals.ended(turn, Some(why), tried, at(0), 0.0);
            assert_eq!(renewals.take(at(900_000), at(599)).is_some(), is_left, "{why} {tried}");
            renewals.pace.used_until.store(0, Relaxed);
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
                if let Some(turn) = renewals.take(now + Duration::from_secs(900), now) {
                    match second.checked_sub(1200) {
                        None => {
                            let why = refused(StatusCode::SERVICE_UNAVAILABLE, "it is away");
                            renewals.ended(turn, Some(&why), 1, now, fastrand::f64());
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
