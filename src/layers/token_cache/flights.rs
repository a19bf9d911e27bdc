//! [`Flights`]: limits concurrent token fetches, and shares them between clients.
//!
//! There is one pool for tokens that requests wait for and one for refreshes, so neither delays the other, and each
//! twice: for the node's tokens, and for those of workloads. In each pool, the flights under way are shared between
//! clients by [`Shares`]:
//!
//! - While there is room, a flight begins immediately.
//! - When a flight ends, the client with the fewest flights under way is next; each client's flights begin in order.
//!   Among clients with equally many, the proxy itself is first, because every pod uses the default account's token.
//! - A client that holds clearly less than the largest holder waits at most [`SLOW_AFTER`] behind slow flights. Then
//!   the oldest flight that has taken that long, and for which only the largest holder waits, is given up.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::shares::{Availability, Client, Shares};

/// Maximum concurrent fetches of the node's tokens, over all keys.
pub const MAX_FETCHES: usize = 16;

/// Maximum concurrent fetches that requests wait for. The rest of [`MAX_FETCHES`] is reserved for refreshes. Neither
/// kind uses the other's part.
pub(super) const MAX_DEMANDED_FETCHES: usize = 12;

/// Maximum concurrent fetches of workloads' tokens that requests wait for, and others. Each is a chain of requests to
/// other servers than the node's. When a node starts, each of some hundred workloads needs one within 2.5 s.
pub(super) const MAX_DEMANDED_EXCHANGES: usize = 24;
pub(super) const MAX_RENEWED_EXCHANGES: usize = 8;

/// A flight that has taken this long may be given up for another client. The server needs a few ms for a token that it
/// has cached, and some 100 ms for a new one.
const SLOW_AFTER: Duration = Duration::from_millis(200);

/// Something that is fetched, and for which clients wait.
pub(super) trait Waited: Debug + Send + Sync {
    /// Whether no client waits for it, or only this one.
    fn no_other_client_waits(&self, client: Client) -> bool;
}

/// The flights under way, and the queue.
#[derive(Debug)]
pub(super) struct Flights(Mutex<State>);

#[derive(Debug)]
struct State {
    shares: Shares,
    /// Flights under way, the oldest first.
    flying: Vec<Ticket>,
    /// Waiting flights, by client. No queue is empty.
    queues: Vec<(Client, VecDeque<Ticket>)>,
    next: u64,
}

#[derive(Debug)]
struct Ticket {
    id: u64,
    client: Client,
    entry: Arc<dyn Waited>,
    /// Notified when the flight may begin, and when it is given up.
    called: Arc<Notify>,
    /// When the flight began.
    began: Instant,
    /// The flight for which this one was given up. It begins as soon as this one has ended.
    heir: Option<u64>,
}

/// A place in the queue, and then the permit to fetch a token. Released on drop.
#[derive(Debug)]
pub(super) struct Flight<'a> {
    flights: &'a Flights,
    id: u64,
    called: Arc<Notify>,
}

impl Flights {
    /// Creates a pool of at most this many concurrent flights.
    pub(super) fn new(limit: usize) -> Self {
        let shares = Shares::new(limit);
        Self(Mutex::new(State { shares, flying: Vec::with_capacity(limit), queues: Vec::new(), next: 0 }))
    }

    /// Waits until the flight may begin. It is charged to `client`: the first that waits for it, or the entry's holder.
    pub(super) async fn begin(&self, client: Client, entry: Arc<dyn Waited>) -> Flight<'_> {
        let called = Arc::<Notify>::default();
        let began = Instant::now();
        let (id, mut may_take_over) = {
            let mut state = self.lock();
            let id = state.next;
            state.next += 1;
            let room = state.shares.room_for(client, 1);
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
        while self.lock().place_in_queue(id).is_some() {
            if !may_take_over {
                flight.called.notified().await;
            } else if timeout(SLOW_AFTER, flight.called.notified()).await.is_err() {
                may_take_over = self.take_over(id, client);
            }
        }
        flight
    }

    /// Gives up a slow flight of the largest holder for a waiting one. Returns whether to try again later.
    fn take_over(&self, id: u64, client: Client) -> bool {
        let mut state = self.lock();
        let Availability::From(largest) = state.shares.room_for(client, 1) else { return false };
        let now = Instant::now();
        let may_be_given_up = |ticket: &&mut Ticket| {
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
        self.lock().flying.iter().any(|ticket| ticket.id == id && ticket.heir.is_none())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn takes_off(&mut self, ticket: Ticket) {
        self.shares.take(ticket.client, 1);
        self.flying.push(Ticket { began: Instant::now(), ..ticket });
    }

    fn queue(&mut self, ticket: Ticket) {
        match self.queues.iter_mut().find(|(client, _)| *client == ticket.client) {
            Some((_, queue)) => queue.push_back(ticket),
            None => self.queues.push((ticket.client, VecDeque::from([ticket]))),
        }
    }

    /// Index of the queue, and index in it.
    fn place_in_queue(&self, id: u64) -> Option<(usize, usize)> {
        // IDs increase, so every queue is sorted by them.
        let at = |queue: &VecDeque<Ticket>| queue.binary_search_by_key(&id, |ticket| ticket.id).ok();
        self.queues.iter().enumerate().find_map(|(index, (_, queue))| Some((index, at(queue)?)))
    }

    fn leave_queue(&mut self, id: u64) -> Option<Ticket> {
        let (index, place) = self.place_in_queue(id)?;
        let ticket = self.queues[index].1.remove(place);
        if self.queues[index].1.is_empty() {
            self.queues.swap_remove(index);
        }
        ticket
    }

    /// The first flight in the queue of the client with the fewest under way. Among such clients, the proxy's own, or
    /// else the oldest.
    fn next(&self) -> Option<u64> {
        let first = |(client, queue): &(Client, VecDeque<Ticket>)| {
            Some((self.shares.held_by(*client), client.is_some(), queue.front()?.id))
        };
        self.queues.iter().filter_map(first).min().map(|(_, _, id)| id)
    }

    /// Removes a flight that has ended, and begins the next.
    fn landed(&mut self, landed: &Ticket) {
        self.shares.give_back(landed.client, 1);
        let heir = landed.heir.and_then(|id| self.leave_queue(id));
        let Some(next) = heir.or_else(|| self.next().and_then(|id| self.leave_queue(id))) else { return };
        next.called.notify_one();
        self.takes_off(next);
    }
}

impl Flight<'_> {
    /// Waits until the flight is given up for another client.
    pub(super) async fn given_up(&self) {
        // The first notification may still be the one that let the flight begin.
        while self.flights.is_wanted(self.id) {
            self.called.notified().await;
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.flights.lock();
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
    use crate::clock::BootTime;
    use crate::layers::token_cache::entry::Entry;
    use crate::tokens::TokenKey;

    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "the proxy itself is a client, too")]
    fn pod(number: u8) -> Client {
        Some([10, 0, 0, number].into())
    }

    fn entry(client: Client) -> Arc<Entry> {
        Arc::new(Entry::new(TokenKey::default_account(), client, BootTime::now()))
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
        let state = flights.lock();
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
        let (a, b) = (entry(pod(1)), entry(pod(2)));
        a.joined_by(pod(1));
        a.joined_by(pod(3));
        let held = (flights.begin(pod(1), Arc::clone(&a) as _).await, flights.begin(pod(1), Arc::clone(&a) as _).await);
        let mut other = Box::pin(flights.begin(pod(2), Arc::clone(&b) as _));
        assert!(timeout(Duration::from_secs(60), &mut other).await.is_err());
        drop(held);
        drop(other.await);
    }
}
