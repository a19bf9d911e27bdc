//! The journal: requests with their times and callers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Endpoint, Workload};
use crate::journal::{Gauge, GaugeGuard};

/// Maximum number of recorded calls. The oldest are forgotten, but remain counted.
const MAX_CALLS: usize = 200_000;

/// A request to one of the endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub endpoint: Endpoint,
    /// Time when the whole request had been received.
    pub at: Instant,
    /// The Kubernetes service account named by the token, verified or not.
    pub workload: Option<Workload>,
    /// UID of the pod named by the token.
    pub pod_uid: Option<String>,
    /// The Google service account named by the path.
    pub account: Option<String>,
    /// The project to charge: STS's `userProject`, IAM's `X-Goog-User-Project`.
    pub user_project: Option<String>,
    /// Status of the response. `None` while there is no response, and after a cut.
    pub status: Option<StatusCode>,
}

/// Counters and records of one fake Google.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) connections: AtomicU64,
    pub(super) in_flight: Gauge,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    calls: VecDeque<Call>,
    /// Number of forgotten calls, which precede the first in `calls`.
    forgotten: u64,
    counts: HashMap<(Endpoint, Option<Workload>), u64>,
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct Underway<'a> {
    journal: &'a Journal,
    number: u64,
    _in_flight: GaugeGuard<'a>,
}

impl Underway<'_> {
    /// Records the status of the response.
    pub(super) fn answered(self, status: StatusCode) {
        let mut book = self.journal.book.lock();
        let place = self.number.checked_sub(book.forgotten).and_then(|place| usize::try_from(place).ok());
        if let Some(call) = place.and_then(|place| book.calls.get_mut(place)) {
            call.status = Some(status);
        }
    }
}

impl Journal {
    /// Records a call, which is in flight until the returned guard is dropped.
    pub(super) fn begin(&self, call: Call) -> Underway<'_> {
        let mut book = self.book.lock();
        *book.counts.entry((call.endpoint, call.workload.clone())).or_default() += 1;
        if book.calls.len() >= MAX_CALLS {
            book.calls.pop_front();
            book.forgotten += 1;
        }
        let number = book.forgotten + book.calls.len() as u64;
        book.calls.push_back(call);
        Underway { journal: self, number, _in_flight: self.in_flight.guard() }
    }

    /// Number of calls that meet this condition.
    pub(super) fn count(&self, holds: impl Fn(Endpoint, Option<&Workload>) -> bool) -> u64 {
        let book = self.book.lock();
        book.counts.iter().filter(|((endpoint, who), _)| holds(*endpoint, who.as_ref())).map(|(_, count)| count).sum()
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.book.lock().calls.iter().cloned().collect()
    }

    /// Highest number of calls to an endpoint in any period of this length.
    pub(super) fn busiest(&self, endpoint: Endpoint, window: Duration) -> usize {
        let book = self.book.lock();
        let mut recent = VecDeque::new();
        let mut most = 0;
        for at in book.calls.iter().filter(|call| call.endpoint == endpoint).map(|call| call.at) {
            while recent.front().is_some_and(|first: &Instant| at.duration_since(*first) >= window) {
                recent.pop_front();
            }
            recent.push_back(at);
            most = most.max(recent.len());
        }
        most
    }

    /// Forgets all calls. Calls in flight remain counted as such.
    pub(super) fn reset(&self) {
        self.connections.store(0, Relaxed);
        let mut book = self.book.lock();
        let forgotten = book.forgotten + book.calls.len() as u64;
        *book = Book { forgotten, ..Book::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: Instant) -> Call {
        let workload = Some(Workload::new("a", "app"));
        let (pod_uid, account, user_project, status) = (None, None, None, None);
        Call { endpoint: Endpoint::Sts, at, workload, pod_uid, account, user_project, status }
    }

    #[test]
    fn the_busiest_time_is_that_with_most_calls() {
        let (journal, start) = (Journal::default(), Instant::now());
        for seconds in [0, 30, 59, 61, 62, 63, 119, 121, 200] {
            drop(journal.begin(call(start + Duration::from_secs(seconds))));
        }
        assert_eq!(journal.busiest(Endpoint::Sts, Duration::from_secs(60)), 5);
        assert_eq!(journal.busiest(Endpoint::IdToken, Duration::from_secs(60)), 0);
    }

    #[test]
    fn an_answer_is_noted_at_its_own_call() {
        let (journal, now) = (Journal::default(), Instant::now());
        let before = journal.begin(call(now));
        journal.reset();
        let [first, second] = [0, 0].map(|_| journal.begin(call(now)));
        assert_eq!((journal.in_flight.now(), journal.in_flight.peak()), (3, 3));
        before.answered(StatusCode::NOT_FOUND);
        second.answered(StatusCode::OK);
        drop(first);
        let statuses: Vec<_> = journal.calls().iter().map(|call| call.status).collect();
        assert_eq!((statuses, journal.in_flight.now()), (vec![None, Some(StatusCode::OK)], 0));
    }

    #[test]
    fn the_oldest_calls_are_forgotten_but_counted() {
        let (journal, now) = (Journal::default(), Instant::now());
        for _ in 0..MAX_CALLS {
            drop(journal.begin(call(now)));
        }
        journal.begin(call(now)).answered(StatusCode::OK);
        assert_eq!(journal.count(|_, _| true), MAX_CALLS as u64 + 1);
        let calls = journal.calls();
        assert_eq!((calls.len(), calls.last().and_then(|call| call.status)), (MAX_CALLS, Some(StatusCode::OK)));
    }
}
