//! [`Seats`]: the one count of requests in flight, and who waits for one.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// Who asks: an address, i.e. a pod. The proxy's own requests have none.
type Client = Option<IpAddr>;

/// So many requests at once, in the whole process.
#[derive(Debug)]
pub struct Seats {
    limit: usize,
    /// Hands a seat that comes back to whoever has waited longest; a newcomer gets one only if nobody waits.
    free: Semaphore,
    /// Most taken at once since it was last asked for.
    peak: AtomicUsize,
    /// Of each client that has any: requests that are in, or wait to be. A list, since only few clients are in at once.
    claims: Mutex<Vec<(Client, usize)>>,
}

/// The right to be in flight. It goes back when it is dropped.
#[derive(Debug)]
pub struct Seat {
    _claim: Claim,
}

/// One of a client's requests that are in, or wait to be.
#[derive(Debug)]
struct Claim {
    client: Client,
    seats: Arc<Seats>,
    /// Whether it is in.
    has_seat: bool,
}

/// What becomes of a request that wants in.
#[derive(Debug)]
pub enum Admission {
    /// It is in.
    Seat(Seat),
    /// There is no room now, but its client has less than its share and may wait for the [next](Seats::next_free) seat.
    Wait,
    /// There is no room.
    Refuse,
}

impl Seats {
    /// All free.
    pub fn new(limit: usize) -> Self {
        Self { limit, free: Semaphore::new(limit), peak: AtomicUsize::new(0), claims: Mutex::default() }
    }

    /// Takes a seat if one is free.
    pub fn admit(self: &Arc<Self>, client: Client) -> Admission {
        match self.free.try_acquire() {
            Ok(permit) => {
                permit.forget();
                Admission::Seat(self.claim(client).seat())
            }
            Err(_) if self.has_less_than_its_share(client) => Admission::Wait,
            Err(_) => Admission::Refuse,
        }
    }

    /// The next seat that comes back once all who wait already have theirs.
    pub async fn next_free(self: &Arc<Self>, client: Client) -> Seat {
        let claim = self.claim(client);
        self.free.acquire().await.expect("seats are never done away with").forget();
        claim.seat()
    }

    /// How many there are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many are taken now.
    pub fn taken(&self) -> usize {
        self.limit - self.free.available_permits()
    }

    /// Most taken at once since this was last called.
    pub fn take_peak(&self) -> usize {
        self.peak.swap(self.taken(), Ordering::Relaxed)
    }

    fn claim(self: &Arc<Self>, client: Client) -> Claim {
        let mut claims = self.lock();
        match claims.iter_mut().find(|(other, _)| *other == client) {
            Some((_, own)) => *own += 1,
            None => claims.push((client, 1)),
        }
        Claim { client, seats: Arc::clone(self), has_seat: false }
    }

    /// Those who have a claim share alike, and what cannot be divided is everybody's.
    fn has_less_than_its_share(&self, client: Client) -> bool {
        let claims = self.lock();
        let own = claims.iter().find(|(other, _)| *other == client).map_or(0, |(_, own)| *own);
        own < self.limit.div_ceil(claims.len().max(1))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Client, usize)>> {
        // Each change is one number, so a panic elsewhere leaves the counts right.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// With the seat that its request was given.
    fn seat(mut self) -> Seat {
        self.has_seat = true;
        let taken = self.seats.taken();
        if taken > self.seats.peak.load(Ordering::Relaxed) {
            self.seats.peak.fetch_max(taken, Ordering::Relaxed);
        }
        Seat { _claim: self }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.seats.lock();
        if let Some(place) = claims.iter().position(|(client, _)| *client == self.client) {
            claims[place].1 -= 1;
            if claims[place].1 == 0 {
                claims.swap_remove(place);
            }
        }
        drop(claims);
        // The claim is given up before the seat is passed on.
        if self.has_seat {
            self.seats.free.add_permits(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn there_are_as_many_as_the_limit_says() {
        for limit in [1, 2, 200] {
            let seats = Arc::new(Seats::new(limit));
            let taken: Vec<_> = (0..limit).map(|_| seats.admit(None)).collect();
            assert!(taken.iter().all(|admission| matches!(admission, Admission::Seat(_))));
            assert!(matches!(seats.admit(None), Admission::Refuse));
            assert_eq!((seats.taken(), seats.take_peak()), (limit, limit));
            drop(taken);
            assert_eq!(seats.taken(), 0);
            assert!(matches!(seats.admit(None), Admission::Seat(_)));
        }
    }

    /// What a future has to say now.
    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn pod(number: u8) -> Client {
        Client::from(IpAddr::from([10, 0, 0, number]))
    }

    /// So many of them.
    fn fill(seats: &Arc<Seats>, client: Client, count: usize) -> Vec<Seat> {
        let one = |_| match seats.admit(client) {
            Admission::Seat(seat) => seat,
            other => panic!("a free seat, and not {other:?}"),
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn one_client_may_have_all_and_is_then_refused() {
        let seats = Arc::new(Seats::new(200));
        let _all = fill(&seats, pod(1), 200);
        assert!(matches!(seats.admit(pod(1)), Admission::Refuse));
    }

    #[test]
    fn who_has_less_than_its_share_may_wait() {
        let seats = Arc::new(Seats::new(10));
        let (_most, _few) = (fill(&seats, pod(1), 7), fill(&seats, pod(2), 3));
        for (client, may_wait) in [(pod(1), false), (pod(2), true), (pod(3), true)] {
            assert_eq!(matches!(seats.admit(client), Admission::Wait), may_wait, "{client:?}");
        }
    }

    /// Or a client could fill the queue that it may not fill the seats from.
    #[test]
    fn who_waits_has_a_claim_until_it_gives_up() {
        let seats = Arc::new(Seats::new(4));
        let _most = fill(&seats, pod(1), 4);
        {
            let (mut one, mut other) = (pin!(seats.next_free(pod(2))), pin!(seats.next_free(pod(2))));
            assert!(now(one.as_mut()).is_pending() && now(other.as_mut()).is_pending());
            assert!(matches!(seats.admit(pod(2)), Admission::Refuse), "two of four are its share");
        }
        assert!(matches!(seats.admit(pod(2)), Admission::Wait));
        assert_eq!(seats.lock().len(), 1, "nothing is kept of a client that has nothing");
    }

    #[test]
    fn a_seat_that_comes_back_is_for_the_one_that_waits() {
        let seats = Arc::new(Seats::new(2));
        let mut all = fill(&seats, pod(1), 2);
        let mut waiting = pin!(seats.next_free(pod(2)));
        assert!(now(waiting.as_mut()).is_pending());
        all.pop();
        assert!(matches!(seats.admit(pod(1)), Admission::Refuse), "its last seat is spoken for");
        let Poll::Ready(_seat) = now(waiting) else { panic!("it is there") };
        assert_eq!(seats.taken(), 2);
    }

    #[test]
    fn the_peak_is_of_the_time_since_it_was_last_asked_for() {
        let seats = Arc::new(Seats::new(3));
        let (one, two) = (seats.admit(None), seats.admit(None));
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
}
