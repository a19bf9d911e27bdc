//! [`Connections`]: limits the number and memory of connections, and decides which one to close when a limit
//! is reached.
//!
//! Two resources are limited: places (`--max-connections`) and bytes of memory. Both are shared between
//! clients by the rule of [`Shares`]: until the limit is reached, any client may take more. Then the client
//! that holds most gives way to a client that holds clearly less, and the client that holds most may only
//! replace its own connections that make no progress.
//!
//! The connection to close is the one that has made no progress for longest: idle between requests, connected
//! and silent, still sending its head, or not reading its response. Only if the client that holds most has
//! none of these is its oldest request in flight cut. That is a hanging GET if there is one, because no other
//! request takes long.
//!
//! So neither many idle clients nor a flood of slow heads or hanging requests can lock out a well-behaved
//! client.
//!
//! # What a connection weighs
//!
//! [`OPEN_BYTES`] once accepted, and [`SERVING_BYTES`] more while it has hyper's state, each including kernel
//! buffers, plus an incomplete head. Under cgroup v2 sockets are charged to the control group, and bytes that
//! were sent cannot be refused, so a connection is charged with full buffers from the start. While less than
//! three quarters of the memory is in use, idle connections keep hyper's state for a second, which makes the
//! next request cheaper. Above that, a connection has it only while it is being answered. New connections
//! leave the last eighth to requests.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::activity::Activity;
use crate::memory::{Level, OPEN_BYTES, Pressure, SERVING_BYTES};
use crate::shares::{Client, Room, Shares};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Shed;

/// A younger connection may have sent a request that was not read yet. A newcomer that can wait does not
/// replace it.
const JUST_COME: Duration = Duration::from_secs(1);

/// Under memory pressure, a connection younger than this is not closed for lack of progress.
const YOUNG: Duration = Duration::from_millis(250);

/// A client that has read nothing for this long is considered not reading. Clients on the same node normally
/// read immediately.
const UNREAD: Duration = Duration::from_millis(5);

/// Intervals between checks of the control group's memory, without and with pressure.
const CALM_INTERVAL: Duration = Duration::from_millis(200);
const TENSE_INTERVAL: Duration = Duration::from_millis(10);

/// Size of a head, in bytes, that is included in the charge of an open connection.
const SMALL_HEAD_BYTES: usize = 2 * 1024;

/// The open connections of all listeners.
#[derive(Debug)]
pub struct Connections {
    open: Mutex<Open>,
    /// More than three quarters of the memory is in use.
    is_crowded: AtomicBool,
    /// The process is short of memory, regardless of the connections' charges.
    is_pressed: AtomicBool,
    pressure: Arc<Pressure>,
    metrics: &'static Metrics,
}

#[derive(Debug)]
struct Open {
    next: u64,
    connections: HashMap<u64, Connection>,
    places: Shares,
    memory: Shares,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    peer: SocketAddr,
    client: Client,
    activity: Arc<Activity>,
    /// Its current charge, in bytes.
    bytes: usize,
    /// `None` between its admission and its start.
    task: Option<AbortHandle>,
}

/// The place of a connection. Released on drop.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    client: Client,
    connections: Arc<Connections>,
}

/// Permission to have hyper's state. Released on drop.
#[derive(Debug)]
pub(super) struct Serving {
    number: u64,
    connections: Arc<Connections>,
}

/// Whether to close other connections of the same client. Finding them takes some microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// Yes.
    Yes,
    /// No, only connections of a client that holds more.
    No,
}

/// Result of admitting a newcomer.
#[derive(Debug)]
pub(super) enum Admission {
    /// Admitted.
    Place(Place),
    /// Only a very recent connection could give way. The newcomer should retry shortly.
    Later,
    /// There is no room.
    Refused,
}

/// The connection to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Victim {
    number: u64,
    since: Instant,
    /// It made no progress; otherwise it has a request in flight.
    is_useless: bool,
}

/// The connection that needs room.
#[derive(Debug, Clone, Copy)]
struct Asks {
    client: Client,
    /// An admitted connection, which must not close itself.
    number: Option<u64>,
}

impl Connections {
    /// Limits the number of connections and their total charge in bytes, and follows this memory pressure.
    pub fn new(limit: usize, bytes: usize, pressure: Arc<Pressure>, metrics: &'static Metrics) -> Self {
        let open =
            Open { next: 0, connections: HashMap::new(), places: Shares::new(limit), memory: Shares::new(bytes) };
        Self { open: Mutex::new(open), is_crowded: false.into(), is_pressed: false.into(), pressure, metrics }
    }

    /// Cuts the connection whose client has not read its response for longest, which soon frees its seat.
    /// Returns `false` if all clients are reading.
    pub fn cut_unread(&self) -> bool {
        let mut open = self.lock();
        let Some(longest) = open.oldest(Connection::unread_since) else { return false };
        self.cut(&mut open, longest.number);
        self.metrics.shed(Shed::UnreadAnswer, None);
        true
    }

    /// Cuts the connections with these peers that do not read their responses. Returns `false` if all of them
    /// are reading.
    pub fn cut_unread_of(&self, peers: &[SocketAddr]) -> bool {
        let peers: HashSet<_> = peers.iter().collect();
        let mut open = self.lock();
        let is_wanted =
            |connection: &&Connection| peers.contains(&connection.peer) && connection.unread_since().is_some();
        let unread: Vec<_> = open.connections.values().filter(is_wanted).map(|connection| connection.number).collect();
        for number in &unread {
            self.cut(&mut open, *number);
            self.metrics.shed(Shed::UnreadAnswer, None);
        }
        !unread.is_empty()
    }

    /// Keeps the process within its memory limit while polled. This is the last line of defence, beyond the
    /// limit on charges.
    pub async fn tend(&self) {
        loop {
            let over = usize::try_from(self.pressure.look()).unwrap_or(usize::MAX);
            self.shed(self.pressure.level(), over);
            let is_calm = self.pressure.level() == Level::Normal && !self.is_crowded.load(Relaxed);
            sleep(if is_calm { CALM_INTERVAL } else { TENSE_INTERVAL }).await;
        }
    }

    /// Sheds load according to the level. The usage exceeds the level without pressure by this many bytes.
    fn shed(&self, level: Level, over: usize) {
        self.is_pressed.store(level != Level::Normal, Relaxed);
        let may_cut = match level {
            Level::Normal | Level::Thrifty => return,
            Level::Closing => false,
            Level::Cutting => true,
        };
        let mut open = self.lock();
        // If they weigh little, closing them would not help.
        let goal = open.memory.used().saturating_sub(over).max(open.memory.limit() / 4);
        while open.memory.used() > goal {
            let largest = open.memory.largest().map(|(largest, _)| largest);
            let useless = open.useless_but(None, largest).or_else(|| open.useless_but(None, None));
            let useless = useless.filter(|victim| victim.since.elapsed() >= YOUNG);
            let victim = useless.or_else(|| open.victim_of(largest?).filter(|_| may_cut));
            let Some(victim) = victim else { break };
            self.cut(&mut open, victim.number);
            self.metrics.shed(Shed::Memory, None);
        }
    }

    /// Total charge of all connections and its limit, in bytes.
    pub fn weight(&self) -> (usize, usize) {
        let open = self.lock();
        (open.memory.used(), open.memory.limit())
    }

    /// Admits a connection if there is room or another gives way. A patient newcomer does not replace very
    /// recent connections.
    pub(super) fn admit(self: &Arc<Self>, peer: SocketAddr, activity: &Arc<Activity>, is_patient: bool) -> Admission {
        let client = Some(peer.ip().to_canonical());
        let mut open = self.lock();
        if self.pressure.took(OPEN_BYTES) == Level::Cutting
            && open.memory.largest().is_some_and(|(largest, _)| largest == client)
        {
            return Admission::Refused;
        }
        for (resource, amount) in [(Resource::Places, 1), (Resource::Memory, OPEN_BYTES)] {
            match self.make_room(&mut open, resource, Asks { client, number: None }, amount, is_patient) {
                Made::Room => {}
                Made::Later => return Admission::Later,
                Made::None => return Admission::Refused,
            }
        }
        let number = open.next;
        open.next += 1;
        open.places.take(client, 1);
        open.memory.take(client, OPEN_BYTES);
        let connection =
            Connection { number, peer, client, activity: Arc::clone(activity), bytes: OPEN_BYTES, task: None };
        open.connections.insert(number, connection);
        self.note_use(&open);
        self.metrics.connections.inc();
        Admission::Place(Place { number, client, connections: Arc::clone(self) })
    }

    /// Registers the connection in this place, so that it can be closed for another.
    pub(super) fn started(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.lock().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    /// Closes other connections until there is room, by the rule in the module documentation.
    fn make_room(&self, open: &mut Open, resource: Resource, asks: Asks, amount: usize, is_patient: bool) -> Made {
        loop {
            let room = open.room(resource, asks, amount);
            let victim = match room {
                Room::Free => return Made::Room,
                Room::From(largest) => open.victim_of(largest),
                Room::FromItself => open.useless_but(asks.number, Some(asks.client)),
                Room::None => open.useless_but(asks.number, None),
            };
            let Some(victim) = victim else { return Made::None };
            // There is a request, which takes precedence over a connection of the largest client that has
            // sent none.
            let is_urgent = asks.number.is_some() && matches!(room, Room::From(_));
            if is_patient && !is_urgent && victim.since.elapsed() < JUST_COME {
                return Made::Later;
            }
            self.cut(open, victim.number);
            self.metrics.shed(if victim.is_useless { Shed::IdleConnection } else { Shed::FairShare }, None);
        }
    }

    fn make_memory(&self, open: &mut Open, asks: Asks, bytes: usize) -> bool {
        matches!(self.make_room(open, Resource::Memory, asks, bytes, true), Made::Room)
    }

    fn cut(&self, open: &mut Open, number: u64) {
        let Some(connection) = open.remove(number) else { return };
        connection.activity.cut();
        if let Some(task) = connection.task {
            task.abort();
        }
        self.note_use(open);
        self.metrics.connections.dec();
    }

    fn note_use(&self, open: &Open) {
        self.is_crowded.store(open.memory.used() > open.memory.limit() / 4 * 3, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Entries are inserted and removed as a whole, so the table is consistent even after a panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State shared by all connections.
#[derive(Debug, Clone, Copy)]
enum Resource {
    Places,
    Memory,
}

/// Result of making room.
enum Made {
    Room,
    Later,
    None,
}

impl Connection {
    /// Since when its client has not been reading, if for long enough.
    fn unread_since(&self) -> Option<Instant> {
        self.activity.blocked_since().filter(|since| since.elapsed() >= UNREAD)
    }
}

impl Open {
    /// Whether there is room. Newcomers leave an eighth of the memory to requests; otherwise a burst of
    /// newcomers would stop requests from finishing and making room.
    fn room(&self, resource: Resource, asks: Asks, amount: usize) -> Room {
        match (resource, asks.number) {
            (Resource::Places, _) => self.places.room_for(asks.client, amount),
            (Resource::Memory, Some(_)) => self.memory.room_for(asks.client, amount),
            (Resource::Memory, None) => self.memory.room_beside(asks.client, amount, self.memory.limit() / 8),
        }
    }

    /// The connection of a client to close for another client: one that makes no progress, otherwise the
    /// oldest request.
    fn victim_of(&self, client: Client) -> Option<Victim> {
        let oldest_request = || {
            let of_client =
                |connection: &Connection| (connection.client == client).then(|| connection.activity.moved_at());
            self.oldest(of_client).map(|victim| Victim { is_useless: false, ..victim })
        };
        self.useless_but(None, Some(client)).or_else(oldest_request)
    }

    /// The connection, of this client or of any, that has made no progress for longest.
    fn useless_but(&self, asks: Option<u64>, client: Option<Client>) -> Option<Victim> {
        self.oldest(|connection| {
            let may_go = client.is_none_or(|client| client == connection.client) && Some(connection.number) != asks;
            if may_go { connection.activity.useless_since() } else { None }
        })
    }

    /// The connection with the earliest moment. Scans all connections, which takes some microseconds for a
    /// thousand, and only when there is no room.
    fn oldest(&self, since: impl Fn(&Connection) -> Option<Instant>) -> Option<Victim> {
        let started = self.connections.values().filter(|connection| connection.task.is_some());
        let victims = started.filter_map(|connection| {
            Some(Victim { number: connection.number, since: since(connection)?, is_useless: true })
        });
        victims.min_by_key(|victim| (victim.since, victim.number))
    }

    fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        self.places.give_back(connection.client, 1);
        self.memory.give_back(connection.client, connection.bytes);
        Some(connection)
    }

    /// Changes the charge of a connection.
    fn weigh(&mut self, number: u64, bytes: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        self.memory.give_back(connection.client, connection.bytes);
        self.memory.take(connection.client, bytes);
        connection.bytes = bytes;
    }
}

impl Place {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn asks(&self) -> Asks {
        Asks { client: self.client, number: Some(self.number) }
    }

    /// Charges an incomplete head of this size. Returns `false` if there is no memory for it.
    pub(super) fn hold_head(&self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(SMALL_HEAD_BYTES) else { return true };
        let mut open = self.connections.lock();
        let held = open.connections.get(&self.number).map_or(0, |connection| connection.bytes);
        let wanted = OPEN_BYTES + more;
        if wanted <= held {
            return true;
        }
        let has_room = self.connections.make_memory(&mut open, self.asks(), wanted - held);
        if has_room {
            open.weigh(self.number, wanted);
            self.connections.note_use(&open);
        }
        has_room
    }

    /// Charges the memory to serve a request, if there is room or others give way.
    pub(super) fn serve(&self, reclaim: Reclaim) -> Option<Serving> {
        self.connections.pressure.took(SERVING_BYTES);
        let mut open = self.connections.lock();
        let has_room = match open.memory.room_for(self.client, SERVING_BYTES) {
            Room::Free => true,
            Room::From(_) => self.connections.make_memory(&mut open, self.asks(), SERVING_BYTES),
            Room::FromItself | Room::None => {
                reclaim == Reclaim::Yes && self.connections.make_memory(&mut open, self.asks(), SERVING_BYTES)
            }
        };
        if !has_room {
            return None;
        }
        // The charge of hyper's state includes the head.
        open.weigh(self.number, OPEN_BYTES + SERVING_BYTES);
        self.connections.note_use(&open);
        Some(Serving { number: self.number, connections: Arc::clone(&self.connections) })
    }

    /// Counts a connection that is reset because there is no memory for what it sends.
    pub(super) fn refused(&self, peer: SocketAddr) {
        self.connections.metrics.resets.inc();
        self.connections.metrics.shed(Shed::Memory, Some(peer));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        if open.remove(self.number).is_some() {
            self.connections.note_use(&open);
            self.connections.metrics.connections.dec();
        }
    }
}

impl Serving {
    /// Whether connections drop hyper's state as soon as they are idle.
    pub(super) fn is_crowded(&self) -> bool {
        self.connections.is_crowded.load(Relaxed) || self.connections.is_pressed.load(Relaxed)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.weigh(self.number, OPEN_BYTES);
        self.connections.note_use(&open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A connection in a place, and a task that stands for it.
    struct Guest {
        activity: Arc<Activity>,
        place: Place,
        task: tokio::task::JoinHandle<()>,
    }

    fn pod(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 40000).into()
    }

    fn arrive(connections: &Arc<Connections>, pod_number: u8) -> Option<Guest> {
        let activity = Arc::new(Activity::new());
        let Admission::Place(place) = connections.admit(pod(pod_number), &activity, false) else { return None };
        let task = tokio::spawn(std::future::pending());
        connections.started(place.number(), task.abort_handle());
        Some(Guest { activity, place, task })
    }

    async fn was_aborted(guest: &Guest) -> bool {
        tokio::task::yield_now().await;
        guest.task.is_finished()
    }

    fn room_for(limit: usize) -> Arc<Connections> {
        Arc::new(Connections::new(limit, usize::MAX, Arc::default(), Metrics::leak()))
    }

    fn room_for_bytes(bytes: usize) -> Arc<Connections> {
        Arc::new(Connections::new(1000, bytes, Arc::default(), Metrics::leak()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_got_nowhere_for_longest_gives_way() {
        let connections = room_for(3);
        let silent = arrive(&connections, 1).expect("room");
        sleep(Duration::from_secs(1)).await;
        let idle = arrive(&connections, 1).expect("room");
        let trickling = arrive(&connections, 1).expect("room");
        sleep(Duration::from_secs(1)).await;
        for sends in [&silent, &trickling] {
            sends.activity.tick();
            sends.activity.received(0, true, false);
        }
        let newcomer = arrive(&connections, 1).expect("one gives way");
        assert!(was_aborted(&idle).await, "the only one that did nothing since");
        assert!(!was_aborted(&silent).await && !was_aborted(&trickling).await && !was_aborted(&newcomer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_cannot_cut_its_own_requests_nor_those_of_one_that_holds_as_many() {
        let connections = room_for(2);
        let one = arrive(&connections, 1).expect("room");
        let other = arrive(&connections, 2).expect("room");
        let (_answer, _answer_too) = (one.activity.answering(), other.activity.answering());
        for pod_number in [1, 2, 3] {
            assert!(arrive(&connections, pod_number).is_none(), "all are in flight");
        }
        other.activity.blocked();
        assert!(arrive(&connections, 3).is_some());
        assert!(was_aborted(&other).await && !was_aborted(&one).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_request_of_the_client_with_most_gives_way_to_another_client() {
        let connections = room_for(3);
        let (mut crowd, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let guest = arrive(&connections, 1).expect("room");
            guest.activity.tick();
            guest.activity.received(1, false, false);
            answers.push(guest.activity.answering());
            crowd.push(guest);
            sleep(Duration::from_secs(1)).await;
        }
        assert!(arrive(&connections, 1).is_none(), "its own are all in flight");
        let _other = arrive(&connections, 2).expect("the client with most gives way");
        assert!(was_aborted(&crowd[0]).await && !was_aborted(&crowd[1]).await && !was_aborted(&crowd[2]).await);
        assert!(arrive(&connections, 1).is_none(), "and does not take it back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_that_is_patient_waits_for_those_that_have_only_just_come() {
        let connections = room_for(1);
        let first = arrive(&connections, 1).expect("room");
        let admit = || connections.admit(pod(1), &Arc::new(Activity::new()), true);
        assert!(matches!(admit(), Admission::Later));
        sleep(JUST_COME).await;
        assert!(matches!(admit(), Admission::Place(_)));
        assert!(was_aborted(&first).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_connections_that_are_named_are_cut_for_not_reading() {
        let connections = room_for(3);
        let guests = [1, 2, 3].map(|pod_number| arrive(&connections, pod_number).expect("room"));
        for guest in &guests[..2] {
            guest.activity.blocked();
        }
        sleep(UNREAD).await;
        assert!(!connections.cut_unread_of(&[pod(3)]), "this one reads");
        assert!(connections.cut_unread_of(&[pod(2), pod(3)]));
        assert!(!was_aborted(&guests[0]).await && was_aborted(&guests[1]).await && !was_aborted(&guests[2]).await);
    }

    #[tokio::test]
    async fn a_place_that_is_left_is_free() {
        let connections = room_for(1);
        let first = arrive(&connections, 1).expect("room");
        let in_flight = first.activity.answering();
        assert!(arrive(&connections, 1).is_none());
        drop((first, in_flight));
        assert!(arrive(&connections, 1).is_some());
        assert_eq!(connections.weight().0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_weighs_more_and_only_idle_ones_give_way_to_it_within_a_client() {
        // Newcomers leave an eighth free.
        let connections = room_for_bytes((3 * OPEN_BYTES + SERVING_BYTES) / 7 * 8 + 8);
        let guests: Vec<_> = (0..3).map(|_| arrive(&connections, 1).expect("room")).collect();
        let first = guests[0].place.serve(Reclaim::Yes).expect("room for one");
        let _answer = guests[0].activity.answering();
        guests[1].activity.wait_for_room(true);
        assert!(guests[2].place.serve(Reclaim::No).is_none(), "nobody is looked for");
        let newcomer = arrive(&connections, 2).expect("the one that is silent gives way");
        assert!(was_aborted(&guests[2]).await && !was_aborted(&guests[0]).await && !was_aborted(&guests[1]).await);
        drop(first);
        assert!(newcomer.place.serve(Reclaim::No).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_head_weighs_what_it_holds() {
        let connections = room_for_bytes(2 * OPEN_BYTES + 4096);
        let one = arrive(&connections, 1).expect("room");
        let other = arrive(&connections, 2).expect("room");
        assert!(one.place.hold_head(SMALL_HEAD_BYTES + 4096));
        assert_eq!(connections.weight().0, 2 * OPEN_BYTES + 4096);
        other.activity.wait_for_room(true);
        assert!(!one.place.hold_head(SMALL_HEAD_BYTES + 8192));
    }

    #[tokio::test(start_paused = true)]
    async fn under_pressure_the_client_with_most_gives_way_first_and_requests_last() {
        let connections = room_for_bytes(20 * OPEN_BYTES);
        let idle = arrive(&connections, 2).expect("room");
        sleep(Duration::from_secs(1)).await;
        let crowd: Vec<_> = (0..10).map(|_| arrive(&connections, 1).expect("room")).collect();
        let _answers: Vec<_> = crowd[..8].iter().map(|guest| guest.activity.answering()).collect();
        sleep(YOUNG).await;
        let aborted = async |guests: &[Guest]| {
            let mut aborted = 0;
            for guest in guests {
                aborted += usize::from(was_aborted(guest).await);
            }
            aborted
        };
        connections.shed(Level::Thrifty, 5 * OPEN_BYTES);
        assert_eq!(aborted(&crowd).await, 0);
        connections.shed(Level::Closing, OPEN_BYTES);
        assert_eq!((aborted(&crowd[8..]).await, was_aborted(&idle).await), (1, false));
        connections.shed(Level::Closing, 20 * OPEN_BYTES);
        assert_eq!((aborted(&crowd).await, was_aborted(&idle).await), (2, true), "requests go on");
        connections.shed(Level::Cutting, 20 * OPEN_BYTES);
        assert_eq!(aborted(&crowd).await, 5, "what is left weighs a quarter of what it may");
    }

    proptest! {
        /// Whatever comes and goes in whatever order: the books balance, and the limits hold.
        #[test]
        fn the_books_balance(steps in prop::collection::vec((0..4u8, 0..4u8, any::<prop::sample::Index>()), 0..60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let limit = 6 * OPEN_BYTES + 2 * SERVING_BYTES;
                let connections = Arc::new(Connections::new(8, limit, Arc::default(), Metrics::leak()));
                let mut guests: Vec<Guest> = Vec::new();
                for (step, pod_number, which) in steps {
                    match step {
                        0 | 1 => guests.extend(arrive(&connections, pod_number)),
                        2 if !guests.is_empty() => drop(guests.swap_remove(which.index(guests.len()))),
                        3 if !guests.is_empty() => {
                            let guest = &guests[which.index(guests.len())];
                            let _serving = guest.place.serve(Reclaim::Yes);
                            guest.place.hold_head(6000);
                        }
                        _ => {}
                    }
                    let open = connections.lock();
                    let sum: usize = open.connections.values().map(|connection| connection.bytes).sum();
                    assert_eq!((open.memory.used(), open.places.used()), (sum, open.connections.len()));
                    assert!(sum <= limit && open.connections.len() <= 8);
                }
                guests.clear();
                assert_eq!(connections.weight().0, 0);
            });
        }
    }
}
