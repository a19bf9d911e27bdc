//! Tests of seats, one by one, in any order and in a race.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use tokio::time::advance;

use super::*;

#[test]
fn the_limit_is_the_number_of_seats() {
    for limit in [1, 2, 200] {
        let seats = Seats::new(limit);
        let taken: Vec<_> = (0..limit).map(|_| seats.admit(None)).collect();
        assert!(taken.iter().all(|admission| matches!(admission, Admission::Seat(_))));
        assert!(matches!(seats.admit(None), Admission::Refuse));
        assert_eq!((seats.taken(), seats.peak()), (limit, limit));
        drop(taken);
        assert_eq!(seats.taken(), 0);
        assert!(matches!(seats.admit(None), Admission::Seat(_)));
    }
}

/// Polls a future once.
fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[expect(clippy::unnecessary_wraps, reason = "clients are options")]
fn pod(number: u8) -> Client {
    Some([10, 0, 0, number].into())
}

/// Takes this many free seats.
fn fill(seats: &Arc<Seats>, client: Client, count: usize) -> Vec<Seat> {
    let one = |_| match seats.admit(client) {
        Admission::Seat(seat) => seat,
        other => panic!("expected a free seat, got {other:?}"),
    };
    (0..count).map(one).collect()
}

#[test]
fn a_single_client_may_take_all_seats_and_is_then_refused() {
    let seats = Seats::new(200);
    let _all = fill(&seats, pod(1), 200);
    assert!(matches!(seats.admit(pod(1)), Admission::Refuse));
}

#[test]
fn a_client_below_its_share_may_wait() {
    let seats = Seats::new(10);
    let (_most, _few) = (fill(&seats, pod(1), 7), fill(&seats, pod(2), 3));
    for (client, may_wait) in [(pod(1), false), (pod(2), true), (pod(3), true)] {
        assert_eq!(matches!(seats.admit(client), Admission::Wait), may_wait, "{client:?}");
    }
}

/// Otherwise one client could fill the queue.
#[test]
fn a_waiting_request_counts_towards_the_share_until_it_gives_up() {
    let seats = Seats::new(4);
    let _most = fill(&seats, pod(1), 4);
    {
        let (mut one, mut other) =
            (pin!(Arc::clone(&seats).next_free(pod(2))), pin!(Arc::clone(&seats).next_free(pod(2))));
        assert!(now(one.as_mut()).is_pending() && now(other.as_mut()).is_pending());
        assert!(matches!(seats.admit(pod(2)), Admission::Refuse), "its share is two of four");
    }
    assert!(matches!(seats.admit(pod(2)), Admission::Wait));
    assert_eq!(seats.count.lock().claims.holders(), 1, "a client without requests is forgotten");
}

#[test]
fn a_released_seat_goes_to_the_waiting_request() {
    let seats = Seats::new(2);
    let mut all = fill(&seats, pod(1), 2);
    let mut waiting = pin!(Arc::clone(&seats).next_free(pod(2)));
    assert!(now(waiting.as_mut()).is_pending());
    all.pop();
    assert!(matches!(seats.admit(pod(1)), Admission::Refuse), "the seat is reserved for the queue");
    let Poll::Ready(_seat) = now(waiting) else { panic!("a seat was handed over") };
    assert_eq!(seats.taken(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_peak_is_that_of_this_minute_and_the_one_before_however_often_it_is_read() {
    let seats = Seats::new(3);
    let (one, two) = (seats.admit(None), seats.admit(None));
    drop(one);
    assert_eq!([seats.peak(), seats.peak()], [2, 2]);
    // After 59, 119 and 121 s.
    for (seconds, peak) in [(59, 2), (60, 2), (2, 1)] {
        advance(Duration::from_secs(seconds)).await;
        assert_eq!(seats.peak(), peak, "after {seconds} s more");
    }
    drop(fill(&seats, None, 2));
    assert_eq!(seats.peak(), 3);
    advance(Duration::from_secs(600)).await;
    assert_eq!(seats.peak(), 1, "that was long ago");
    drop(two);
    advance(Duration::from_secs(59)).await;
    assert_eq!(seats.peak(), 1, "since it was last read");
    advance(Duration::from_secs(119)).await;
    assert_eq!(seats.peak(), 1, "a minute ago");
    advance(Duration::from_secs(2)).await;
    assert_eq!(seats.peak(), 0);
}

impl Seats {
    /// Free seats, waiting requests, and clients with either.
    fn all(&self) -> (usize, usize, usize) {
        let count = self.count.lock();
        (count.free, count.waiting, count.claims.holders())
    }
}

/// An event in the life of seats. The numbers choose a pod, a taken seat or a waiting request.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A pod requests a seat, and waits if it may.
    Ask(u8),
    /// A seat is released.
    Return(usize),
    /// A waiting request is polled.
    Look(usize),
    /// A waiting request is cancelled.
    GiveUp(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..4u8).prop_map(Event::Ask),
        any::<usize>().prop_map(Event::Return),
        any::<usize>().prop_map(Event::Look),
        any::<usize>().prop_map(Event::GiveUp),
    ]
}

proptest! {
    /// In any order of events, no seat is created or lost, and no request waits while a seat is free.
    #[test]
    fn cancelled_requests_lose_no_seat(limit in 1..4usize, events in prop::collection::vec(event(), 0..60)) {
        let seats = Seats::new(limit);
        let (mut taken, mut waiting) = (Vec::new(), Vec::new());
        let place = |at: usize, of: usize| (of > 0).then(|| at % of);
        for event in events {
            match event {
                Event::Ask(number) => match seats.admit(pod(number)) {
                    Admission::Seat(seat) => taken.push(seat),
                    Admission::Wait => {
                        let mut next = Box::pin(Arc::clone(&seats).next_free(pod(number)));
                        prop_assert!(now(next.as_mut()).is_pending(), "none was free");
                        waiting.push(next);
                    }
                    Admission::Refuse => prop_assert!(seats.taken() == limit),
                },
                Event::Return(at) => drop(place(at, taken.len()).map(|at| taken.swap_remove(at))),
                Event::Look(at) => {
                    if let Some(at) = place(at, waiting.len())
                        && let Poll::Ready(seat) = now(waiting[at].as_mut())
                    {
                        drop(waiting.swap_remove(at));
                        taken.push(seat);
                    }
                }
                Event::GiveUp(at) => drop(place(at, waiting.len()).map(|at| waiting.swap_remove(at))),
            }
            let handed = waiting.len() - seats.count.lock().waiting;
            prop_assert_eq!(seats.taken(), taken.len() + handed);
            prop_assert!(waiting.len() == handed || seats.taken() == limit, "a request waits while a seat is free");
        }
        drop((taken, waiting));
        prop_assert_eq!(seats.all(), (limit, 0, 0));
        prop_assert_eq!(fill(&seats, None, limit).len(), limit);
    }
}

/// On two threads, so that a request can be cancelled while it is being handed a seat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_requests_lose_no_seat_in_a_race() {
    let seats = Seats::new(1);
    for _ in 0..2000 {
        let taken = fill(&seats, None, 1);
        // In the queue when it is polled first, so that all three are there below.
        let wait = |number, seats: Arc<Seats>| async move { seats.next_free(pod(number)).await };
        let waits = [0, 1, 2].map(|number| tokio::spawn(wait(number, Arc::clone(&seats))));
        while seats.count.lock().waiting < waits.len() {
            tokio::task::yield_now().await;
        }
        let returned = tokio::spawn(async move { drop(taken) });
        waits.iter().take(2).for_each(tokio::task::JoinHandle::abort);
        returned.await.expect("no panic");
        for wait in waits {
            // A request that was not cancelled in time returns its seat, which is dropped here.
            let _ = wait.await;
        }
        assert_eq!(seats.all(), (1, 0, 0));
    }
}

#[test]
fn the_limit_holds_under_a_race() {
    let seats = Seats::new(3);
    let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    if let Admission::Seat(seat) = seats.admit(None) {
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
