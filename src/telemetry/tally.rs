//! [`Tally`]: a count that the thread which serves adds to without a locked instruction.
//!
//! A token hit adds to some twenty counts, and a locked addition takes about 6 ns where a plain one takes less than one. The
//! proxy serves on one thread unless its quota is of more than one core, so one thread is favoured: the first that counts
//! anything. It has a place of its own in every tally, which nobody else writes; all others share another one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Whether some thread is favoured.
static TAKEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether it is this one. It stays so when the thread ends: two threads must never write the same place.
    static FAVOURED: bool = !TAKEN.swap(true, Relaxed);
}

/// A count that only grows.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Written by the favoured thread alone.
    own: AtomicU64,
    shared: AtomicU64,
}

impl Tally {
    /// Zero.
    pub(super) const fn new() -> Self {
        Self { own: AtomicU64::new(0), shared: AtomicU64::new(0) }
    }

    /// Adds so many.
    pub(super) fn add(&self, more: u64) {
        if FAVOURED.with(|favoured| *favoured) {
            self.own.store(self.own.load(Relaxed).wrapping_add(more), Relaxed);
        } else {
            self.shared.fetch_add(more, Relaxed);
        }
    }

    /// All that was added.
    pub(super) fn get(&self) -> u64 {
        self.own.load(Relaxed).wrapping_add(self.shared.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// So many that threads overlap, and additions that overwrite each other would show.
    const TIMES: u64 = 200_000;

    #[test]
    fn nothing_is_lost_between_threads() {
        let tally = Tally::new();
        let add = || (0..TIMES).for_each(|_| tally.add(1));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(add);
            }
            add();
        });
        assert_eq!(tally.get(), 4 * TIMES);
    }

    #[test]
    fn one_thread_at_most_is_favoured() {
        let is_favoured = || FAVOURED.with(|favoured| *favoured);
        let other = || thread::spawn(is_favoured).join().expect("no panic");
        assert!([is_favoured(), other(), other()].into_iter().filter(|is_favoured| *is_favoured).count() <= 1);
    }
}
