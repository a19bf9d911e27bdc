//! [`Sampled`] and `SampledBy`: limit how often a frequent event is logged.

#[cfg(any(feature = "workload-identity", test))]
use std::collections::HashMap;
#[cfg(any(feature = "workload-identity", test))]
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Decides when the next log line is due.
#[derive(Debug)]
pub(crate) struct Sampled {
    /// Minimum interval between lines.
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_logged: Option<Instant>,
    /// Events since then.
    unlogged: u64,
}

impl Sampled {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, state: Mutex::default() }
    }

    /// Counts an event. If a log line is due, returns the number of events since the last one.
    pub(crate) fn due(&self, now: Instant) -> Option<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).due(self.interval, now)
    }
}

impl State {
    fn due(&mut self, interval: Duration, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.rests(interval, now) {
            return None;
        }
        self.last_logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }

    fn rests(&self, interval: Duration, now: Instant) -> bool {
        self.last_logged.is_some_and(|last| now < last + interval)
    }
}

#[cfg(any(feature = "workload-identity", test))]
/// Decides when the next log line of each kind of event is due. Remembers a limited number of kinds, and counts all
/// others as one, so that whoever invents kinds causes neither more lines nor more memory.
#[derive(Debug)]
pub(crate) struct SampledBy<K> {
    /// Minimum interval between lines of one kind.
    interval: Duration,
    /// Maximum kinds that are remembered.
    limit: usize,
    states: Mutex<States<K>>,
}

#[cfg(any(feature = "workload-identity", test))]
#[derive(Debug)]
struct States<K> {
    by_kind: HashMap<K, State>,
    others: State,
}

#[cfg(any(feature = "workload-identity", test))]
impl<K: Eq + Hash> SampledBy<K> {
    pub(crate) fn new(interval: Duration, limit: usize) -> Self {
        Self { interval, limit, states: Mutex::new(States { by_kind: HashMap::new(), others: State::default() }) }
    }

    /// Counts an event of this kind. If a log line is due, returns the number of events since the last one.
    pub(crate) fn due(&self, kind: K, now: Instant) -> Option<u64> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let States { by_kind, others } = &mut *states;
        if by_kind.len() >= self.limit && !by_kind.contains_key(&kind) {
            if others.rests(self.interval, now) {
                others.unlogged += 1;
                return None;
            }
            by_kind.retain(|_, state| state.rests(self.interval, now));
            if by_kind.len() >= self.limit {
                return others.due(self.interval, now);
            }
        }
        by_kind.entry(kind).or_default().due(self.interval, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_once_per_interval_with_the_number_of_events() {
        let second = Duration::from_secs(1);
        let sampled = Sampled::new(second);
        let start = Instant::now();
        assert_eq!(sampled.due(start), Some(1));
        for _ in 0..9 {
            assert_eq!(sampled.due(start + Duration::from_millis(999)), None);
        }
        assert_eq!(sampled.due(start + second), Some(10));
    }

    #[test]
    fn each_kind_has_its_lines_and_kinds_beyond_the_limit_share_one() {
        let second = Duration::from_secs(1);
        let sampled = SampledBy::new(second, 2);
        let start = Instant::now();
        let lines = |now| (0..100).filter_map(|kind| sampled.due(kind, now)).collect::<Vec<_>>();
        assert_eq!(lines(start), [1, 1, 1]);
        assert_eq!(lines(start + second / 2), [0; 0]);
        // Those that were remembered, and the others again.
        assert_eq!(lines(start + second), [2, 2, 196]);
        assert_eq!(sampled.states.lock().expect("no panic").by_kind.len(), 2);
        assert_eq!(sampled.due(7, start + 3 * second), Some(1), "what was not seen for long gives way");
    }
}
