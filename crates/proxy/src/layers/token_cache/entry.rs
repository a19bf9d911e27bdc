//! [`Entry`]: the cached token of one key, and the clients that wait for it.
//!
//! The keeper writes the state; callers read it and register for a flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::known::{Known, Lookup};
use crate::flights::Waited;
use crate::shares::Client;
use crate::tokens::TokenKey;
use base::clock::BootTime;

/// Memory of an entry besides its key and its token: its fields, its slot in the map, and its keeper's task. Measured
/// as the growth of resident memory with 10,000 entries: 1.7 to 2.3 KiB each.
pub(super) const ENTRY_BYTES: usize = 2 * 1024;

/// Memory of a token and its last response body of common size (1 KiB each). Every entry is charged for it from
/// the start, so that an entry grows only if its token is larger.
const MIN_TOKEN_BYTES: usize = 2 * 1024 + 256;

/// The token of one key, and the clients that wait for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Arc<TokenKey>,
    /// The client charged for the entry, or `None` if the entry is the proxy's own.
    pub(super) holder: Client,
    pub(super) known: watch::Sender<Known>,
    /// Wakes the keeper when a client waits for a flight.
    pub(super) demand: Notify,
    /// Whether a request has needed a flight since the last one ended.
    pub(super) is_wanted: AtomicBool,
    /// The clients that wait for the requested or current flight.
    crowd: Mutex<Crowd>,
    /// Wakes the keeper when the entry is evicted.
    pub(super) evicted: Notify,
    /// Time of the last request, in nanoseconds of [`BootTime`].
    pub(super) used: AtomicU64,
    /// Number of requests.
    pub(super) asked: AtomicU64,
    /// Bytes charged to the holder. Written under the store's lock.
    pub(super) weight: AtomicUsize,
}

/// The clients that wait for a flight. A client that has stopped waiting still counts until the flight has ended.
#[derive(Debug, Default)]
enum Crowd {
    #[default]
    Nobody,
    /// One client.
    One(Client),
    /// The first client, and others.
    Several(Client),
}

/// An entry as operators see it. Never contains the token itself.
#[derive(Debug, Clone)]
pub struct TokenRow {
    /// Account and parameters.
    pub key: Arc<TokenKey>,
    /// Age of the token, and the whole seconds until it expires. `None` if there is no token.
    pub token: Option<(Duration, u32)>,
    /// Number of requests since the entry was created.
    pub asked: u64,
}

impl Waited for Entry {
    fn no_other_client_waits(&self, client: Client) -> bool {
        match *self.crowd.lock() {
            Crowd::Nobody => true,
            Crowd::One(only) => only == client,
            Crowd::Several(_) => false,
        }
    }
}

impl Entry {
    pub(super) fn new(key: TokenKey, client: Client, now: BootTime) -> Self {
        let holder = client.filter(|_| !key.is_default_account());
        Self {
            key: Arc::new(key),
            holder,
            known: watch::Sender::default(),
            demand: Notify::new(),
            is_wanted: AtomicBool::new(false),
            crowd: Mutex::default(),
            evicted: Notify::new(),
            used: AtomicU64::new(now.as_nanos()),
            asked: AtomicU64::new(0),
            weight: AtomicUsize::new(0),
        }
    }

    /// Whether the entry is the proxy's own, which is kept even if no client requests it.
    pub(super) fn is_own(&self) -> bool {
        self.holder.is_none()
    }

    /// Looks up the token for a caller. Counts as a use.
    pub(super) fn find(&self, now: BootTime) -> Lookup {
        self.used.store(now.as_nanos(), Relaxed);
        self.asked.fetch_add(1, Relaxed);
        self.known.borrow().find(now)
    }

    /// Joins the clients that wait, and requests a flight from the keeper. Returns a receiver of the result, and
    /// whether this was the first request for the flight. Subscribes before requesting, because a flight without
    /// receivers is not begun.
    pub(super) fn join(&self, client: Client) -> (watch::Receiver<Known>, bool) {
        let known = self.known.subscribe();
        self.joined_by(client);
        self.demand.notify_one();
        (known, !self.is_wanted.swap(true, Relaxed))
    }

    pub(super) fn joined_by(&self, client: Client) {
        let mut crowd = self.crowd.lock();
        *crowd = match *crowd {
            Crowd::Nobody => Crowd::One(client),
            Crowd::One(first) if first == client => Crowd::One(first),
            Crowd::One(first) | Crowd::Several(first) => Crowd::Several(first),
        };
    }

    /// Records that a flight has ended.
    pub(super) fn landed(&self) {
        *self.crowd.lock() = Crowd::Nobody;
        self.is_wanted.store(false, Relaxed);
    }

    /// The client that a flight is charged to: the first one that waits, otherwise the holder.
    pub(super) fn flies_for(&self) -> Client {
        match *self.crowd.lock() {
            Crowd::Nobody => self.holder,
            Crowd::One(first) | Crowd::Several(first) => first,
        }
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.known.receiver_count() > 0
    }

    pub(super) fn unused_for(&self, now: BootTime) -> Duration {
        now.since(BootTime::from_nanos(self.used.load(Relaxed)))
    }

    /// Memory of the entry, in bytes.
    pub(super) fn weigh(&self) -> usize {
        ENTRY_BYTES + self.key.heap() + self.known.borrow().heap().max(MIN_TOKEN_BYTES)
    }

    pub(super) fn row(&self, asked: u64, now: BootTime) -> TokenRow {
        let known = self.known.borrow();
        let age = known.token.as_ref().map(|token| now.since(token.since));
        TokenRow { key: Arc::clone(&self.key), token: age.zip(known.seconds_left(now)), asked }
    }
}
