//! [`Turns`]: shares the processor between clients.
//!
//! A connection does its work when its task is polled: it reads, gets a response, writes. So a task that works for a
//! client is polled only when it is that client's turn ([`Turns::share`]). While at most [`POLLS_AT_ONCE`] tasks are
//! ready in a round of the event loop, each runs at once, and idle processor time is available to all. Beyond that,
//! tasks wait and clients take turns. A container with 30m of CPU runs for 3 ms and then stands still for 97 ms, so
//! which clients are served in these 3 ms decides who waits for seconds.
//!
//! The order is that of fair queueing with flow queues (RFC 8290, sections 4.1 and 4.2, without its drops): each client
//! has a queue and a credit of processor time. A client without recent requests goes once before clients that always
//! have more work. So a pod that sends a request now and then is answered in the next round, however many connections
//! or addresses others have.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::task::yield_now;

use super::activity::Activity;
use telemetry::shedding::Shedding;
use telemetry::{Moment, nanos};

/// Tasks that run in a round of the event loop. Further tasks wait for their client's turn. A round takes a few hundred
/// microseconds, which bounds the wait of a new client.
const POLLS_AT_ONCE: usize = 16;

/// Processor time, in nanoseconds, that the turns of a round should take. Requests that arrive meanwhile wait for the
/// next round.
const ROUND: i64 = 200_000;

/// Processor time, in nanoseconds, that a client may use before it is another client's turn: enough for several cached
/// responses.
const QUANTUM: i64 = 100_000;

/// Processor time, in nanoseconds, that is charged for a poll in advance: enough for a cached response and its way
/// through the kernel.
const ADVANCE: i64 = 20_000;

/// Maximum charge for a poll, in nanoseconds. A poll takes longer only if the process was prevented from running
/// meanwhile, or if others claim the client's address, which is not its doing.
const MAX_CHARGE: i64 = 1_000_000;

/// A turn is late after this waiting time.
const LATE: Duration = Duration::from_millis(100);

/// The beneficiary of a task's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Taker {
    /// A client's connection.
    Client(IpAddr),
    /// The listener with this number, which accepts connections of the clients that the kernel assigns to it.
    Door(usize),
}

/// Decides whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Polls in the current round of the event loop.
    polls: AtomicUsize,
    /// Number of waiting tasks.
    waiting: AtomicUsize,
    /// Whether a task is giving out turns.
    is_dispatching: AtomicBool,
    queues: Mutex<Queues>,
    shedding: Arc<Shedding>,
}

#[derive(Debug, Default)]
struct Queues {
    next: u64,
    of: HashMap<Taker, Queue, RandomState>,
    /// Takers that had no tasks before. They go first.
    new: VecDeque<Taker>,
    /// All others.
    old: VecDeque<Taker>,
}

#[derive(Debug)]
struct Queue {
    /// Ordered by number, which increases.
    waiting: VecDeque<Waiter>,
    /// Remaining processor time, in nanoseconds.
    credit: i64,
    /// Processor time of the last poll, in nanoseconds.
    took: i64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
    since: Moment,
}

/// Turns that were given out.
#[derive(Debug, Default, Clone, Copy)]
struct Given {
    turns: usize,
    /// Late turns. Their clients use more than their share.
    late: u64,
}

impl Turns {
    /// Late turns are counted in `shedding`.
    pub(super) fn new(shedding: Arc<Shedding>) -> Arc<Self> {
        Arc::new(Self { shedding, ..Self::default() })
    }

    /// Polls a future only when it is this taker's turn. While it waits, this is recorded in the connection's activity, as it is
    /// until the future is first polled.
    pub(super) fn share<F: Future>(
        self: &Arc<Self>,
        taker: Taker,
        activity: Option<Arc<Activity>>,
        inner: F,
    ) -> Shared<F> {
        let waits = Waits { turns: Arc::clone(self), taker, activity, number: None };
        waits.note(true);
        Shared { inner, waits }
    }

    /// Number of tasks that wait for a turn.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// Takes one of the polls that need no turn.
    fn take_free(self: &Arc<Self>) -> bool {
        if self.waiting() > 0 {
            return false;
        }
        let polls = self.polls.load(Relaxed) + 1;
        if polls >= POLLS_AT_ONCE {
            self.dispatch();
        }
        // Threads may overwrite each other's count. At worst, a round has a few polls more or less.
        self.polls.store(polls, Relaxed);
        polls <= POLLS_AT_ONCE
    }

    fn wait(self: &Arc<Self>, taker: Taker, waker: &Waker) -> u64 {
        // First, because another thread may give out the turn, and subtract it, as soon as it is in the queue.
        self.waiting.fetch_add(1, SeqCst);
        let number = self.queues.lock().add(taker, waker.clone());
        self.dispatch();
        number
    }

    /// Starts the task that gives out turns, unless it is running. Either that task sees who waits now, or this one that it has ended:
    /// hence the order of all accesses.
    fn dispatch(self: &Arc<Self>) {
        if self.is_dispatching.swap(true, SeqCst) {
            return;
        }
        let turns = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                // The event loop completes a round: it polls the sockets, and tasks with a turn run.
                yield_now().await;
                let given = turns.queues.lock().give(POLLS_AT_ONCE);
                turns.waiting.fetch_sub(given.turns, Relaxed);
                turns.shedding.delayed(given.late);
                if given.turns == 0 {
                    break;
                }
            }
            turns.polls.store(0, Relaxed);
            turns.is_dispatching.store(false, SeqCst);
            if turns.waiting() > 0 {
                // Another thread added one in between.
                turns.dispatch();
            }
        });
    }
}

impl Queue {
    fn place(&self, number: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&number, |waiter| waiter.number).ok()
    }

    fn waiter(&mut self, number: u64) -> Option<&mut Waiter> {
        let place = self.place(number)?;
        self.waiting.get_mut(place)
    }

    fn leave(&mut self, number: u64) -> Option<Waiter> {
        let place = self.place(number)?;
        self.waiting.remove(place)
    }
}

impl Queues {
    fn add(&mut self, taker: Taker, waker: Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        let queue = self.of.entry(taker).or_insert_with(|| {
            self.new.push_back(taker);
            Queue { waiting: VecDeque::new(), credit: QUANTUM, took: ADVANCE }
        });
        queue.waiting.push_back(Waiter { number, waker, since: Moment::now() });
        number
    }

    /// Gives out at most `most` turns, and no more than fit into a [`ROUND`].
    fn give(&mut self, most: usize) -> Given {
        let mut given = Given::default();
        let mut planned = 0;
        while given.turns < most && planned < ROUND {
            let is_new = !self.new.is_empty();
            let Some(taker) = (if is_new { &mut self.new } else { &mut self.old }).pop_front() else { break };
            let Some(queue) = self.of.get_mut(&taker) else { continue };
            if queue.credit <= 0 {
                queue.credit += QUANTUM;
                self.old.push_back(taker);
            } else if let Some(waiter) = queue.waiting.pop_front() {
                queue.credit -= ADVANCE;
                planned += queue.took;
                given.turns += 1;
                given.late += u64::from(!is_new && waiter.since.elapsed() >= LATE);
                waiter.waker.wake();
                if is_new { &mut self.new } else { &mut self.old }.push_front(taker);
            } else if is_new {
                // It stays known for a round. Otherwise a client that always returns at once would always be new.
                self.old.push_back(taker);
            } else {
                self.of.remove(&taker);
            }
        }
        given
    }

    /// Charges a poll, a part of which is already paid.
    fn charge(&mut self, taker: Taker, nanos: i64, paid: i64) {
        if let Some(queue) = self.of.get_mut(&taker) {
            queue.credit -= nanos - paid;
            queue.took = nanos;
        }
    }
}

pin_project! {
    /// A future that is polled in turn.
    pub(super) struct Shared<F> {
        #[pin]
        inner: F,
        waits: Waits,
    }
}

struct Waits {
    turns: Arc<Turns>,
    taker: Taker,
    activity: Option<Arc<Activity>>,
    /// The waiter's number in the queue.
    number: Option<u64>,
}

impl Waits {
    /// Ready when it is the task's turn, with what was charged for it in advance: nothing if no task was waiting.
    fn poll_turn(&mut self, waker: &Waker) -> Poll<i64> {
        let Some(number) = self.number else {
            let is_free = self.turns.take_free();
            self.note(!is_free);
            if is_free {
                return Poll::Ready(0);
            }
            self.number = Some(self.turns.wait(self.taker, waker));
            return Poll::Pending;
        };
        let mut queues = self.turns.queues.lock();
        if let Some(waiting) = queues.of.get_mut(&self.taker).and_then(|queue| queue.waiter(number)) {
            waiting.waker.clone_from(waker);
            return Poll::Pending;
        }
        drop(queues);
        self.number = None;
        self.note(false);
        Poll::Ready(ADVANCE)
    }

    fn note(&self, waits: bool) {
        if let Some(activity) = &self.activity {
            activity.wait_for_turn(waits);
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut queues = self.turns.queues.lock();
        let left = queues.of.get_mut(&self.taker).and_then(|queue| queue.leave(number));
        drop(queues);
        if left.is_some() {
            self.turns.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl<F: Future> Future for Shared<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let paid = ready!(this.waits.poll_turn(cx.waker()));
        if paid == 0 && this.waits.turns.waiting() == 0 {
            return this.inner.poll(cx);
        }
        let began = Moment::now();
        let polled = this.inner.poll(cx);
        let took = i64::try_from(nanos(began.elapsed())).unwrap_or(MAX_CHARGE);
        this.waits.turns.queues.lock().charge(this.waits.taker, took.min(MAX_CHARGE), paid);
        polled
    }
}

#[cfg(test)]
mod tests;
