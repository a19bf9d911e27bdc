//! [`Open`]: the open connections, their charges, and the choice of the one that gives way.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::turned_away::TurnedAway;
use crate::memory::OPEN_BYTES;
use crate::server::activity::Activity;
use crate::server::arrival::Arrival;
use crate::shares::{Availability, Client, Shares};

/// A client that has read nothing for this long is considered not reading. Clients on the same node normally
/// read immediately.
pub(super) const UNREAD_DELAY: Duration = Duration::from_millis(5);

/// While others hold anything, the client that holds most leaves this part (1/16) of the places and of the memory to
/// them.
const RESERVED_PART: usize = 16;

#[derive(Debug)]
pub(super) struct Open {
    next: u64,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) places: Shares,
    pub(super) memory: Shares,
    pub(super) turned_away: TurnedAway,
    /// Bytes that arrived before this time have been read ([`Connections::meanwhile`](super::Connections::meanwhile)).
    pub(super) read_until: Instant,
    /// A connection is closed for a client that holds as much only if it made no progress for this long.
    pub(super) protection: Duration,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) arrival: Arrival,
    pub(super) client: Client,
    pub(super) activity: Arc<Activity>,
    /// Its current charge, in bytes.
    pub(super) bytes: usize,
    /// `None` between the admission and the start of the connection.
    pub(super) task: Option<AbortHandle>,
}

/// The connection to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) number: u64,
    pub(super) since: Instant,
    /// It made no progress. Otherwise it has a request in flight.
    pub(super) is_useless: bool,
    pub(super) client: Client,
    /// The charge in bytes.
    bytes: usize,
}

/// The connection that needs room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asks {
    pub(super) client: Client,
    pub(super) by: Asker,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Asker {
    /// A connection that arrived at this time.
    Newcomer(Instant),
    /// An admitted connection, which must not close itself.
    Admitted(u64),
}

/// A limited resource.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resource {
    Places,
    Memory,
}

impl Victim {
    /// Amount of a resource that closing the connection frees.
    pub(super) fn holds(&self, resource: Resource) -> usize {
        match resource {
            Resource::Places => 1,
            Resource::Memory => self.bytes,
        }
    }
}

impl Asks {
    /// The number of the admitted connection.
    pub(super) fn number(&self) -> Option<u64> {
        match self.by {
            Asker::Newcomer(_) => None,
            Asker::Admitted(number) => Some(number),
        }
    }
}

impl Connection {
    /// Start of the time in which the client has not been reading, if that was at least [`UNREAD_DELAY`] when the event loop
    /// [last](Open::read_until) looked.
    pub(super) fn unread_since(&self, read_until: Instant) -> Option<Instant> {
        self.activity.blocked_for(UNREAD_DELAY, read_until)
    }
}

impl Open {
    /// Limits the number of connections and their total charge in bytes.
    pub(super) fn new(limit: usize, bytes: usize, protection: Duration) -> Self {
        Self {
            next: 0,
            connections: HashMap::new(),
            places: Shares::new(limit),
            memory: Shares::new(bytes),
            turned_away: TurnedAway::default(),
            read_until: Instant::now(),
            protection,
        }
    }

    /// Inserts a connection and returns its number. There must be room for it.
    pub(super) fn insert(&mut self, arrival: Arrival, client: Client, activity: &Arc<Activity>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.places.take(client, 1);
        self.memory.take(client, OPEN_BYTES);
        let connection =
            Connection { number, arrival, client, activity: Arc::clone(activity), bytes: OPEN_BYTES, task: None };
        self.connections.insert(number, connection);
        number
    }

    /// The charge down to which closing connections may help a process that is short of memory: a quarter of the limit.
    pub(super) fn least(&self) -> usize {
        self.memory.limit() / 4
    }

    /// Whether this client may have no new connection while the process is very short of memory: it holds most, and closing
    /// connections may help.
    pub(super) fn holds_too_much(&self, client: Client) -> bool {
        let is_largest = |(largest, _)| largest == client;
        self.memory.used() > self.least() && self.memory.largest().is_some_and(is_largest)
    }

    /// Whether there is room. The client that holds most leaves a [part](RESERVED_PART) to others, so that no connection
    /// need be closed for them. Newcomers leave some memory to requests; otherwise a burst of newcomers would stop requests
    /// from finishing and making room.
    pub(super) fn room(&self, resource: Resource, asks: Asks, amount: usize) -> Availability {
        let shares = match resource {
            Resource::Places => &self.places,
            Resource::Memory => &self.memory,
        };
        if shares.used().saturating_add(amount) <= shares.limit() / 4 * 3 {
            // More is left than the reserves below. Finding the client that holds most requires a scan of all clients.
            return Availability::Free;
        }
        let reserve = |holds_most| {
            // A single client may take everything.
            let for_others = if holds_most && shares.holders() > 1 { shares.limit() / RESERVED_PART } else { 0 };
            let for_requests = match (resource, asks.number()) {
                (Resource::Memory, None) if holds_most => shares.limit() / 8,
                (Resource::Memory, None) => shares.limit() / RESERVED_PART / 2,
                _ => 0,
            };
            for_others + for_requests
        };
        match shares.room_beside(asks.client, amount, reserve) {
            // A client with a single connection has no more than it needs, whatever the charge.
            Availability::From(largest) if self.places.held_by(largest) <= 1 => Availability::None,
            availability => availability,
        }
    }

    /// Whether a connection of this client is waiting for a turn: it has sent something, or is leaving.
    pub(super) fn awaits_turn(&self, client: Client) -> bool {
        self.connections.values().any(|connection| connection.client == client && connection.activity.awaits_turn())
    }

    /// The connection of a client to close for another client: one that makes no progress, otherwise the oldest
    /// request.
    pub(super) fn victim_of(&self, client: Client) -> Option<Victim> {
        let oldest_request = || {
            let of_client =
                |connection: &Connection| (connection.client == client).then(|| connection.activity.moved_at());
            self.oldest(of_client).map(|victim| Victim { is_useless: false, ..victim })
        };
        self.useless_but(None, Some(client)).or_else(oldest_request)
    }

    /// The connection to close where no client holds clearly more than others: one that has made no progress for a
    /// second. Otherwise the oldest request of any client, if the requesting client holds nothing else. Without this, a
    /// pod with many addresses, each of which holds little, could lock out others with hanging requests.
    ///
    /// A connection that was silent for less than a second may be between two requests, or its request may be unread.
    pub(super) fn victim_among_equals(&self, asks: Asks) -> Option<Victim> {
        let useless = self.useless_but(asks.number(), None);
        let useless = useless.filter(|victim| victim.since.elapsed() >= self.protection);
        if useless.is_some() || !self.holds_nothing_else(asks) {
            return useless;
        }
        let oldest = self.oldest(|connection| {
            let may_go = connection.client != asks.client && connection.activity.is_answering();
            may_go.then(|| connection.activity.moved_at())
        })?;
        Some(Victim { is_useless: false, ..oldest })
    }

    /// Whether the requesting client has no other connection.
    pub(super) fn holds_nothing_else(&self, asks: Asks) -> bool {
        self.places.held_by(asks.client) <= usize::from(asks.number().is_some())
    }

    /// The connection, of this client or of any, that has made no progress for longest.
    pub(super) fn useless_but(&self, asks: Option<u64>, client: Option<Client>) -> Option<Victim> {
        self.oldest(|connection| {
            let may_go = client.is_none_or(|client| client == connection.client) && Some(connection.number) != asks;
            if may_go { connection.activity.useless_since() } else { None }
        })
    }

    /// The connection with the earliest time. Scans all connections, which takes some microseconds for a thousand, and
    /// happens only when there is no room.
    pub(super) fn oldest(&self, since: impl Fn(&Connection) -> Option<Instant>) -> Option<Victim> {
        let started = self.connections.values().filter(|connection| connection.task.is_some());
        let victims = started.filter_map(|connection| {
            let Connection { number, client, bytes, .. } = *connection;
            Some(Victim { number, since: since(connection)?, is_useless: true, client, bytes })
        });
        victims.min_by_key(|victim| (victim.since, victim.number))
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        self.places.give_back(connection.client, 1);
        self.memory.give_back(connection.client, connection.bytes);
        Some(connection)
    }

    /// Changes the charge of a connection.
    pub(super) fn weigh(&mut self, number: u64, bytes: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        self.memory.give_back(connection.client, connection.bytes);
        self.memory.take(connection.client, bytes);
        connection.bytes = bytes;
    }
}
