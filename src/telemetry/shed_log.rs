//! [`ShedLog`]: overload is told at most once a second, with a count.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct ShedLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    untold: u64,
}

impl ShedLog {
    pub(super) fn note(&self, reason: &'static str, peer: Option<SocketAddr>) {
        let Some(count) = self.due(Instant::now()) else { return };
        let peer = peer.map(tracing::field::display);
        tracing::warn!(reason, count, peer, "overloaded: refusing or closing what there is no room for");
    }

    /// How many there were since the last line, if it is time for another.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold += 1;
        if state.told.is_some_and(|told| now < told + EVERY) {
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_once_a_second_how_many_there_were() {
        let log = ShedLog::default();
        let start = Instant::now();
        assert_eq!(log.due(start), Some(1));
        for _ in 0..9 {
            assert_eq!(log.due(start + Duration::from_millis(999)), None);
        }
        assert_eq!(log.due(start + EVERY), Some(10));
    }
}
