//! [`Room`]: memory for large responses, shared by all clients.
//!
//! A response that is buffered as a whole is charged to the requesting client, in bytes, until its last byte
//! has been written or dropped. Three kinds of response are buffered: bodies of up to 32 KiB, which must be
//! complete before the first byte is sent (`upstream::body`), trees that are redacted (`layers::conceal`),
//! and values seen by a watch (`layers::hanging`).
//!
//! # Order of requests
//!
//! - A single client may use all of it.
//! - When there is not enough, requests queue for up to [`UPSTREAM_TIMEOUT`]. The client that holds least goes first;
//!   clients that hold the same take turns. No request overtakes the first in the queue, however large its response is,
//!   so a client that holds little waits only until the responses of others are read.
//! - While a request waits, connections of the client that holds most are closed if their responses were sent
//!   250 ms ago and are not being read. If there are none, the same applies to all clients. So a client that
//!   does not read, or reads slowly, cannot block others.
//! - A body that need not be buffered does not wait. It is streamed instead.
//!
//! [`Shares::room_for`] does not fit here, because it compares items of equal size.
//!
//! # Why there is no deadlock
//!
//! Redaction needs memory twice: for the original response and for the redacted one. Originals may fill only
//! half of the room. The other half is for redacted responses, which are released as soon as clients read
//! them. A request that needs both takes both at once.

mod readers;
mod whole;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::Overload;
use crate::failure::UPSTREAM_TIMEOUT;
use crate::shares::{Client, Shares};
use base::hook::Hook;

use readers::Readers;
pub use whole::Whole;

/// Maximum size of a response that needs no room, in bytes, for requests that hold a seat until the response is read:
/// at most 1.6 MiB for 200 seats.
pub const SMALL_BYTES: usize = 8 * 1024;

/// The same, for requests without a seat. Seats are released at the same size.
pub const SMALL_BYTES_WITHOUT_SEAT: usize = 1024;

/// Interval at which the first request in the queue searches for connections that do not read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Closes those connections with these peers that do not read. Returns `false` if all of them are reading.
pub type CutUnread = Hook<dyn Fn(&[SocketAddr]) -> bool + Send + Sync>;

/// Memory for large responses.
#[derive(Debug)]
pub struct Room {
    limit: usize,
    cut_unread: CutUnread,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    shares: Shares,
    /// Bytes in use by original responses.
    sent: usize,
    next: u64,
    waiting: Vec<Waiting>,
    readers: Readers,
}

/// Amount of room that a response needs, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// For the original response.
    pub sent: usize,
    /// For the response made from it.
    pub made: usize,
}

/// A queued request.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// The client's position among clients that hold the same amount: behind all clients that were waiting when it was
    /// last served.
    turn: u64,
    account: Account,
    amount: Amount,
    granted: oneshot::Sender<Charge>,
}

/// The client to charge. The proxy's own requests have no peer.
#[derive(Debug, Clone)]
pub struct Account {
    room: Arc<Room>,
    peer: Option<SocketAddr>,
}

/// Room in use. Released on drop.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    amount: Amount,
}

/// The place of a request in the queue. Dropping it cancels the request.
struct Place<'a> {
    number: u64,
    room: &'a Room,
}

impl Amount {
    fn total(self) -> usize {
        self.sent.saturating_add(self.made)
    }
}

impl Room {
    /// Creates room of this many bytes in total. Half of it is the maximum size of a response that can be redacted or
    /// watched.
    pub fn new(limit: usize, cut_unread: CutUnread) -> Arc<Self> {
        let state =
            State { shares: Shares::new(limit), sent: 0, next: 0, waiting: Vec::new(), readers: Readers::default() };
        Arc::new(Self { limit, cut_unread, state: Mutex::new(state) })
    }

    /// The account of the client at this peer.
    pub fn account(self: &Arc<Self>, peer: Option<SocketAddr>) -> Account {
        Account { room: Arc::clone(self), peer }
    }

    /// That of these clients that holds least, the first among equals.
    pub fn smallest(&self, clients: impl Iterator<Item = Client>) -> Option<Client> {
        let state = self.state.lock();
        clients.min_by_key(|client| state.shares.held_by(*client))
    }

    /// Maximum size of a response that can be redacted or watched, in bytes.
    pub fn largest(&self) -> usize {
        self.limit / 2
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.state.lock().shares.used()
    }

    /// Total room, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn fits(&self, state: &State, amount: Amount) -> bool {
        let used = state.shares.used().saturating_add(amount.total());
        used <= self.limit && (amount.sent == 0 || state.sent.saturating_add(amount.sent) <= self.largest())
    }

    fn give_back(&self, client: Client, amount: Amount) {
        let mut state = self.state.lock();
        state.shares.give_back(client, amount.total());
        state.sent -= amount.sent;
        drop(state);
        self.serve_line();
    }

    /// Gives room to queued requests in order, while there is enough.
    fn serve_line(&self) {
        while let Some(Waiting { account, amount, granted, .. }) = self.next_served() {
            // If the request was cancelled concurrently, the charge is dropped here, which releases its room.
            drop(granted.send(Charge { account, amount }));
        }
    }

    fn next_served(&self) -> Option<Waiting> {
        let mut state = self.state.lock();
        let first = state.first_in_line()?;
        if !self.fits(&state, state.waiting[first].amount) {
            return None;
        }
        let waiting = state.waiting.swap_remove(first);
        state.ends_turn_of(waiting.account.client());
        state.take(waiting.account.client(), waiting.amount);
        Some(waiting)
    }

    /// Closes connections that do not read, if this request is the first in the queue.
    fn make_room_for(&self, number: u64) {
        let (of_largest, all) = {
            let state = self.state.lock();
            if state.first_in_line().is_none_or(|first| state.waiting[first].number != number) {
                return;
            }
            let largest = state.shares.largest().map(|(client, _)| client);
            state.readers.slow(largest)
        };
        let cut = |peers: &[SocketAddr]| !peers.is_empty() && (self.cut_unread)(peers);
        let _ = cut(&of_largest) || cut(&all);
    }
}

impl State {
    fn take(&mut self, client: Client, amount: Amount) {
        self.shares.take(client, amount.total());
        self.sent += amount.sent;
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Moves the client's other requests behind all clients that are waiting now.
    fn ends_turn_of(&mut self, client: Client) {
        let turn = self.number();
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.account.client() == client) {
            waiting.turn = turn;
        }
    }

    /// Index of the request that goes first.
    fn first_in_line(&self) -> Option<usize> {
        let held = |waiting: &Waiting| self.shares.held_by(waiting.account.client());
        let order = |waiting: &Waiting| (held(waiting), waiting.turn, waiting.number);
        (0..self.waiting.len()).min_by_key(|at| order(&self.waiting[*at]))
    }
}

impl Account {
    /// The client charged.
    pub fn client(&self) -> Client {
        self.peer.map(|peer| peer.ip().to_canonical())
    }

    /// The peer address of the client's connection.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Maximum size of a response that can be buffered as a whole, in bytes.
    pub fn largest(&self) -> usize {
        self.room.largest()
    }

    /// Takes room if there is enough and no request is waiting.
    pub fn try_take(&self, amount: Amount) -> Option<Charge> {
        let mut state = self.room.state.lock();
        if !state.waiting.is_empty() || !self.room.fits(&state, amount) {
            return None;
        }
        state.take(self.client(), amount);
        drop(state);
        Some(Charge { account: self.clone(), amount })
    }

    /// Takes room, and waits for it at most as long as the upstream may take to respond.
    pub async fn take(&self, amount: Amount) -> Result<Charge, Overload> {
        timeout(UPSTREAM_TIMEOUT, self.wait_for(amount)).await.ok().flatten().ok_or(Overload::LargeAnswers)
    }

    async fn wait_for(&self, amount: Amount) -> Option<Charge> {
        let (granted, mut grant) = oneshot::channel();
        let place = {
            let mut state = self.room.state.lock();
            let number = state.number();
            state.waiting.push(Waiting { number, turn: number, account: self.clone(), amount, granted });
            Place { number, room: &self.room }
        };
        self.room.serve_line();
        loop {
            self.room.make_room_for(place.number);
            if let Ok(granted) = timeout(POLL_INTERVAL, &mut grant).await {
                return granted.ok();
            }
        }
    }
}

impl Charge {
    /// Releases unneeded room.
    pub fn reduce_to(&mut self, amount: Amount) {
        let less = Amount {
            sent: self.amount.sent.saturating_sub(amount.sent),
            made: self.amount.made.saturating_sub(amount.made),
        };
        self.amount = Amount { sent: self.amount.sent - less.sent, made: self.amount.made - less.made };
        self.account.room.give_back(self.account.client(), less);
    }

    /// Attaches the room to bytes sent to the client charged.
    pub fn hold(self, bytes: impl Into<Bytes>) -> Bytes {
        let peer = self.account.peer;
        Arc::new(self).read_by(peer, bytes.into())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.room.give_back(self.account.client(), self.amount);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.room.state.lock();
        let before = state.waiting.len();
        state.waiting.retain(|waiting| waiting.number != self.number);
        let has_given_up = state.waiting.len() < before;
        drop(state);
        if has_given_up {
            // It may have blocked others that need less.
            self.room.serve_line();
        }
    }
}

#[cfg(test)]
mod tests;
