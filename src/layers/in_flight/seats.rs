//! [`Seats`]: the one count of requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many requests at once, in the whole process.
#[derive(Debug)]
pub struct Seats {
    limit: usize,
    taken: AtomicUsize,
    /// Most taken at once since it was last asked for.
    peak: AtomicUsize,
}

/// The right to be in flight. It goes back when it is dropped.
#[derive(Debug)]
pub struct Seat(Arc<Seats>);

/// What becomes of a request that wants in. One that may wait for a seat will be another variant.
#[derive(Debug)]
pub enum Admission {
    /// It is in.
    Seat(Seat),
    /// There is no room.
    Refuse,
}

impl Seats {
    /// All free.
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Takes a seat if one is free.
    pub fn admit(self: &Arc<Self>) -> Admission {
        let more = |taken| (taken < self.limit).then_some(taken + 1);
        match self.taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more) {
            Ok(before) => {
                self.peak.fetch_max(before + 1, Ordering::Relaxed);
                Admission::Seat(Seat(Arc::clone(self)))
            }
            Err(_) => Admission::Refuse,
        }
    }

    /// How many there are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many are taken now.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Most taken at once since this was last called.
    pub fn take_peak(&self) -> usize {
        self.peak.swap(self.taken(), Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_the_limit_says() {
        for limit in [1, 2, 200] {
            let seats = Arc::new(Seats::new(limit));
            let taken: Vec<_> = (0..limit).map(|_| seats.admit()).collect();
            assert!(taken.iter().all(|admission| matches!(admission, Admission::Seat(_))));
            assert!(matches!(seats.admit(), Admission::Refuse));
            assert_eq!((seats.taken(), seats.take_peak()), (limit, limit));
            drop(taken);
            assert_eq!(seats.taken(), 0);
            assert!(matches!(seats.admit(), Admission::Seat(_)));
        }
    }

    #[test]
    fn the_peak_is_of_the_time_since_it_was_last_asked_for() {
        let seats = Arc::new(Seats::new(3));
        let (one, two) = (seats.admit(), seats.admit());
        drop(one);
        assert_eq!(seats.take_peak(), 2);
        assert_eq!(seats.take_peak(), 1);
        drop(two);
        assert_eq!((seats.take_peak(), seats.take_peak()), (1, 0));
    }

    /// Eight threads that take and give back as fast as they can never hold more than there are.
    #[test]
    fn the_limit_holds_under_a_race() {
        let seats = Arc::new(Seats::new(3));
        let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if let Admission::Seat(seat) = seats.admit() {
                            most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            held.fetch_sub(1, Ordering::SeqCst);
                            drop(seat);
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(seats.taken(), 0);
    }
}
