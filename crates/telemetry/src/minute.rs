//! [`Minute`]: events of the last minute, computed from counters that only grow.
//!
//! A sample of the counters is kept every ten seconds, six in all, in 1 KiB. Counting itself costs nothing extra.

use std::collections::VecDeque;
use std::ops::Sub;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::labels::Label;
use super::requests::Requests;
use super::shedding::{Shed, Shedding};

/// Number of samples kept: the oldest one is 50 to 60 s old.
const MAX_SAMPLES: usize = 6;

/// Numbers of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that were answered, with any status.
    pub requests: u64,
    /// Requests that the proxy refused or failed, without those that were shed.
    pub refused: u64,
    /// Requests to which the metadata server answered that it fails (429 and 5xx), which was passed on.
    pub server_failed: u64,
    /// Requests whose pod was not known.
    pub unidentified: u64,
    /// Requests whose pod's account the API server did not tell.
    pub unread_account: u64,
    /// Requests for pods' own tokens that failed, or were refused for a reason that affects all pods.
    pub no_token: u64,
    /// Requests for pods' own tokens that failed for one account: Google refused it, or a quota of its own is used up.
    pub account_refused: u64,
    /// Requests that panicked.
    pub panics: u64,
    /// Sheds, in the order of [`Shed::ALL`].
    pub by_shed: [u64; Shed::ALL.len()],
}

/// The samples of the last minute.
#[derive(Debug)]
pub struct Minute {
    began: Instant,
    samples: Mutex<VecDeque<(Instant, Tally)>>,
}

impl Tally {
    /// All events since the start.
    pub fn of(requests: &Requests, shedding: &Shedding) -> Self {
        let refusals = requests.refusals();
        let sum = |is_meant: &dyn Fn(&str) -> bool| {
            refusals.iter().filter(|(reason, _)| is_meant(reason)).map(|(_, count)| count).sum()
        };
        Self {
            requests: requests.count(),
            refused: sum(&|reason| Shed::ALL.iter().all(|shed| shed.label() != reason)),
            server_failed: requests.passed_failures(),
            unidentified: sum(&|reason| reason == "unidentified"),
            unread_account: sum(&|reason| reason == "unknown_account"),
            no_token: sum(&|reason| reason.starts_with("exchange_")),
            account_refused: sum(&|reason| reason.starts_with("account_")),
            panics: requests.panics(),
            by_shed: Shed::ALL.map(|reason| shedding.count(reason)),
        }
    }

    /// Sheds by reason, the most frequent first.
    pub fn sheds(&self) -> Vec<(Shed, u64)> {
        let mut sheds: Vec<_> = Shed::ALL.into_iter().zip(self.by_shed).filter(|(_, count)| *count > 0).collect();
        sheds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sheds
    }
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            refused: self.refused.saturating_sub(earlier.refused),
            server_failed: self.server_failed.saturating_sub(earlier.server_failed),
            unidentified: self.unidentified.saturating_sub(earlier.unidentified),
            unread_account: self.unread_account.saturating_sub(earlier.unread_account),
            no_token: self.no_token.saturating_sub(earlier.no_token),
            account_refused: self.account_refused.saturating_sub(earlier.account_refused),
            panics: self.panics.saturating_sub(earlier.panics),
            by_shed: std::array::from_fn(|at| self.by_shed[at].saturating_sub(earlier.by_shed[at])),
        }
    }
}

impl Minute {
    /// Keeps a sample. Must be called every ten seconds.
    pub fn sample(&self, now: Instant, tally: Tally) {
        let mut samples = self.samples.lock();
        samples.push_back((now, tally));
        if samples.len() > MAX_SAMPLES {
            samples.pop_front();
        }
    }

    /// The events since the oldest sample, or since the start, and the time since then.
    pub fn since_oldest(&self, now: Instant, tally: Tally) -> (Duration, Tally) {
        let samples = self.samples.lock();
        let is_whole = samples.len() == MAX_SAMPLES;
        let oldest = samples.front().filter(|_| is_whole).copied();
        let (since, earlier) = oldest.unwrap_or((self.began, Tally::default()));
        (now.saturating_duration_since(since), tally - earlier)
    }
}

impl Default for Minute {
    fn default() -> Self {
        Self { began: Instant::now(), samples: Mutex::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_a_minute_does_not_count() {
        let (minute, shedding, requests) = (Minute::default(), Shedding::default(), Requests::default());
        let tally = || Tally::of(&requests, &shedding);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..3 {
            shedding.shed(Shed::InFlight, None);
            requests.refused("in_flight");
        }
        shedding.shed(Shed::Memory, None);
        requests.refused("concealed");
        let (lasted, seen) = minute.since_oldest(after(5), tally());
        assert_eq!((lasted.as_secs(), seen.refused), (5, 1), "what was shed was not refused");
        assert_eq!(seen.sheds(), [(Shed::InFlight, 3), (Shed::Memory, 1)]);
        for seconds in [10, 20, 30, 40, 50, 60] {
            minute.sample(after(seconds), tally());
        }
        shedding.shed(Shed::Tokens, None);
        let (lasted, seen) = minute.since_oldest(after(65), tally());
        assert_eq!((lasted.as_secs(), seen.sheds(), seen.refused), (55, vec![(Shed::Tokens, 1)], 0));
    }

    #[test]
    fn each_reason_is_tallied() {
        let (shedding, requests) = (Shedding::default(), Requests::default());
        let before = Tally::of(&requests, &shedding);
        for reason in [
            "unidentified",
            "unknown_account",
            "deleted_account",
            "changed_account",
            "exchange_sts",
            "account_refused",
            "account_pace",
        ] {
            requests.refused(reason);
        }
        requests.passed_failure();
        let seen = Tally::of(&requests, &shedding);
        let now = seen - before;
        assert_eq!((now.unidentified, now.unread_account, now.no_token, now.account_refused), (1, 1, 1, 2));
        assert_eq!((now.refused, now.server_failed), (7, 1));
        let later = Tally::of(&requests, &shedding) - seen;
        assert_eq!((later.unidentified, later.unread_account, later.no_token), (0, 0, 0));
        assert_eq!((later.account_refused, later.server_failed, later.panics), (0, 0, 0));
    }
}
