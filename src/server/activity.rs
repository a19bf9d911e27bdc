//! [`Activity`]: what a connection is doing, as its bytes and its service tell it.
//!
//! The socket sees bytes, the service sees requests, and the connection's timers need both; whoever looks for a connection
//! to give up reads it too, from another task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Shared between a connection's socket, its service and its timers, all of which run in the connection's task: nobody else
/// writes here, so that nothing takes a locked instruction.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// When the task was last woken; what it does until it waits again is done at this moment.
    now: Moment,
    /// When bytes last moved, either way.
    moved: Moment,
    /// When the head under way began.
    head_began: Moment,
    /// Since when the client takes no bytes of an answer.
    blocked: Moment,
    /// Since when a whole head waits for memory to be served in.
    waiting: Moment,
    /// Heads received whole.
    heads: AtomicU64,
    /// Heads that became a request, i.e. that hyper could read.
    requests: AtomicU64,
    /// Requests whose answer has not ended.
    answering: AtomicU64,
    body_announced: AtomicBool,
    /// More was sent than hyper has been given.
    has_more: AtomicBool,
    /// A head was received whole since the task was last woken.
    had_turn: AtomicBool,
    /// The process is ending: answers say that the connection closes.
    last_call: AtomicBool,
    /// The answer under way is the last one.
    parting: AtomicBool,
    reset: AtomicBool,
    /// The connection gives way to another. This alone is written by another task.
    cut: AtomicBool,
}

/// Milliseconds since a connection began, plus one; 0 for never.
#[derive(Debug, Default)]
struct Moment(AtomicU64);

/// Lives as long as a request's answer has not ended.
#[derive(Debug)]
pub(super) struct Answering(Arc<Activity>);

/// Bounds on a connection that does nothing useful.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the first byte of a request's head to its last.
    pub header: Duration,
    /// Without a request.
    pub idle: Duration,
    /// Without a byte taken of an answer that is there.
    pub write: Duration,
    /// Until there is memory to serve a request in.
    pub room: Duration,
    /// Without a request, once the process is told to end.
    pub last_call: Duration,
}

impl Moment {
    fn set(&self, now: &Self) {
        self.0.store(now.0.load(Relaxed), Relaxed);
    }

    fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    fn get(&self, began: Instant) -> Option<Instant> {
        let since = self.0.load(Relaxed).checked_sub(1)?;
        Some(began + Duration::from_millis(since))
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            now: Moment(AtomicU64::new(1)),
            moved: Moment::default(),
            head_began: Moment::default(),
            blocked: Moment::default(),
            waiting: Moment::default(),
            heads: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            answering: AtomicU64::new(0),
            body_announced: AtomicBool::new(false),
            has_more: AtomicBool::new(false),
            had_turn: AtomicBool::new(false),
            last_call: AtomicBool::new(false),
            parting: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            cut: AtomicBool::new(false),
        }
    }

    /// The connection's task goes on.
    pub(super) fn tick(&self) {
        self.had_turn.store(false, Relaxed);
        // A connection does not live for 584 million years.
        self.now.0.store(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1, Relaxed);
    }

    /// Bytes were received: so many heads have ended with them, and another has begun or has not.
    pub(super) fn received(&self, ended_heads: u64, mid_head: bool, body_announced: bool) {
        self.moved.set(&self.now);
        if ended_heads > 0 {
            add(&self.heads, ended_heads);
            self.had_turn.store(true, Relaxed);
        }
        match (mid_head, self.head_began.is_set()) {
            (true, false) => self.head_began.set(&self.now),
            (false, true) => self.head_began.clear(),
            _ => {}
        }
        if body_announced {
            self.body_announced.store(true, Relaxed);
        }
    }

    /// Bytes were sent; whether the client had taken none for a while.
    pub(super) fn sent(&self) -> bool {
        self.moved.set(&self.now);
        let was_blocked = self.blocked.is_set();
        if was_blocked {
            self.blocked.clear();
        }
        was_blocked
    }

    /// The client takes no bytes; whether that is news.
    pub(super) fn blocked(&self) -> bool {
        let is_news = !self.blocked.is_set();
        if is_news {
            self.blocked.set(&self.now);
        }
        is_news
    }

    /// A request reached the service.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        add(&self.requests, 1);
        add(&self.answering, 1);
        Answering(Arc::clone(self))
    }

    /// Whether what is being written can be hyper's own answer to a head that it could not read.
    pub(super) fn has_unread_head(&self) -> bool {
        self.heads.load(Relaxed) > self.requests.load(Relaxed) || self.head_began.is_set()
    }

    /// Whether a request said that a body follows.
    pub(super) fn body_announced(&self) -> bool {
        self.body_announced.load(Relaxed)
    }

    /// The process is ending.
    pub(super) fn call_last(&self) {
        self.last_call.store(true, Relaxed);
    }

    /// Whether the connection closes after the answer under way.
    pub(super) fn closes(&self) -> bool {
        self.body_announced() || self.last_call.load(Relaxed)
    }

    /// The connection closes behind the answer under way.
    pub(super) fn part(&self) {
        self.parting.store(true, Relaxed);
    }

    /// Whether what is being written is the end of the last answer, so that the connection closes once it is written. A
    /// client that still sends a body is listened to for a while before that.
    pub(super) fn writes_last(&self) -> bool {
        self.parting.load(Relaxed) && self.answering.load(Relaxed) == 0 && !self.body_announced()
    }

    /// The connection is to be reset in place of an answer.
    pub(super) fn want_reset(&self) {
        self.reset.store(true, Relaxed);
    }

    /// Whether it is.
    pub(super) fn wants_reset(&self) -> bool {
        self.reset.load(Relaxed)
    }

    /// Whether an answer is being made or written.
    fn is_busy(&self) -> bool {
        self.answering.load(Relaxed) > 0 || self.blocked.is_set()
    }

    /// Whether hyper may have the next head: not before the answer under way is over, and one head each time the task is woken.
    /// A client that pipelines would otherwise be answered many times before the other connections get their turn.
    pub(super) fn may_have_next_head(&self) -> bool {
        !self.is_busy() && !self.had_turn.load(Relaxed)
    }

    /// Whether the client takes no bytes of its answer.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_set()
    }

    /// Takes note of whether more was sent than hyper has been given.
    pub(super) fn note_more(&self, has_more: bool) {
        self.has_more.store(has_more, Relaxed);
    }

    /// Whether hyper was told to wait for bytes that it can be given now.
    pub(super) fn has_withheld(&self) -> bool {
        self.has_more.load(Relaxed) && !self.is_busy()
    }

    /// The connection waits for memory to be served in, or waits no longer.
    pub(super) fn wait_for_room(&self, waits: bool) {
        match (waits, self.waiting.is_set()) {
            (true, false) => self.waiting.set(&self.now),
            (false, true) => self.waiting.clear(),
            _ => {}
        }
    }

    /// The connection gives way to another.
    pub(super) fn cut(&self) {
        self.cut.store(true, Relaxed);
    }

    /// Whether the connection was cut while its client waits for something. A reset tells it to try again; an end before an
    /// answer does not. Between two requests an end is what clients expect.
    pub(super) fn was_cut_short(&self) -> bool {
        let is_between = self.requests.load(Relaxed) > 0 && self.doing_nothing();
        self.cut.load(Relaxed) && !is_between
    }

    fn doing_nothing(&self) -> bool {
        !self.is_busy() && !self.has_unread_head() && !self.waiting.is_set()
    }

    /// When the connection last got anywhere; nothing while a request is in flight that its client still wants. A client
    /// that does not read its answer does not.
    pub(super) fn useless_since(&self) -> Option<Instant> {
        let is_asked = self.answering.load(Relaxed) > 0 || self.waiting.is_set();
        let is_wanted = is_asked && !self.blocked.is_set();
        // Bytes of a head that does not end get nowhere.
        (!is_wanted).then(|| self.head_began.get(self.began).unwrap_or_else(|| self.moved_at()))
    }

    /// When bytes last moved. While an answer is made, this is when its request came.
    pub(super) fn moved_at(&self) -> Instant {
        self.moved.get(self.began).unwrap_or(self.began)
    }

    /// Since when the client takes no bytes of its answer.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked.get(self.began)
    }

    /// When nothing is under way, since when.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.useless_since().filter(|_| !self.has_unread_head() && !self.blocked.is_set())
    }

    /// What the connection is doing, as far as its deadline depends on it. The rows are in order: the first that holds counts.
    fn doing(&self) -> Doing {
        if let Some(since) = self.blocked.get(self.began) {
            return Doing::NotReading(since);
        }
        if self.answering.load(Relaxed) > 0 {
            return Doing::Answering;
        }
        if let Some(since) = self.waiting.get(self.began) {
            return Doing::WaitingForRoom(since);
        }
        if let Some(since) = self.head_began.get(self.began) {
            return Doing::SendingHead(since);
        }
        if self.last_call.load(Relaxed) { Doing::Leaving(self.moved_at()) } else { Doing::Idle(self.moved_at()) }
    }

    /// When the connection is to be closed if it goes on like this; nothing while it may take as long as it takes.
    pub(super) fn deadline(&self, timeouts: Timeouts) -> Option<Instant> {
        self.doing().deadline(timeouts)
    }
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Its client takes no bytes of an answer, since then.
    NotReading(Instant),
    /// An answer is being made.
    Answering,
    /// A whole head is here, and no memory to serve it in, since then.
    WaitingForRoom(Instant),
    /// Its client is sending a head, since then.
    SendingHead(Instant),
    /// Nothing since then, and the process ends.
    Leaving(Instant),
    /// Nothing since then.
    Idle(Instant),
}

impl Doing {
    /// The table of deadlines: how long a client may go on like this.
    fn deadline(self, timeouts: Timeouts) -> Option<Instant> {
        match self {
            Self::NotReading(since) => Some(since + timeouts.write),
            // The upstream's deadlines bound it, and it ends with its client: see `Inbox::poll_end`.
            Self::Answering => None,
            Self::WaitingForRoom(since) => Some(since + timeouts.room),
            Self::SendingHead(since) => Some(since + timeouts.header),
            Self::Leaving(since) => Some(since + timeouts.last_call),
            Self::Idle(since) => Some(since + timeouts.idle),
        }
    }
}

/// What has one writer needs no locked addition.
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
mod tests {
    use tokio::time::advance;

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(90),
        write: Duration::from_secs(30),
        room: Duration::from_secs(2),
        last_call: Duration::from_secs(1),
    };

    /// Each row: what a connection does in its fifth second, and how long after that it is closed.
    #[tokio::test(start_paused = true)]
    async fn each_client_gets_the_time_that_it_is_owed() {
        type Does = fn(&Arc<Activity>) -> Option<Answering>;
        let rows: [(&str, Does, Option<u64>); 9] = [
            ("nothing at all", |_| None, Some(85)),
            (
                "an empty line",
                |does| {
                    does.received(0, false, false);
                    None
                },
                Some(90),
            ),
            (
                "part of a head",
                |does| {
                    does.received(0, true, false);
                    None
                },
                Some(10),
            ),
            (
                "a head that is being answered",
                |does| {
                    does.received(1, false, false);
                    Some(does.answering())
                },
                None,
            ),
            (
                "a head and part of another",
                |does| {
                    does.received(1, true, false);
                    Some(does.answering())
                },
                None,
            ),
            (
                "an answer that is not read",
                |does| {
                    does.blocked();
                    Some(does.answering())
                },
                Some(30),
            ),
            (
                "an answer that ended and is not read",
                |does| {
                    drop(does.answering());
                    does.blocked();
                    None
                },
                Some(30),
            ),
            (
                "a head without memory to serve it",
                |does| {
                    does.wait_for_room(true);
                    None
                },
                Some(2),
            ),
            (
                "nothing, and the process ends",
                |does| {
                    does.received(0, false, false);
                    does.call_last();
                    None
                },
                Some(1),
            ),
        ];
        for (what, does, left) in rows {
            let activity = Arc::new(Activity::new());
            advance(Duration::from_secs(5)).await;
            activity.tick();
            let _answering = does(&activity);
            let deadline = activity.deadline(TIMEOUTS);
            assert_eq!(deadline.map(|deadline| (deadline - Instant::now()).as_secs()), left, "{what}");
        }
    }

    #[test]
    fn hyper_gets_one_head_each_time_the_task_is_woken() {
        let activity = Arc::new(Activity::new());
        activity.tick();
        activity.received(0, true, false);
        assert!(activity.may_have_next_head(), "this head is not whole");
        activity.received(1, false, false);
        drop(activity.answering());
        activity.note_more(true);
        assert!(!activity.may_have_next_head() && activity.has_withheld(), "it has been answered in this turn");
        activity.tick();
        assert!(activity.may_have_next_head());
    }

    #[test]
    fn hyper_gets_no_other_head_before_an_answer_is_written() {
        let activity = Arc::new(Activity::new());
        assert!(!activity.is_busy());
        let answering = activity.answering();
        assert!(activity.is_busy());
        activity.blocked();
        drop(answering);
        assert!(activity.is_busy(), "it is made and not taken");
        activity.sent();
        assert!(!activity.is_busy());
    }
}
