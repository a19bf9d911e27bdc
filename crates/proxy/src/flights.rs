//! `Flights`: limits concurrent fetches, and shares them between clients.
//!
//! The active flights are shared by [`Shares`]:
//!
//! - While there is room, a flight begins immediately.
//! - When a flight ends, the client with the fewest active flights is next; each client's flights begin in order. Among
//!   clients with equally many, the proxy itself is first, because every pod uses the default account's token.
//! - A client that holds clearly less than the largest holder waits at most `SLOW_AFTER` behind slow flights. Then the
//!   oldest flight that has taken that long, and for which only the largest holder waits, is given up.
//! - A pool may also limit the flights of each client.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::shares::{Availability, Shares};

/// Time after which a flight may be given up for another client. The server needs a few ms for a token that it has
/// cached, and about 100 ms for a new one.
const SLOW_AFTER: Duration = Duration::from_millis(200);

/// A fetched item that clients wait for.
pub trait Waited<T = IpAddr>: Debug + Send + Sync {
    /// Whether no client waits for it, or only this one.
    fn no_other_client_waits(&self, client: Option<T>) -> bool;
}

/// The active flights, and the queue. `T` identifies a client; `None` is the proxy itself.
#[derive(Debug)]
pub struct Flights<T = IpAddr>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    shares: Shares<T>,
    /// Maximum flights of one client.
    client_limit: usize,
    /// Active flights, the oldest first.
    flying: Vec<Ticket<T>>,
    /// Waiting flights, by client. No queue is empty.
    queues: Vec<(Option<T>, VecDeque<Ticket<T>>)>,
    next: u64,
}

#[derive(Debug)]
struct Ticket<T> {
    id: u64,
    client: Option<T>,
    entry: Arc<dyn Waited<T>>,
    /// Notified when the flight may begin, and when it is given up.
    called: Arc<Notify>,
    /// Time when the flight began.
    began: Instant,
    /// The flight for which this one was given up. It begins as soon as this one has ended.
    heir: Option<u64>,
}

/// First a place in the queue, then the permission to fetch. Released on drop.
#[derive(Debug)]
pub struct Flight<'a, T: Copy + Debug + PartialEq = IpAddr> {
    flights: &'a Flights<T>,
    id: u64,
    called: Arc<Notify>,
}

impl<T: Copy + Debug + PartialEq> Flights<T> {
    /// Creates a pool of at most `limit` concurrent flights.
    pub fn new(limit: usize) -> Self {
        Self::with_client_limit(limit, limit)
    }

    /// Creates a pool of at most `limit` concurrent flights in total, and `client_limit` of each client.
    pub fn with_client_limit(limit: usize, client_limit: usize) -> Self {
        let shares = Shares::new(limit);
        Self(Mutex::new(State { shares, client_limit, flying: Vec::new(), queues: Vec::new(), next: 0 }))
    }

    /// Waits until the flight may begin. It is charged to `client`: the first client that waits for it, or the entry's
    /// holder.
    pub async fn begin(&self, client: Option<T>, entry: Arc<dyn Waited<T>>) -> Flight<'_, T> {
        let called = Arc::<Notify>::default();
        let began = Instant::now();
        let (id, mut may_take_over) = {
            let mut state = self.0.lock();
            let id = state.next;
            state.next += 1;
            let room = state.room_for(client);
            let ticket = Ticket { id, client, entry, called: Arc::clone(&called), began, heir: None };
            if room == Availability::Free {
                state.takes_off(ticket);
            } else {
                state.queue(ticket);
            }
            (id, matches!(room, Availability::From(_)))
        };
        // From here on, dropping this future leaves the queue.
        let flight = Flight { flights: self, id, called };
        while self.0.lock().place_in_queue(id).is_some() {
            if !may_take_over {
                flight.called.notified().await;
            } else if timeout(SLOW_AFTER, flight.called.notified()).await.is_err() {
                may_take_over = self.take_over(id, client);
            }
        }
        flight
    }

    /// Gives up a slow flight of the largest holder for a waiting one. Returns whether to try again later.
    fn take_over(&self, id: u64, client: Option<T>) -> bool {
        let mut state = self.0.lock();
        let Availability::From(largest) = state.room_for(client) else { return false };
        let now = Instant::now();
        let may_be_given_up = |ticket: &&mut Ticket<T>| {
            ticket.client == largest
                && ticket.heir.is_none()
                && now >= ticket.began + SLOW_AFTER
                && ticket.entry.no_other_client_waits(largest)
        };
        let Some(given_up) = state.flying.iter_mut().find(may_be_given_up) else { return true };
        given_up.heir = Some(id);
        given_up.called.notify_one();
        false
    }

    fn is_wanted(&self, id: u64) -> bool {
        self.0.lock().flying.iter().any(|ticket| ticket.id == id && ticket.heir.is_none())
    }
}

impl<T: Copy + PartialEq> State<T> {
    fn room_for(&self, client: Option<T>) -> Availability<T> {
        if self.is_at_limit(client) { Availability::FromItself } else { self.shares.room_for(client, 1) }
    }

    fn is_at_limit(&self, client: Option<T>) -> bool {
        self.shares.held_by(client) >= self.client_limit
    }

    fn takes_off(&mut self, ticket: Ticket<T>) {
        self.shares.take(ticket.client, 1);
        self.flying.push(Ticket { began: Instant::now(), ..ticket });
    }

    fn queue(&mut self, ticket: Ticket<T>) {
        match self.queues.iter_mut().find(|(client, _)| *client == ticket.client) {
            Some((_, queue)) => queue.push_back(ticket),
            None => self.queues.push((ticket.client, VecDeque::from([ticket]))),
        }
    }

    /// Index of the queue, and index in it.
    fn place_in_queue(&self, id: u64) -> Option<(usize, usize)> {
        // IDs increase, so every queue is sorted by them.
        let at = |queue: &VecDeque<Ticket<T>>| queue.binary_search_by_key(&id, |ticket| ticket.id).ok();
        self.queues.iter().enumerate().find_map(|(index, (_, queue))| Some((index, at(queue)?)))
    }

    fn leave_queue(&mut self, id: u64) -> Option<Ticket<T>> {
        let (index, place) = self.place_in_queue(id)?;
        let ticket = self.queues[index].1.remove(place);
        if self.queues[index].1.is_empty() {
            self.queues.swap_remove(index);
        }
        ticket
    }

    /// The first flight in the queue of the client with the fewest active flights. Among such clients, the proxy's own,
    /// otherwise the oldest.
    fn next(&self) -> Option<u64> {
        let first = |(client, queue): &(Option<T>, VecDeque<Ticket<T>>)| {
            Some((self.shares.held_by(*client), client.is_some(), queue.front()?.id))
        };
        let may_begin = self.queues.iter().filter(|(client, _)| !self.is_at_limit(*client));
        may_begin.filter_map(first).min().map(|(_, _, id)| id)
    }

    /// Removes a flight that has ended, and begins the next one.
    fn landed(&mut self, landed: &Ticket<T>) {
        self.shares.give_back(landed.client, 1);
        let heir = landed.heir.and_then(|id| self.leave_queue(id));
        let Some(next) = heir.or_else(|| self.next().and_then(|id| self.leave_queue(id))) else { return };
        next.called.notify_one();
        self.takes_off(next);
    }
}

impl<T: Copy + Debug + PartialEq> Flight<'_, T> {
    /// Waits until the flight is given up for another client.
    pub async fn given_up(&self) {
        // The first notification may still be the one that began the flight.
        while self.flights.is_wanted(self.id) {
            self.called.notified().await;
        }
    }
}

impl<T: Copy + Debug + PartialEq> Drop for Flight<'_, T> {
    fn drop(&mut self) {
        let mut state = self.flights.0.lock();
        if let Some(place) = state.flying.iter().position(|ticket| ticket.id == self.id) {
            let landed = state.flying.remove(place);
            state.landed(&landed);
        } else {
            state.leave_queue(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::shares::Client;

    /// An item that these clients wait for.
    #[derive(Debug)]
    struct Entry(Vec<Client>);

    impl Waited for Entry {
        fn no_other_client_waits(&self, client: Client) -> bool {
            self.0.iter().all(|waiting| *waiting == client)
        }
    }

    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "the proxy itself is a client, too")]
    fn pod(number: u8) -> Client {
        Some([10, 0, 0, number].into())
    }

    fn entry(client: Client) -> Arc<Entry> {
        Arc::new(Entry(vec![client]))
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_with_the_fewest_flights_is_next() {
        let flights = Flights::new(2);
        let (a, b) = (entry(pod(1)), entry(pod(2)));
        let (first, second) =
            (flights.begin(pod(1), Arc::clone(&a) as _).await, flights.begin(pod(1), Arc::clone(&a) as _).await);
        let mut third = Box::pin(flights.begin(pod(1), Arc::clone(&a) as _));
        let mut fourth = Box::pin(flights.begin(pod(1), Arc::clone(&a) as _));
        let mut other = Box::pin(flights.begin(pod(2), Arc::clone(&b) as _));
        assert!(poll(&mut third).is_pending() && poll(&mut fourth).is_pending() && poll(&mut other).is_pending());
        drop(first);
        assert!(poll(&mut third).is_pending(), "its client has another under way");
        let other = other.await;
        drop(third);
        drop(second);
        let fourth = fourth.await;
        drop((fourth, other));
        let state = flights.0.lock();
        assert_eq!((state.shares.used(), state.queues.len(), state.flying.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_proxys_own_flight_is_next_among_equals() {
        let flights = Flights::new(1);
        let flying = flights.begin(pod(1), entry(pod(1)) as _).await;
        let mut other = Box::pin(flights.begin(pod(2), entry(pod(2)) as _));
        assert!(poll(&mut other).is_pending());
        let mut own = Box::pin(flights.begin(None, entry(None) as _));
        assert!(poll(&mut own).is_pending());
        drop(flying);
        let own = timeout(SLOW_AFTER, own).await.expect("it is next");
        assert!(poll(&mut other).is_pending(), "it came first, but is not the proxy's own");
        drop(own);
        drop(other.await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_flight_of_the_largest_holder_is_given_up_for_another_client() {
        let flights = Flights::new(2);
        let (a, b) = (entry(pod(1)), entry(pod(2)));
        let (first, second) =
            (flights.begin(pod(1), Arc::clone(&a) as _).await, flights.begin(pod(1), Arc::clone(&a) as _).await);
        let began = Instant::now();
        let mut other = Box::pin(flights.begin(pod(2), Arc::clone(&b) as _));
        tokio::select! {
            _ = &mut other => panic!("it began before the flight that is given up has ended"),
            () = first.given_up() => assert_eq!(began.elapsed(), SLOW_AFTER, "only a slow flight is given up"),
        }
        drop(first);
        let other = other.await;
        let mut stays = Box::pin(second.given_up());
        assert!(poll(&mut stays).is_pending());
        let mut more = Box::pin(flights.begin(pod(2), Arc::clone(&b) as _));
        assert!(timeout(Duration::from_secs(60), &mut more).await.is_err(), "both clients hold the same now");
        drop(other);
        drop(more.await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flight_that_other_clients_wait_for_is_not_given_up() {
        let flights = Flights::new(2);
        let (a, b) = (Arc::new(Entry(vec![pod(1), pod(3)])), entry(pod(2)));
        let held = (flights.begin(pod(1), Arc::clone(&a) as _).await, flights.begin(pod(1), Arc::clone(&a) as _).await);
        let mut other = Box::pin(flights.begin(pod(2), Arc::clone(&b) as _));
        assert!(timeout(Duration::from_secs(60), &mut other).await.is_err());
        drop(held);
        drop(other.await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_no_more_than_its_limit_and_leaves_the_rest_to_others() {
        let flights = Flights::with_client_limit(4, 2);
        let (a, b) = (entry(pod(1)), entry(pod(2)));
        let (first, second) =
            (flights.begin(pod(1), Arc::clone(&a) as _).await, flights.begin(pod(1), Arc::clone(&a) as _).await);
        let mut third = Box::pin(flights.begin(pod(1), a as _));
        assert!(poll(&mut third).is_pending(), "two of four places are free, and not for this client");
        let other = flights.begin(pod(2), b as _).await;
        drop(other);
        assert!(poll(&mut third).is_pending(), "another client's place is not for this one either");
        drop(first);
        drop((third.await, second));
        assert_eq!(flights.0.lock().shares.used(), 0);
    }
}
