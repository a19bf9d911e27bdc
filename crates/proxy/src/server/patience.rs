//! [`Patience`]: the time that newcomers wait for places.

use std::time::Duration;

/// Maximum time that newcomers wait for free places. After that they get places at a rate of
/// [`MIN_NEWCOMERS_PER_SECOND`].
const MAX_PATIENCE: Duration = Duration::from_millis(250);

/// Maximum charge for one yield or sleep. If it takes longer, the process stood still, because it was throttled or
/// other programs had the processor: nobody was served, and requests arrived that were not read.
const MAX_CHARGE: Duration = Duration::from_millis(100);

/// Minimum rate at which newcomers are admitted or refused once patience is used up, per second.
const MIN_NEWCOMERS_PER_SECOND: u32 = 2_000;

/// Remaining time that newcomers may have to wait.
///
/// They wait in the kernel's queue, which costs the proxy no memory. All of them wait, because their addresses are
/// unknown until they are accepted. A burst of well-behaved clients frees places much faster than
/// [`MIN_NEWCOMERS_PER_SECOND`], so no connection is closed for it. A pod that floods the proxy uses up the patience,
/// and recent connections are then closed for newcomers after at most one turn of the event loop
/// ([`WaitFor::Reading`](super::connections::WaitFor::Reading)). Other pods therefore wait at most [`MAX_PATIENCE`]
/// plus the time of the queue ahead of them. They wait longer only while the process stands still ([`MAX_CHARGE`]).
///
/// If a newcomer waits for turns of the event loop that take longer than it may wait, the excess is deducted from the
/// newcomers behind it. Otherwise each newcomer would wait for at least one turn, which takes milliseconds while
/// hundreds of connections are busy, and the queue would grow. Sleep in an idle event loop is not deducted: then
/// connections make no progress because their clients are slow, and closing more of them would help nobody.
#[derive(Debug)]
pub(super) struct Patience {
    left: Duration,
    owed: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { left: MAX_PATIENCE, owed: Duration::ZERO }
    }

    /// Records another newcomer.
    pub(super) fn grow(&mut self) {
        let gained = Duration::from_secs(1) / MIN_NEWCOMERS_PER_SECOND;
        self.left = (self.left + gained.saturating_sub(self.owed)).min(MAX_PATIENCE);
        self.owed = self.owed.saturating_sub(gained);
    }

    pub(super) fn lasts(&self, wait: &Wait) -> bool {
        wait.total < self.left
    }

    pub(super) fn spend(&mut self, wait: &Wait) {
        self.owed = (self.owed + wait.yielding.saturating_sub(self.left)).min(MAX_PATIENCE);
        self.left = self.left.saturating_sub(wait.total);
    }
}

/// The charged waiting time of a newcomer. A newcomer first yields, and then sleeps.
#[derive(Debug, Default)]
pub(super) struct Wait {
    total: Duration,
    /// The part spent yielding to a busy event loop.
    yielding: Duration,
}

impl Wait {
    pub(super) fn yielded_for(&mut self, time: Duration) {
        self.charge(time);
        self.yielding = self.total;
    }

    pub(super) fn slept_for(&mut self, time: Duration) {
        self.charge(time);
    }

    fn charge(&mut self, time: Duration) {
        self.total += time.min(MAX_CHARGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(1);

    fn slept(time: Duration) -> Wait {
        let mut wait = Wait::default();
        while wait.total < time {
            wait.slept_for(INTERVAL.min(time.saturating_sub(wait.total)));
        }
        wait
    }

    #[test]
    fn a_flood_of_newcomers_waits_once_and_is_then_admitted_at_a_rate() {
        let mut patience = Patience::new();
        let mut waited = Duration::ZERO;
        for _ in 0..MIN_NEWCOMERS_PER_SECOND {
            patience.grow();
            // The newcomer waits as long as patience lasts.
            let wait = slept(patience.left);
            assert!(!patience.lasts(&wait));
            patience.spend(&wait);
            waited += wait.total;
        }
        assert!(waited <= MAX_PATIENCE + Duration::from_secs(1), "{waited:?} for one second's newcomers");
        assert!(waited >= Duration::from_secs(1));
    }

    #[test]
    fn newcomers_do_not_each_wait_for_a_turn_of_a_busy_event_loop() {
        const TURN: Duration = Duration::from_millis(6);
        let mut patience = Patience::new();
        let mut waited = Duration::ZERO;
        for _ in 0..MIN_NEWCOMERS_PER_SECOND {
            patience.grow();
            let mut wait = Wait::default();
            if patience.lasts(&wait) {
                wait.yielded_for(TURN);
                patience.spend(&wait);
                waited += TURN;
            }
        }
        assert!(waited <= MAX_PATIENCE + Duration::from_secs(1) + TURN, "{waited:?} for one second's newcomers");
    }

    #[test]
    fn a_standstill_does_not_use_up_patience() {
        const STANDSTILL: Duration = Duration::from_secs(2);
        let mut patience = Patience::new();
        patience.grow();
        let mut wait = Wait::default();
        wait.yielded_for(STANDSTILL);
        assert!(patience.lasts(&wait), "requests that arrived meanwhile are not read yet");
        patience.spend(&wait);
        patience.grow();
        assert!(patience.lasts(&Wait::default()), "for the newcomers behind it, too");
    }
}
