//! [`Activity`]: the state of a connection, and the times of its changes.
//!
//! The socket reports bytes and the service reports requests. The watchdog needs both. The task
//! that selects connections to close reads the state too.

mod doing;
mod millis;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

pub(super) use doing::Doing;
use millis::AtomicMillis;

/// Shared between a connection's socket, service and timers, which all run in the connection's task. There is
/// a single writer, so updates need no locked instructions.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// Time of the task's last wakeup. Serves as the current time until the task waits again.
    now: AtomicMillis,
    /// Time when bytes were last sent or received.
    moved: AtomicMillis,
    /// Start of an incomplete request: of its head, or of the body that the server reads.
    request_began: AtomicMillis,
    /// Start of the time in which the client has read no bytes of a response.
    blocked: AtomicMillis,
    /// Time when the client was last found not to have read.
    found_blocked: AtomicMillis,
    /// Time since which a complete head has been waiting for memory.
    waiting: AtomicMillis,
    /// Complete heads received.
    heads: AtomicU64,
    /// Heads that hyper parsed into a request.
    requests: AtomicU64,
    /// Requests whose response has not ended.
    answering: AtomicU64,
    body_announced: AtomicBool,
    /// The client sent more bytes than hyper has read.
    has_more: AtomicBool,
    /// A complete head was received since the task was last woken.
    had_turn: AtomicBool,
    /// The process is draining: responses announce that the connection will be closed.
    last_call: AtomicBool,
    /// The current response is the last one.
    parting: AtomicBool,
    reset: AtomicBool,
    /// Only the kernel still has bytes of the last response, so that nothing holds a seat.
    delivering: AtomicBool,
    /// The socket has events, which are handled when it is the client's turn.
    awaits_turn: AtomicBool,
    /// The connection was selected to be closed for another. The only field that another task writes.
    cut: AtomicBool,
}

/// Exists until the response of a request has ended.
#[derive(Debug)]
pub(super) struct Answering(Arc<Activity>);

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            now: AtomicMillis::at(Duration::ZERO),
            moved: AtomicMillis::default(),
            request_began: AtomicMillis::default(),
            blocked: AtomicMillis::default(),
            found_blocked: AtomicMillis::default(),
            waiting: AtomicMillis::default(),
            heads: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            answering: AtomicU64::new(0),
            body_announced: AtomicBool::new(false),
            has_more: AtomicBool::new(false),
            had_turn: AtomicBool::new(false),
            last_call: AtomicBool::new(false),
            parting: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            delivering: AtomicBool::new(false),
            awaits_turn: AtomicBool::new(false),
            cut: AtomicBool::new(false),
        }
    }

    /// The connection got its place, for which it may have waited longer than others are silent.
    pub(super) fn admitted(&self) {
        self.tick();
        self.moved.set(&self.now);
    }

    /// The connection's task was woken.
    pub(super) fn tick(&self) {
        self.had_turn.store(false, Relaxed);
        self.now.set(&AtomicMillis::at(self.began.elapsed()));
    }

    /// Records received bytes, the number of heads that ended in them, and whether a request is incomplete.
    pub(super) fn received(&self, ended_heads: u64, mid_request: bool, body_announced: bool) {
        self.moved.set(&self.now);
        if ended_heads > 0 {
            add(&self.heads, ended_heads);
            self.had_turn.store(true, Relaxed);
        }
        match (mid_request, self.request_began.is_set()) {
            (true, false) => self.request_began.set(&self.now),
            (false, true) => self.request_began.clear(),
            _ => {}
        }
        if body_announced {
            self.body_announced.store(true, Relaxed);
        }
    }

    /// Records sent bytes. Returns whether the client had not been reading.
    pub(super) fn sent(&self) -> bool {
        self.moved.set(&self.now);
        let was_blocked = self.blocked.is_set();
        if was_blocked {
            self.blocked.clear();
        }
        was_blocked
    }

    /// Records that the client is not reading. Returns whether this is new.
    pub(super) fn blocked(&self) -> bool {
        // The process may have stood still since the task was woken, and the client had nothing to read meanwhile.
        let now = AtomicMillis::at(self.began.elapsed());
        let is_new = !self.blocked.is_set();
        if is_new {
            self.blocked.set(&now);
        }
        self.found_blocked.set(&now);
        is_new
    }

    /// A request reached the service.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        add(&self.requests, 1);
        add(&self.answering, 1);
        Answering(Arc::clone(self))
    }

    /// Whether the bytes being written may be hyper's own response to an invalid head.
    pub(super) fn has_unread_head(&self) -> bool {
        self.heads.load(Relaxed) > self.requests.load(Relaxed) || self.request_began.is_set()
    }

    /// Whether a request announced a body that is not read to its end.
    pub(super) fn body_announced(&self) -> bool {
        self.body_announced.load(Relaxed)
    }

    /// Records that the process is draining.
    pub(super) fn call_last(&self) {
        self.last_call.store(true, Relaxed);
    }

    /// Whether the connection closes after the current response.
    pub(super) fn closes(&self) -> bool {
        self.body_announced() || self.last_call.load(Relaxed)
    }

    /// Records that the connection closes after the current response.
    pub(super) fn part(&self) {
        self.parting.store(true, Relaxed);
    }

    /// Whether the bytes being written end the last response, after which the connection closes. If the
    /// client announced a body, the connection lingers first.
    pub(super) fn writes_last(&self) -> bool {
        self.parting.load(Relaxed) && !self.is_answering() && !self.body_announced()
    }

    /// Records that the connection is to be reset instead of answered.
    pub(super) fn want_reset(&self) {
        self.reset.store(true, Relaxed);
    }

    /// Whether the connection is to be reset.
    pub(super) fn wants_reset(&self) -> bool {
        self.reset.load(Relaxed)
    }

    /// Whether the body of a request in flight is incomplete.
    pub(super) fn is_receiving_body(&self) -> bool {
        self.is_answering() && self.request_began.is_set()
    }

    /// Whether a request is in flight.
    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Relaxed) > 0
    }

    /// Whether a response is being made or written.
    fn is_busy(&self) -> bool {
        self.is_answering() || self.blocked.is_set()
    }

    /// Whether hyper may read the next head: only after the current response has ended, and one head per wakeup.
    /// Otherwise a client that pipelines would be answered many times before other connections get their turn.
    pub(super) fn may_have_next_head(&self) -> bool {
        !self.is_busy() && !self.had_turn.load(Relaxed)
    }

    /// Whether the client is not reading its response.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_set()
    }

    /// Records that the last response was written, and that the client has not been sent all of it.
    pub(super) fn delivering(&self) {
        self.delivering.store(true, Relaxed);
        self.blocked();
    }

    /// Records that the client was sent the rest.
    pub(super) fn delivered(&self) {
        if self.delivering.load(Relaxed) {
            self.delivering.store(false, Relaxed);
            self.sent();
        }
    }

    /// Whether the connection may hold the seat of a request: a response that is in memory has ended for the service
    /// long before it is written, and holds its seat until then.
    pub(super) fn may_hold_seat(&self) -> bool {
        !self.delivering.load(Relaxed)
    }

    /// Records whether the client sent more bytes than hyper has read.
    pub(super) fn note_more(&self, has_more: bool) {
        self.has_more.store(has_more, Relaxed);
    }

    /// Whether hyper is waiting for bytes that it may read now.
    pub(super) fn has_withheld(&self) -> bool {
        self.has_more.load(Relaxed) && !self.is_busy()
    }

    /// Records whether the connection is waiting for memory.
    pub(super) fn wait_for_room(&self, waits: bool) {
        match (waits, self.waiting.is_set()) {
            (true, false) => self.waiting.set(&self.now),
            (false, true) => self.waiting.clear(),
            _ => {}
        }
    }

    /// Records whether the connection's task is waiting for its client's turn.
    pub(super) fn wait_for_turn(&self, waits: bool) {
        self.awaits_turn.store(waits, Relaxed);
    }

    /// Whether the connection's task is waiting for its client's turn.
    pub(super) fn awaits_turn(&self) -> bool {
        self.awaits_turn.load(Relaxed)
    }

    /// Selects the connection to be closed for another.
    pub(super) fn cut(&self) {
        self.cut.store(true, Relaxed);
    }

    /// Whether the connection was closed while its client was waiting for a response. A reset tells the client to
    /// retry; a normal close before a response does not. Between requests clients expect a normal close.
    pub(super) fn was_cut_short(&self) -> bool {
        let is_between = self.requests.load(Relaxed) > 0 && self.doing_nothing();
        self.cut.load(Relaxed) && !is_between
    }

    fn doing_nothing(&self) -> bool {
        !self.is_busy() && !self.has_unread_head() && !self.waiting.is_set()
    }

    /// When the connection last made progress, or `None` while a request is in flight or may be among the unread bytes.
    /// A client that does not read its response makes no progress.
    pub(super) fn useless_since(&self) -> Option<Instant> {
        let is_asked = self.is_answering() || self.waiting.is_set() || self.awaits_turn();
        let is_wanted = is_asked && !self.blocked.is_set() && !self.is_receiving_body();
        // Bytes of an incomplete request are not progress.
        (!is_wanted).then(|| self.request_began.get(self.began).unwrap_or_else(|| self.moved_at()))
    }

    /// When bytes were last sent or received. While a response is being made, this is the arrival of its request.
    pub(super) fn moved_at(&self) -> Instant {
        self.moved.get(self.began).unwrap_or(self.began)
    }

    /// Start of the time in which the client has not been reading its response.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked.get(self.began)
    }

    /// Start of the time in which the client has not been reading, if that is at least this long. The client may have read since
    /// the event loop last asked the kernel (`looked`), and while the connection waits for its turn, since it was last found not to.
    pub(super) fn blocked_for(&self, least: Duration, looked: Instant) -> Option<Instant> {
        let since = self.blocked_since()?;
        let until = self.found_blocked.get(self.began).filter(|_| self.awaits_turn()).unwrap_or(looked);
        (until.saturating_duration_since(since) >= least).then_some(since)
    }

    /// Start of the idle time, or `None` if the connection is not idle.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.useless_since().filter(|_| !self.has_unread_head() && !self.blocked.is_set())
    }
}

/// With a single writer, no atomic addition is needed.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

impl Answering {
    pub(super) fn activity(&self) -> &Activity {
        &self.0
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.store(self.0.answering.load(Relaxed) - 1, Relaxed);
        self.0.moved.set(&self.0.now);
    }
}

#[cfg(test)]
mod tests;
