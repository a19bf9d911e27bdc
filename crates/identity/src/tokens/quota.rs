//! [`Quota`]: holds requests back while a server's quota is used up (429).
//!
//! Google allows a project some requests a minute, for all of its nodes. No node knows what the others ask for; each sees only whether
//! it got 429. So it asks less often each time it does, and more often again each time it does not, as senders do that share a line.
//! Requests that nobody waits for are held back for minutes, and those that pods wait for only for seconds: what is left of the quota
//! goes to pods, of whichever node.
//!
//! While pods' requests are held back, the workload that was held back first is next, or one that asks all the time would get each turn.
//! If it does not come within [`TURN`], the next request is let through.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use base::backoff::{Backoff, Jitter};
use protocol::metadata::WorkloadId;
use proxy::tokens::Urgency;

/// How requests that nobody waits for are held back. The longest interval is a quarter of a token's life: a token that is due has more
/// left. They need no order: a token that ends soon is waited for.
const BACKGROUND: Pace =
    Pace { backoff: Backoff::new(Duration::from_secs(60), Duration::from_secs(600)).with(JITTER), max_waiting: 0 };

/// How requests that pods wait for are held back. 5,000 nodes that all ask at the longest interval take 6,000 to 10,000 a minute.
const DEMANDED: Pace =
    Pace { backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with(JITTER), max_waiting: 64 };

/// Never shorter, and not the same on all nodes.
const JITTER: Jitter = Jitter(1.0, 1.5);

/// More 429 in a row than this make no interval longer.
const MAX_STEPS: u32 = 6;

/// Time without a request after which an interval is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(900);

/// Time for which a turn is kept for the workload that was held back first. `Retry-After` is in whole seconds.
const TURN: Duration = Duration::from_secs(2);

/// What is known of a server's quota.
#[derive(Debug, Default)]
pub(super) struct Quota(Mutex<Intervals>);

/// How requests of one urgency are held back.
struct Pace {
    /// The intervals between them.
    backoff: Backoff,
    /// Maximum number of workloads that are remembered as held back.
    max_waiting: usize,
}

impl Pace {
    fn of(urgency: Urgency) -> Self {
        if urgency.is_background() { BACKGROUND } else { DEMANDED }
    }
}

#[derive(Debug, Default)]
struct Intervals {
    demanded: Interval,
    background: Interval,
}

impl Intervals {
    fn of(&mut self, urgency: Urgency) -> &mut Interval {
        if urgency.is_background() { &mut self.background } else { &mut self.demanded }
    }
}

/// The interval between requests of one urgency.
#[derive(Debug, Default)]
struct Interval {
    /// 0 if requests are not held back.
    steps: u32,
    /// When the next request may begin.
    next: Option<Instant>,
    /// When `steps` last grew. Requests that were under way then say nothing new.
    grew: Option<Instant>,
    /// The workloads whose requests were held back since their last turn, in order.
    waiting: VecDeque<WorkloadId>,
}

impl Interval {
    /// Whether a request may begin, or the time for which it is held back.
    fn may_begin(&mut self, workload: WorkloadId, max_waiting: usize, now: Instant) -> Result<(), Duration> {
        let next = self.next.unwrap_or(now);
        if self.steps == 0 || now.saturating_duration_since(next) > FORGOTTEN {
            if self.steps > 0 {
                *self = Self::default();
            }
            self.waiting.clear();
            return Ok(());
        }
        let opens = if self.is_anothers(workload) { next + TURN } else { next };
        if opens > now {
            self.waits(workload, max_waiting);
            return Err(opens - now);
        }
        Ok(())
    }

    /// Records that a request was held back.
    fn waits(&mut self, workload: WorkloadId, max: usize) {
        if self.waiting.len() < max && !self.waiting.contains(&workload) {
            self.waiting.push_back(workload);
        }
    }

    /// Records that a request was let through.
    fn had_its_turn(&mut self, workload: WorkloadId) {
        // The first one has had its chance.
        self.waiting.pop_front();
        self.waiting.retain(|other| *other != workload);
    }

    /// Whether another workload than this one was held back first.
    fn is_anothers(&self, workload: WorkloadId) -> bool {
        self.waiting.front().is_some_and(|first| *first != workload)
    }
}

impl Quota {
    /// Whether a request may begin, or the time for which it is held back. It takes no turn yet.
    pub(super) fn may_begin(&self, (workload, urgency): (WorkloadId, Urgency), now: Instant) -> Result<(), Duration> {
        self.0.lock().of(urgency).may_begin(workload, Pace::of(urgency).max_waiting, now)
    }

    /// Lets a request begin, or returns the time for which it is held back.
    pub(super) fn begin(
        &self,
        (workload, urgency): (WorkloadId, Urgency),
        now: Instant,
        random: f64,
    ) -> Result<(), Duration> {
        let Pace { backoff, max_waiting } = Pace::of(urgency);
        let mut intervals = self.0.lock();
        let interval = intervals.of(urgency);
        interval.may_begin(workload, max_waiting, now)?;
        if interval.steps > 0 {
            interval.had_its_turn(workload);
            interval.next = Some(now + backoff.wait(interval.steps, random));
        }
        Ok(())
    }

    /// Records that a request, which began at `began`, got 429. The server may name a time.
    pub(super) fn used_up(&self, urgency: Urgency, began: Instant, named: Duration, now: Instant, random: f64) {
        let mut intervals = self.0.lock();
        // Where pods' requests get 429, others must not be sent at all.
        let is_others = (!urgency.is_background()).then_some(Urgency::Background);
        for of in [urgency].into_iter().chain(is_others) {
            let interval = intervals.of(of);
            if of != urgency {
                // No longer than the first time: what comes of its own requests is not known.
                interval.steps = interval.steps.max(1);
                interval.grew = Some(now);
            } else if interval.grew.is_none_or(|grew| grew <= began) {
                interval.steps = (interval.steps + 1).min(MAX_STEPS);
                interval.grew = Some(now);
            }
            let next = now + Pace::of(of).backoff.wait_at_least(named, interval.steps, random);
            interval.next = Some(interval.next.map_or(next, |known| known.max(next)));
        }
    }

    /// Records an answer other than 429 to a request that began at `began`.
    pub(super) fn allowed(&self, urgency: Urgency, began: Instant, now: Instant, random: f64) {
        let mut intervals = self.0.lock();
        let interval = intervals.of(urgency);
        if interval.grew.is_some_and(|grew| grew > began) {
            return;
        }
        interval.steps = match urgency {
            Urgency::Demanded | Urgency::Soon => interval.steps.saturating_sub(1),
            // Renewals have a pace of their own. Were they let go one by one, tokens would end before their turn.
            Urgency::Background => 0,
        };
        let next = now + Pace::of(urgency).backoff.wait(interval.steps, random);
        interval.next = interval.next.map(|known| known.min(next));
    }

    /// Time for which a request is held back.
    pub(super) fn left(&self, urgency: Urgency, now: Instant) -> Duration {
        let next = self.0.lock().of(urgency).next;
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ONE: WorkloadId = WorkloadId(1);

    /// Sends a request each second for a time. Returns how many began.
    fn sent(quota: &Quota, urgency: Urgency, begins: Instant, seconds: u32, is_used_up: bool) -> u32 {
        (0..seconds)
            .filter(|second| {
                let now = begins + SECOND * *second;
                let is_sent = quota.begin((ONE, urgency), now, 0.0).is_ok();
                match (is_sent, is_used_up) {
                    (true, true) => quota.used_up(urgency, now, Duration::ZERO, now, 0.0),
                    (true, false) => quota.allowed(urgency, now, now, 0.0),
                    (false, _) => {}
                }
                is_sent
            })
            .count()
            .try_into()
            .expect("small")
    }

    #[test]
    fn what_pods_wait_for_is_asked_for_within_seconds_and_the_rest_within_minutes() {
        let (quota, now) = (Quota::default(), Instant::now());
        assert_eq!(sent(&quota, Urgency::Demanded, now, 600, true), 24, "each 30 s in the end");
        let quota = Quota::default();
        assert_eq!(sent(&quota, Urgency::Background, now, 3600, true), 9, "each 600 s in the end");
        assert_eq!(sent(&quota, Urgency::Demanded, now + SECOND * 3600, 10, false), 10, "pods wait for none of it");
    }

    #[test]
    fn a_429_of_pods_holds_back_the_rest() {
        let (quota, now) = (Quota::default(), Instant::now());
        quota.used_up(Urgency::Demanded, now, Duration::ZERO, now, 0.0);
        assert_eq!(quota.begin((ONE, Urgency::Demanded), now, 0.0), Err(SECOND));
        assert_eq!(quota.begin((ONE, Urgency::Background), now, 0.0), Err(60 * SECOND));
    }

    #[test]
    fn what_no_pod_waits_for_goes_on_a_minute_after_pods_have_their_tokens() {
        let (quota, now) = (Quota::default(), Instant::now());
        sent(&quota, Urgency::Demanded, now, 1500, true);
        let later = now + SECOND * 1561;
        assert_eq!(sent(&quota, Urgency::Background, later, 10, false), 10);
    }

    #[test]
    fn what_ran_together_counts_once_and_each_success_shortens_the_interval() {
        let (quota, now) = (Quota::default(), Instant::now());
        for millis in 0..24 {
            quota.used_up(Urgency::Demanded, now, Duration::ZERO, now + Duration::from_millis(millis + 1), 0.0);
        }
        assert!(quota.begin((ONE, Urgency::Demanded), now + SECOND * 2, 0.0).is_ok());
        assert!(quota.begin((ONE, Urgency::Demanded), now + SECOND * 2, 0.0).is_err(), "one, until there is an answer");
        quota.allowed(Urgency::Demanded, now, now + SECOND * 2, 0.0);
        assert!(
            quota.begin((ONE, Urgency::Demanded), now + SECOND * 2, 0.0).is_err(),
            "that one is older than the 429"
        );
        quota.allowed(Urgency::Demanded, now + SECOND * 2, now + SECOND * 2, 0.0);
        assert!((0..9).all(|_| quota.begin((ONE, Urgency::Demanded), now + SECOND * 2, 0.0).is_ok()));
    }

    #[test]
    fn when_the_server_allows_requests_again_the_next_one_does_not_wait_for_the_longest_interval() {
        let (quota, now) = (Quota::default(), Instant::now());
        sent(&quota, Urgency::Demanded, now, 600, true);
        let later = now + SECOND * 660;
        assert_eq!(
            sent(&quota, Urgency::Demanded, later, 60, false),
            34,
            "after 16, 8, 4 and 2 s, and then each second"
        );
    }

    #[test]
    fn a_time_that_the_server_names_is_kept_and_an_old_interval_is_forgotten() {
        let (quota, now) = (Quota::default(), Instant::now());
        quota.used_up(Urgency::Demanded, now, SECOND * 20, now, 0.0);
        assert_eq!(quota.begin((ONE, Urgency::Demanded), now + SECOND * 10, 0.0), Err(SECOND * 10));
        let later = now + FORGOTTEN * 2;
        assert!((0..9).all(|_| quota.begin((ONE, Urgency::Demanded), later, 0.0).is_ok()));
    }

    /// Workloads that ask all the time get no turn while one that comes when it was told to waits.
    #[test]
    fn the_workload_that_was_held_back_first_is_next() {
        let (quota, now) = (Quota::default(), Instant::now());
        quota.used_up(Urgency::Demanded, now, Duration::ZERO, now, 0.0);
        let begins = |workload, millis| {
            let now = now + Duration::from_millis(millis);
            let begins = quota.begin((WorkloadId(workload), Urgency::Demanded), now, 0.0);
            if begins.is_ok() {
                quota.used_up(Urgency::Demanded, now, Duration::ZERO, now, 0.0);
            }
            begins
        };
        let honest = 9;
        let (mut returns, mut turns, mut others) = (500, 0, 0);
        for millis in (0..600_000).step_by(100) {
            others += [1, 2].into_iter().filter(|workload| begins(*workload, millis).is_ok()).count();
            if millis >= returns {
                match begins(honest, millis) {
                    Ok(()) => (returns, turns) = (millis + 500, turns + 1),
                    // In whole seconds, and a little later.
                    Err(left) => returns = millis + (left.as_secs() + 1) * 1000 + 300,
                }
            }
        }
        assert!(turns >= 6 && others >= 12, "{turns} of {}", turns + others);
    }

    #[test]
    fn a_workload_that_does_not_come_delays_the_next_by_two_seconds() {
        let (quota, now) = (Quota::default(), Instant::now());
        let begins =
            |workload, seconds| quota.begin((WorkloadId(workload), Urgency::Demanded), now + SECOND * seconds, 0.0);
        quota.used_up(Urgency::Demanded, now, Duration::ZERO, now, 0.0);
        assert_eq!(begins(1, 0), Err(SECOND));
        assert_eq!((begins(2, 1), begins(2, 2), begins(2, 3)), (Err(TURN), Err(SECOND), Ok(())));
        assert_eq!(begins(1, 4), Ok(()), "its turn has passed, and nobody else waits");
        for workload in 0..1000 {
            assert!(begins(workload, 4).is_err());
        }
        assert_eq!(quota.0.lock().demanded.waiting.len(), DEMANDED.max_waiting);
    }

    #[test]
    fn no_turn_is_kept_in_the_background_or_after_the_quota_has_recovered() {
        let now = Instant::now();
        let begins = |quota: &Quota, workload, urgency, seconds| {
            quota.begin((WorkloadId(workload), urgency), now + SECOND * seconds, 0.0)
        };
        let quota = Quota::default();
        quota.used_up(Urgency::Background, now, Duration::ZERO, now, 0.0);
        assert_eq!(begins(&quota, 1, Urgency::Background, 0), Err(SECOND * 60));
        assert_eq!(begins(&quota, 2, Urgency::Background, 60), Ok(()));

        let quota = Quota::default();
        let used_up = |at| quota.used_up(Urgency::Demanded, at, Duration::ZERO, at, 0.0);
        used_up(now);
        assert_eq!(begins(&quota, 1, Urgency::Demanded, 0), Err(SECOND));
        quota.allowed(Urgency::Demanded, now + SECOND, now + SECOND, 0.0);
        assert_eq!(begins(&quota, 2, Urgency::Demanded, 2), Ok(()));
        used_up(now + SECOND * 2);
        assert_eq!(begins(&quota, 2, Urgency::Demanded, 3), Ok(()));
    }
}
