//! [`Activity`]: what a connection is doing, as its bytes and its service tell it.
//!
//! The socket sees bytes, the service sees requests, and the connection's timers need both. All three run in one task, so
//! the atomics only satisfy the compiler; nothing is ever contended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Shared between a connection's socket, its service and its timers.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// Milliseconds since `began` at which bytes last moved, either way.
    moved: AtomicU64,
    /// Milliseconds since `began` at which the head under way began, plus one; 0 between heads.
    head_began: AtomicU64,
    /// Heads received whole.
    heads: AtomicU64,
    /// Heads that became a request, i.e. that hyper could read.
    requests: AtomicU64,
    /// Requests whose answer has not begun.
    answering: AtomicU64,
    body_announced: AtomicBool,
}

/// Lives as long as a request has no answer.
#[derive(Debug)]
pub(super) struct Answering(std::sync::Arc<Activity>);

/// Bounds on a connection that does nothing useful.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the first byte of a request's head to its last.
    pub header: Duration,
    /// Without a request, or without a byte moving.
    pub idle: Duration,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            moved: AtomicU64::new(0),
            head_began: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            answering: AtomicU64::new(0),
            body_announced: AtomicBool::new(false),
        }
    }

    /// Bytes moved.
    pub(super) fn moved(&self) {
        self.moved.store(self.now(), Relaxed);
    }

    /// After bytes were received: so many heads have ended, and another has begun or has not.
    pub(super) fn received(&self, heads: u64, mid_head: bool, body_announced: bool) {
        self.heads.store(heads, Relaxed);
        match (mid_head, self.head_began.load(Relaxed)) {
            (true, 0) => self.head_began.store(self.now() + 1, Relaxed),
            (false, 1..) => self.head_began.store(0, Relaxed),
            _ => {}
        }
        if body_announced {
            self.body_announced.store(true, Relaxed);
        }
    }

    /// A request reached the service.
    pub(super) fn answering(self: &std::sync::Arc<Self>) -> Answering {
        self.requests.fetch_add(1, Relaxed);
        self.answering.fetch_add(1, Relaxed);
        Answering(std::sync::Arc::clone(self))
    }

    /// Whether what is being written can be hyper's own answer to a head that it could not read.
    pub(super) fn has_unread_head(&self) -> bool {
        self.heads.load(Relaxed) > self.requests.load(Relaxed) || self.head_began.load(Relaxed) != 0
    }

    /// Whether a request said that a body follows.
    pub(super) fn body_announced(&self) -> bool {
        self.body_announced.load(Relaxed)
    }

    /// When the connection has been useless for too long, if nothing happens until then.
    pub(super) fn deadline(&self, timeouts: Timeouts) -> Instant {
        let idle = || self.began + Duration::from_millis(self.moved.load(Relaxed)) + timeouts.idle;
        match self.head_began.load(Relaxed) {
            // An answer takes the time it takes; the upstream's deadlines bound it.
            _ if self.answering.load(Relaxed) > 0 => Instant::now() + timeouts.idle,
            0 => idle(),
            began => self.began + Duration::from_millis(began - 1) + timeouts.header,
        }
    }

    fn now(&self) -> u64 {
        // A connection does not live for 584 million years.
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Relaxed);
        self.0.moved();
    }
}
