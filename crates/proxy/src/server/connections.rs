//! [`Connections`]: limits the number and memory of connections, and decides which one to close when a limit
//! is reached.
//!
//! Two resources are limited: places (`--max-connections`) and bytes of memory. Both are shared between clients by the
//! rule of [`Shares`](crate::shares::Shares): until the limit is reached, any client may take more. Then the client
//! that holds most gives way to a client that holds clearly less, and the client that holds most may only replace its
//! own connections that make no progress.
//!
//! The connection to close is the one that has made no progress for longest: idle between requests, connected and
//! silent, still sending its head, or not reading its response. Only if the client that holds most has none of these is
//! its oldest request in flight cut. That is a hanging GET if there is one, because no other request takes long. Where
//! many clients each hold little, the oldest request in flight of any client gives way to a client that holds nothing
//! else, unless that client was [turned away](turned_away) a moment ago.
//!
//! A throttled process may read nothing for seconds. So a newcomer that can wait replaces a connection that has been
//! silent for a second only if the event loop has completed a turn since ([`Connections::meanwhile`]).
//!
//! So neither many idle clients nor a flood of slow heads or hanging requests can lock out a well-behaved
//! client.
//!
//! # Charge of a connection
//!
//! [`OPEN_BYTES`] once accepted, [`SERVING_BYTES`] more while it has hyper's state, and [`UNREAD_BYTES`] more while its
//! client does not read, each including kernel buffers, plus an incomplete head. Under cgroup v2 sockets are charged to
//! the control group, and bytes that clients send cannot be refused, so a connection is charged with a full receive
//! buffer from the start. A send buffer is full only if its client does not read; then other connections whose clients
//! do not read give way. A client with many connections is charged with full send buffers, read or not. While less than
//! three quarters of the memory is in use, idle connections keep hyper's state for a second, which makes the next
//! request cheaper. Above that, a connection has it only while it is being answered. New connections leave the last
//! eighth to requests.

mod open;
mod place;
mod room;
mod turned_away;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, sleep};

pub(super) use place::{Place, Reclaim, Serving};
pub(super) use room::NoRoom;

use open::{Asker, Asks, Connection, Open, Resource};

use super::activity::Activity;
use super::arrival::Arrival;
use super::large::LargeWrites;
use super::turns::Turns;
use crate::memory::{Level, OPEN_BYTES, Pressure, SERVING_BYTES, UNREAD_BYTES};
use crate::shares::Client;
use base::clock::BootTime;
use telemetry::Registry;
use telemetry::sampled::Sampled;
use telemetry::shedding::{Shed, Shedding};
use telemetry::table;

/// A newcomer that can wait does not replace a pod's connection that was accepted or made progress within this time before
/// the last turn of the event loop.
const NEWCOMER_PROTECTION: Duration = Duration::from_secs(1);

/// Under memory pressure, a connection younger than this is not closed for lack of progress, and a request in
/// flight does not give way to a client that holds nothing.
const MIN_CLOSE_AGE: Duration = Duration::from_millis(250);

/// Total charge from which connections drop hyper's state as soon as they are idle, however large the limit is: the
/// charge of 512 connections being served. Otherwise each of thousands would keep that state for a second after its response.
const CROWDED_BYTES: usize = 512 * (OPEN_BYTES + SERVING_BYTES + UNREAD_BYTES);

/// Intervals between checks of the control group's memory, without and with pressure.
const CALM_INTERVAL: Duration = Duration::from_millis(200);
const TENSE_INTERVAL: Duration = Duration::from_millis(10);

/// Minimum interval between log lines that connections cannot be accepted, of all doors together.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The open connections of all listeners.
#[derive(Debug)]
pub struct Connections {
    open: Mutex<Open>,
    /// More than three quarters of the memory, or [`CROWDED_BYTES`], are in use.
    is_crowded: AtomicBool,
    /// The process is short of memory, regardless of the connections' charges.
    is_pressed: AtomicBool,
    /// A search for clients that do not read waits for a turn of the event loop.
    looks: AtomicBool,
    pressure: Arc<Pressure>,
    accepted: IntCounter,
    /// Decides which client's task runs next.
    pub(super) turns: Arc<Turns>,
    pub(super) large_writes: Arc<LargeWrites>,
    pub(super) accept_errors: Sampled,
    pub(super) shedding: Arc<Shedding>,
}

/// The condition that a newcomer waits for before it replaces another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// The other has been silent for its [protection](Open::protection).
    Silence,
    /// Bytes that the other may have sent are read, or the event loop has just completed a turn.
    Reading,
    Nothing,
}

/// Whose responses give way if they are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Anybodys,
    /// Only those of this client.
    Of(Client),
}

impl Whose {
    fn includes(self, client: Client) -> bool {
        match self {
            Self::Anybodys => true,
            Self::Of(this) => this == client,
        }
    }
}

impl Connections {
    /// Limits the number of connections and their total charge in bytes. Closes connections under memory `pressure`.
    pub fn new(
        limit: usize,
        bytes: usize,
        pressure: Arc<Pressure>,
        shedding: Arc<Shedding>,
        registry: &Registry,
    ) -> Arc<Self> {
        let connections = Self::with(Open::new(limit, bytes, NEWCOMER_PROTECTION), pressure, shedding, registry);
        connections.observe(registry);
        connections
    }

    /// Limits the number of connections of operators, which are counted nowhere; what is shed is logged. A newcomer replaces the connection that is idle
    /// for longest, however short that is: each address in the cluster may hold one, and the kubelet ends a process whose probe
    /// gets none.
    pub fn of_operators(limit: usize) -> Arc<Self> {
        let open = Open::new(limit, usize::MAX, Duration::ZERO);
        Self::with(open, Arc::default(), Shedding::of_operators().into(), &Registry::default())
    }

    fn with(open: Open, pressure: Arc<Pressure>, shedding: Arc<Shedding>, registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::new(open),
            is_crowded: false.into(),
            is_pressed: false.into(),
            looks: false.into(),
            pressure,
            accepted: registry.counter(&table::ACCEPTED),
            turns: Turns::new(Arc::clone(&shedding)),
            large_writes: Arc::default(),
            accept_errors: Sampled::new(ACCEPT_LOG_INTERVAL),
            shedding,
        })
    }

    /// Registers gauges of the connections' number, total charge and its limit.
    fn observe(self: &Arc<Self>, registry: &Registry) {
        let (open, used, limit) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        registry.observe(&table::CONNECTIONS, move || Some(open.count() as u64));
        registry.observe(&table::CONNECTION_BYTES, move || Some(used.weight().0 as u64));
        registry.observe(&table::CONNECTION_BYTES_LIMIT, move || Some(limit.weight().1 as u64));
    }

    /// The number of open connections.
    pub fn count(&self) -> usize {
        self.open.lock().connections.len()
    }

    /// Cuts the connection on which a response has not been read for longest, which soon frees its seat. Returns `false` if
    /// these clients read, or may have read since the event loop last looked. Then it looks soon.
    pub fn cut_unread(self: &Arc<Self>, whose: Whose) -> bool {
        let mut open = self.open.lock();
        let unread = |connection: &Connection| {
            let is_wanted = connection.activity.may_hold_seat() && whose.includes(connection.client);
            connection.unread_since(open.read_until).filter(|_| is_wanted)
        };
        let Some(longest) = open.oldest(unread) else {
            self.look_soon();
            return false;
        };
        self.cut(&mut open, longest.number, Some(Shed::UnreadAnswer));
        true
    }

    /// Cuts the connections with these peers that do not read their responses. Returns `false` as [`cut_unread`](Self::cut_unread).
    pub fn cut_unread_of(self: &Arc<Self>, peers: &[SocketAddr]) -> bool {
        let peers: HashSet<_> = peers.iter().collect();
        let unread = |open: &Open, connection: &Connection| {
            peers.contains(&connection.arrival.peer) && connection.unread_since(open.read_until).is_some()
        };
        let found = self.cut_where(unread, Some(Shed::UnreadAnswer)) > 0;
        if !found {
            self.look_soon();
        }
        found
    }

    /// Gives a turn to each connection whose client has read, so that the next search knows. A process that is short of processor
    /// time may not have looked for long.
    fn look_soon(self: &Arc<Self>) {
        if self.looks.swap(true, Relaxed) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            this.meanwhile(yield_now()).await;
            this.looks.store(false, Relaxed);
        });
    }

    /// Resets the connections from this address that were accepted before this time, because the address no longer
    /// belongs to the same pod. Returns their number.
    pub fn cut_from(&self, addr: IpAddr, before: BootTime) -> usize {
        let earlier = |_: &Open, connection: &Connection| {
            connection.task.is_some() && connection.arrival.addr() == addr && connection.arrival.accepted < before
        };
        self.cut_where(earlier, None)
    }

    /// Closes all connections. Those whose clients wait for a response are reset, so that they ask again.
    pub fn cut_all(&self) {
        self.cut_where(|_, _| true, None);
    }

    /// Cuts the connections that are wanted, and returns their number. `shed` as in [`cut`](Self::cut).
    fn cut_where(&self, is_wanted: impl Fn(&Open, &Connection) -> bool, shed: Option<Shed>) -> usize {
        let mut open = self.open.lock();
        let wanted = open.connections.iter().filter(|(_, connection)| is_wanted(&open, connection));
        let wanted: Vec<_> = wanted.map(|(number, _)| *number).collect();
        for number in &wanted {
            self.cut(&mut open, *number, shed);
        }
        wanted.len()
    }

    /// Waits, and records that bytes that arrived before the wait were read by its end. The wait must let the event
    /// loop poll the sockets and give every connection its turn. A sleep or a yield is sufficient with one thread (the
    /// default) and up to the 1,024 ready sockets that tokio takes in a turn. With more, the wait may end too early.
    pub(super) async fn meanwhile(&self, wait: impl Future<Output = ()>) {
        let began = Instant::now();
        wait.await;
        let mut open = self.open.lock();
        // Other waits may have begun later and ended before.
        open.read_until = open.read_until.max(began);
    }

    /// Keeps the process within its memory limit while polled. This is the last line of defence, beyond the
    /// limit on charges.
    pub async fn tend(&self) {
        loop {
            let over = usize::try_from(self.pressure.measure()).unwrap_or(usize::MAX);
            self.shed(self.pressure.level(), over);
            let is_calm = self.pressure.level() == Level::Normal && !self.is_crowded.load(Relaxed);
            self.meanwhile(sleep(if is_calm { CALM_INTERVAL } else { TENSE_INTERVAL })).await;
        }
    }

    /// Sheds load according to the level. Memory usage exceeds the threshold of [`Level::Closing`] by `over` bytes.
    fn shed(&self, level: Level, over: usize) {
        self.is_pressed.store(level != Level::Normal, Relaxed);
        let may_cut = match level {
            Level::Normal | Level::Thrifty => return,
            Level::Closing => false,
            Level::Cutting => true,
        };
        let mut open = self.open.lock();
        let goal = open.memory.used().saturating_sub(over).max(open.least());
        while open.memory.used() > goal {
            // The others keep their connections while this client holds more, even if it has only requests in flight.
            let Some((largest, _)) = open.memory.largest() else { break };
            let useless = open.useless_but(None, Some(largest));
            let useless = useless.filter(|victim| victim.since.elapsed() >= MIN_CLOSE_AGE);
            let victim = useless.or_else(|| open.victim_of(largest).filter(|_| may_cut));
            let Some(victim) = victim else { break };
            self.cut(&mut open, victim.number, Some(Shed::Memory));
        }
    }

    /// Total charge of all connections and its limit, in bytes.
    pub fn weight(&self) -> (usize, usize) {
        let open = self.open.lock();
        (open.memory.used(), open.memory.limit())
    }

    /// Admits a connection if there is room or another gives way.
    pub(super) fn admit(
        self: &Arc<Self>,
        arrival: Arrival,
        activity: &Arc<Activity>,
        wait_for: WaitFor,
    ) -> Result<Place, NoRoom> {
        let client = Some(arrival.addr());
        let mut open = self.open.lock();
        if self.pressure.took(OPEN_BYTES) == Level::Cutting && open.holds_too_much(client) {
            return Err(NoRoom::Refused);
        }
        let asks = Asks { client, by: Asker::Newcomer(activity.moved_at()) };
        for (resource, amount) in [(Resource::Places, 1), (Resource::Memory, OPEN_BYTES)] {
            self.make_room(&mut open, resource, asks, amount, wait_for)?;
        }
        let number = open.insert(arrival, client, activity);
        activity.admitted();
        self.note_use(&open);
        Ok(Place { number, client, connections: Arc::clone(self) })
    }

    /// Counts an accepted connection.
    pub(super) fn accepted(&self) {
        self.accepted.inc();
    }

    /// Registers the connection in this place, so that it can be closed for another.
    pub(super) fn started(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.open.lock().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    /// Ends a connection. `shed`: counts it under this reason.
    fn cut(&self, open: &mut Open, number: u64, shed: Option<Shed>) {
        let Some(connection) = open.remove(number) else { return };
        if let Some(reason) = shed {
            self.shedding.closed(reason, connection.arrival.peer);
        }
        connection.activity.cut();
        if connection.activity.was_cut_short() {
            self.shedding.reset();
        }
        if let Some(task) = connection.task {
            task.abort();
        }
        self.note_use(open);
    }

    fn note_use(&self, open: &Open) {
        let crowded_from = (open.memory.limit() / 4 * 3).min(CROWDED_BYTES);
        self.is_crowded.store(open.memory.used() > crowded_from, Relaxed);
    }
}

#[cfg(test)]
mod tests;
