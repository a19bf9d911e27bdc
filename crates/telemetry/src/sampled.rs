//! [`Sampled`] and [`SampledBy`]: limit how often a frequent event is logged. [`Brief`]: limits the length of a logged
//! text.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Decides when the next log line is due.
#[derive(Debug)]
pub struct Sampled {
    /// Minimum interval between lines.
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_logged: Option<Instant>,
    /// Events since the last line.
    unlogged: u64,
}

impl Sampled {
    pub fn new(interval: Duration) -> Self {
        Self { interval, state: Mutex::default() }
    }

    /// Counts an event. If a log line is due, returns the number of events since the last one.
    pub fn due(&self, now: Instant) -> Option<u64> {
        self.state.lock().due(self.interval, now)
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

/// Decides when the next log line for each kind of event is due. Remembers a limited number of kinds, and counts all
/// others as one, so that inventing kinds causes neither more lines nor more memory.
#[derive(Debug)]
pub struct SampledBy<K> {
    /// Minimum interval between lines for one kind.
    interval: Duration,
    /// Maximum number of kinds remembered.
    limit: usize,
    states: Mutex<States<K>>,
    others: Sampled,
}

#[derive(Debug)]
struct States<K> {
    by_kind: HashMap<K, State>,
    /// No kind gives up its place before this time.
    full_until: Option<Instant>,
}

/// The maximum number of kinds is already remembered.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl<K: Eq + Hash> SampledBy<K> {
    /// Logs each kind at most once in an interval, and remembers at most `limit` kinds.
    pub fn new(interval: Duration, limit: usize) -> Self {
        let states = Mutex::new(States { by_kind: HashMap::new(), full_until: None });
        Self { interval, limit, states, others: Sampled::new(interval) }
    }

    /// Counts an event of this kind. If a log line is due, returns the number of events since the last one.
    pub fn due(&self, kind: K, now: Instant) -> Option<u64> {
        self.due_by_itself(kind, now).unwrap_or_else(|Full| self.others.due(now))
    }

    /// Whether this kind is remembered, and no line about it is due.
    pub fn has_logged(&self, kind: &K, now: Instant) -> bool {
        self.states.lock().by_kind.get(kind).is_some_and(|state| !state.rests(self.interval, now))
    }

    /// Like [`due`](Self::due), but the caller counts kinds that have no place.
    pub fn due_by_itself(&self, kind: K, now: Instant) -> Result<Option<u64>, Full> {
        let mut states = self.states.lock();
        if !states.by_kind.contains_key(&kind) && !states.has_place(self.interval, self.limit, now) {
            return Err(Full);
        }
        Ok(states.by_kind.entry(kind).or_default().due(self.interval, now))
    }
}

impl<K: Eq + Hash> States<K> {
    /// Whether one more kind can be remembered. Makes room by forgetting the kinds that were not logged for an interval.
    fn has_place(&mut self, interval: Duration, limit: usize, now: Instant) -> bool {
        if self.by_kind.len() < limit {
            return true;
        }
        if self.full_until.is_some_and(|until| now < until) {
            return false;
        }
        self.by_kind.retain(|_, state| state.rests(interval, now));
        self.full_until =
            self.by_kind.values().filter_map(|state| state.last_logged).min().map(|first| first + interval);
        self.by_kind.len() < limit
    }
}

/// Maximum logged characters of a text from a client or a server.
const MAX_TEXT: usize = 240;

/// Shows the beginning of a text from a client or a server, so that log lines stay short.
#[derive(Debug)]
pub struct Brief<T>(pub T);

impl<T: fmt::Display> fmt::Display for Brief<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut beginning = Beginning { to: f, left: MAX_TEXT };
        match write!(beginning, "{}", self.0) {
            // Cutting the text is not an error.
            Err(fmt::Error) if beginning.left == 0 => f.write_str("..."),
            result => result,
        }
    }
}

/// Writes up to this many more characters, and fails at the next one.
struct Beginning<'f, 'a> {
    to: &'f mut fmt::Formatter<'a>,
    left: usize,
}

impl fmt::Write for Beginning<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Some((end, _)) = text.char_indices().nth(self.left) else {
            self.left -= text.chars().count();
            return self.to.write_str(text);
        };
        self.left = 0;
        self.to.write_str(&text[..end])?;
        Err(fmt::Error)
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
        // The remembered kinds, and the others again.
        assert_eq!(lines(start + second), [2, 2, 196]);
        assert_eq!(sampled.states.lock().by_kind.len(), 2);
        assert_eq!(sampled.due(7, start + 3 * second), Some(1), "what was not seen for long gives way");
    }

    #[test]
    fn a_kind_without_a_place_gets_one_once_another_gives_way() {
        let second = Duration::from_secs(1);
        let sampled = SampledBy::new(second, 1);
        let start = Instant::now();
        assert_eq!(sampled.due_by_itself("a", start), Ok(Some(1)));
        assert_eq!(sampled.due_by_itself("b", start), Err(Full));
        assert_eq!(sampled.due_by_itself("b", start + second / 2), Err(Full));
        assert_eq!(sampled.due_by_itself("a", start + second / 2), Ok(None));
        assert_eq!(sampled.due_by_itself("b", start + second), Ok(Some(1)));
        assert_eq!(sampled.due_by_itself("a", start + second), Err(Full));
    }

    #[test]
    fn only_the_beginning_of_a_long_text_is_shown() {
        for (text, shown) in [
            ("short".to_owned(), "short".to_owned()),
            ("é".repeat(MAX_TEXT), "é".repeat(MAX_TEXT)),
            ("é".repeat(MAX_TEXT + 1), "é".repeat(MAX_TEXT) + "..."),
            ("x".repeat(8192), "x".repeat(MAX_TEXT) + "..."),
        ] {
            assert_eq!(Brief(&text).to_string(), shown);
            let halves = format_args!("{}{}", &text[..2], &text[2..]).to_string();
            assert_eq!(Brief(halves).to_string(), shown);
        }
    }
}
