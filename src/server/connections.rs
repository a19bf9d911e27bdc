//! [`Connections`]: at most so many, and which one gives way to a newcomer.
//!
//! The connection that has gone longest without getting anywhere gives way: idle between requests, connected and silent,
//! still sending its head, or not reading its answer. So neither a herd of idle clients nor a flood of slow heads locks an
//! honest client out: what it needs is a moment, and the flood's connections are older than that or soon will be. A
//! connection whose request is in flight never gives way; when all are, the newcomer is reset.
//!
//! # What a connection costs
//!
//! About 3 KiB while it is silent, still sending its head, or has been idle for a while (its socket and its task), and some
//! 13 KiB more (hyper's state and buffers) while it is in use; the kernel's buffers, bounded in `accept`, come on top. A few
//! hundred keep hyper's state for a second after each answer, since the next request is cheaper then; above that a connection
//! has it only while it is being answered ([`Served`]), so thousands that take turns cost little more than thousands that are
//! silent. `cargo test --test it survival -- --nocapture` prints the peaks under floods.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::activity::Activity;
use crate::telemetry::Metrics;

/// A connection that is younger than this may have sent a request that we have not come to read.
const RUSH: Duration = Duration::from_millis(100);

/// A client on the same node takes what there is within a moment; one that has taken nothing for so long does not read.
const UNREAD: Duration = Duration::from_millis(5);

/// As many connections keep hyper's state between requests: more than there are seats, for what is answered at once needs none.
const AT_EASE: usize = 256;

/// The open connections of all listeners.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    open: Mutex<Open>,
    served: Arc<Served>,
    metrics: &'static Metrics,
}

/// How many connections have hyper's state.
#[derive(Debug, Default)]
pub(super) struct Served(AtomicUsize);

/// One of them, as long as it has it.
#[derive(Debug)]
pub(super) struct Serving(Arc<Served>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    peer: SocketAddr,
    activity: Arc<Activity>,
    /// Nothing for the moment between its admission and its start.
    task: Option<AbortHandle>,
}

/// A connection's place among them. It goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    connections: Arc<Connections>,
}

impl Connections {
    /// At most so many at once.
    pub fn new(limit: usize, metrics: &'static Metrics) -> Self {
        Self { limit, open: Mutex::default(), served: Arc::default(), metrics }
    }

    /// Where connections say that they have hyper's state.
    pub(super) fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// Whether a newcomer would push out a connection that has only just come, and whose first bytes may be there unread.
    pub(super) fn is_rushed(&self) -> bool {
        let open = self.lock();
        open.connections.len() >= self.limit && open.most_useless().is_some_and(|(since, _)| since.elapsed() < RUSH)
    }

    /// Cuts the connection whose client has not read its answer for longest, so that its seat is free in a moment. False
    /// if every client reads.
    pub fn cut_unread(&self) -> bool {
        let mut open = self.lock();
        let longest = open.unread().min();
        let Some((_, number)) = longest else { return false };
        self.cut(&mut open, number);
        self.metrics.shed_unread_answer();
        true
    }

    /// Cuts those of these clients' connections whose answers are not read. False if every one of them reads.
    pub fn cut_unread_of(&self, peers: &[SocketAddr]) -> bool {
        let peers: HashSet<_> = peers.iter().collect();
        let mut open = self.lock();
        let is_wanted = |number: &u64| open.connections.get(number).is_some_and(|found| peers.contains(&found.peer));
        let unread: Vec<_> = open.unread().map(|(_, number)| number).filter(is_wanted).collect();
        for number in &unread {
            self.cut(&mut open, *number);
            self.metrics.shed_unread_answer();
        }
        !unread.is_empty()
    }

    /// Lets a connection in, if there is room or another gives way.
    pub(super) fn admit(self: &Arc<Self>, activity: &Arc<Activity>, peer: SocketAddr) -> Option<Place> {
        let mut open = self.lock();
        if open.connections.len() >= self.limit {
            let (_, gives_way) = open.most_useless()?;
            self.cut(&mut open, gives_way);
            self.metrics.shed_idle_connection();
        }
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, Connection { peer, activity: Arc::clone(activity), task: None });
        self.metrics.connections.inc();
        Some(Place { number, connections: Arc::clone(self) })
    }

    /// From now on the connection in this place can be made to give way.
    pub(super) fn started(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.lock().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    fn cut(&self, open: &mut Open, number: u64) {
        if let Some(Connection { task: Some(task), .. }) = open.connections.remove(&number) {
            task.abort();
            self.metrics.connections.dec();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Entries are put in and taken out whole, so a panic elsewhere leaves the table whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Connections that can be cut and whose clients have taken nothing of an answer for a while, and since when.
    fn unread(&self) -> impl Iterator<Item = (Instant, u64)> {
        self.connections.iter().filter_map(|(number, connection)| {
            connection.task.as_ref()?;
            let since = connection.activity.blocked_since()?;
            (since.elapsed() >= UNREAD).then_some((since, *number))
        })
    }

    /// A look at every connection: a few microseconds for a thousand, and only when the limit is reached.
    fn most_useless(&self) -> Option<(Instant, u64)> {
        let useless = |(number, connection): (&u64, &Connection)| {
            connection.task.as_ref()?;
            Some((connection.activity.useless_since()?, *number))
        };
        self.connections.iter().filter_map(useless).min()
    }
}

impl Served {
    /// A connection has hyper's state from now on.
    pub(super) fn begin(self: &Arc<Self>) -> Serving {
        self.0.fetch_add(1, Relaxed);
        Serving(Arc::clone(self))
    }
}

#[cfg(test)]
impl Served {
    /// As many as are at ease.
    pub(super) fn crowd(self: &Arc<Self>) -> Vec<Serving> {
        (0..AT_EASE).map(|_| self.begin()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Serving {
    /// Whether there are so many that each gives its state up as soon as it has nothing to answer.
    pub(super) fn is_crowded(&self) -> bool {
        self.0.0.load(Relaxed) > AT_EASE
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

impl Place {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.connections.lock().connections.remove(&self.number).is_some() {
            self.connections.metrics.connections.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// A connection in a place, and a task that stands for it.
    struct Guest {
        activity: Arc<Activity>,
        _place: Option<Place>,
        task: tokio::task::JoinHandle<()>,
    }

    fn peer(number: u64) -> SocketAddr {
        ([10, 0, 0, 1], u16::try_from(number).expect("a port")).into()
    }

    fn arrive(connections: &Arc<Connections>) -> Option<Guest> {
        let activity = Arc::new(Activity::new());
        let number = connections.lock().next;
        let place = connections.admit(&activity, peer(number))?;
        let task = tokio::spawn(std::future::pending());
        connections.started(place.number(), task.abort_handle());
        Some(Guest { activity, _place: Some(place), task })
    }

    async fn was_aborted(guest: &Guest) -> bool {
        tokio::task::yield_now().await;
        guest.task.is_finished()
    }

    fn room_for(limit: usize) -> Arc<Connections> {
        Arc::new(Connections::new(limit, Metrics::leak()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_got_nowhere_for_longest_gives_way() {
        let connections = room_for(3);
        let silent = arrive(&connections).expect("room");
        sleep(Duration::from_secs(1)).await;
        let idle = arrive(&connections).expect("room");
        let trickling = arrive(&connections).expect("room");
        sleep(Duration::from_secs(1)).await;
        for sends in [&silent, &trickling] {
            sends.activity.tick();
            sends.activity.received(0, true, false);
        }
        let newcomer = arrive(&connections).expect("one gives way");
        assert!(was_aborted(&idle).await, "the only one that did nothing since");
        assert!(!was_aborted(&silent).await && !was_aborted(&trickling).await && !was_aborted(&newcomer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_request_is_in_flight_never_gives_way_unless_its_client_does_not_read() {
        let connections = room_for(2);
        let one = arrive(&connections).expect("room");
        let other = arrive(&connections).expect("room");
        let (_answer, _answer_too) = (one.activity.answering(), other.activity.answering());
        assert!(arrive(&connections).is_none(), "all are in flight");
        other.activity.blocked();
        assert!(arrive(&connections).is_some());
        assert!(was_aborted(&other).await && !was_aborted(&one).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_connections_that_are_named_are_cut_for_not_reading() {
        let connections = room_for(3);
        let guests = [(); 3].map(|()| arrive(&connections).expect("room"));
        for guest in &guests[..2] {
            guest.activity.blocked();
        }
        sleep(UNREAD).await;
        assert!(!connections.cut_unread_of(&[peer(2)]), "this one reads");
        assert!(connections.cut_unread_of(&[peer(1), peer(2)]));
        assert!(!was_aborted(&guests[0]).await && was_aborted(&guests[1]).await && !was_aborted(&guests[2]).await);
    }

    #[tokio::test]
    async fn a_place_that_is_left_is_free() {
        let connections = room_for(1);
        let first = arrive(&connections).expect("room");
        let in_flight = first.activity.answering();
        assert!(arrive(&connections).is_none());
        drop((first, in_flight));
        assert!(arrive(&connections).is_some());
    }
}
