//! [`Drops`]: counts and logs packets that the bound on new connections dropped.

use prometheus::IntCounter;

use super::Redirect;

/// Number of checks from one log message to the next while packets are dropped. With checks every 30 s: 5 minutes.
const CHECKS_PER_MESSAGE: u32 = 10;

/// Follows the kernel's counter, which restarts at 0 whenever the rules are installed.
#[derive(Debug)]
pub(super) struct Drops {
    total: IntCounter,
    /// The kernel's count at the last check, in packets.
    seen: u64,
    /// Dropped packets that no log message has included yet.
    unlogged: u64,
    /// Checks until the next log message may come.
    quiet: u32,
}

impl Drops {
    pub(super) fn new(total: IntCounter) -> Self {
        Self { total, seen: 0, unlogged: 0, quiet: 0 }
    }

    #[cfg(test)]
    pub(super) fn total(&self) -> &IntCounter {
        &self.total
    }

    /// Reads the kernel's counter, and counts and logs new drops.
    pub(super) async fn check(&mut self, redirect: &Redirect) {
        let Ok(Some(now)) = redirect.dropped().await else { return };
        if let Some(packets) = self.count(now) {
            tracing::warn!(
                packets,
                "new connections of a pod were dropped, because it opens more than --redirect-max-new-connections; find out \
                 which one, or raise the bound"
            );
        }
    }

    /// Takes the kernel's current count as the new start, after rules were installed.
    pub(super) async fn restart(&mut self, redirect: &Redirect) {
        self.seen = redirect.dropped().await.ok().flatten().unwrap_or(0);
    }

    /// Counts the new drops. Returns the number to log, if a message is due.
    fn count(&mut self, now: u64) -> Option<u64> {
        // A smaller count means that another process has reinstalled the rules.
        let new = now.checked_sub(self.seen).unwrap_or(now);
        self.seen = now;
        self.total.inc_by(new);
        self.unlogged += new;
        self.quiet = self.quiet.saturating_sub(1);
        if self.unlogged == 0 || self.quiet > 0 {
            return None;
        }
        self.quiet = CHECKS_PER_MESSAGE;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "dropped").expect("a name")
    }

    #[test]
    fn what_the_kernel_counts_adds_up_although_it_begins_again() {
        let mut drops = Drops::new(counter());
        for (now, total) in [(0, 0), (5, 5), (5, 5), (8, 8), (2, 10), (0, 10), (1, 11)] {
            drops.count(now);
            assert_eq!(drops.total.get(), total, "{now}");
        }
    }

    #[test]
    fn a_flood_is_logged_at_once_and_then_every_tenth_check() {
        let mut drops = Drops::new(counter());
        assert_eq!(drops.count(0), None);
        assert_eq!(drops.count(3), Some(3));
        let logged: Vec<Option<u64>> = (4..=23).map(|now| drops.count(now)).collect();
        let due: Vec<usize> = (0..logged.len()).filter(|check| logged[*check].is_some()).collect();
        assert_eq!((due, logged[9], logged[19]), (vec![9, 19], Some(10), Some(10)));
        assert!((0..30).all(|_| drops.count(23).is_none()), "nothing is new");
        assert_eq!(drops.count(24), Some(1));
    }
}
