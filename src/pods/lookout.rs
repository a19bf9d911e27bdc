//! [`Lookout`]: looks at the node's processes, on a thread of its own.
//!
//! A look takes some milliseconds, and a pod can make it take a second by starting thousands of processes. Requests are served
//! meanwhile: only requests of clients that are not known yet wait, and they all wait for the same look. Looks do not pile
//! up: one runs at a time, with a rest after it. Requests that need one that begins later share the next.
//!
//! # Why no pod is taken for another
//!
//! What a look found is published when it ends, at once: first the [`Sandboxes`], then the [`Look`] that says when it began.
//! So who reads the [`Look`] first and the sandboxes then sees what that look found, or what a later one did. Whatever a look
//! found, it read between its beginning and its end. Hence:
//!
//! - **Only the beginning of a look is evidence.** A pod's processes are older than its connections. So a look that began after
//!   a connection was accepted has found the connection's pod. One that was running then may have passed the pod by before its
//!   processes began. It does not count, however late it ends: who waits for [`Lookout::since`] waits for the next.
//! - **A look only proposes.** Whether a sandbox still lives and still has the address is read from the kernel when a client
//!   is identified ([`Sandboxes::holders`]). An old look can make a pod unknown. But nobody becomes a pod that has ended, or
//!   that has lost its address, while a look runs or after it. An address that a sandbox of some age has given itself is found
//!   up to a second later; that of a new sandbox is found by the first look that finds the sandbox.
//! - **A look that failed shows nothing.** [`Look::began`] stays that of the last one that succeeded.

use std::future::{Future, pending, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Sandboxes, Scanned};
use crate::clock::BootTime;
use crate::telemetry::histogram::{Histogram, TIME_BOUNDS};
use crate::telemetry::{Registry, table};

/// Scans take at most one part in so many of a processor's time.
const SHARE: u32 = 20;

/// But whoever waits for a scan waits no longer than this for its beginning: a client of a pod that was known before, and one of
/// a pod that was not, which no scan before can show.
const MAX_REST: Duration = Duration::from_millis(200);
const MAX_REST_OF_NEW: Duration = Duration::from_millis(100);

/// However long a scan takes, the next one begins no sooner than after so many times its cost. So scans take a fifth of a
/// processor at most, also where a pod makes them long.
const MIN_REST: u32 = 4;

/// A look that runs for longer is reported, since no request waits for longer. With 30,000 new processes one takes about a
/// second.
const MAX_LOOK: Duration = Duration::from_secs(2);

/// The stack of the thread, in bytes: a multiple of what a look needs. What it does not touch takes no memory.
const STACK: usize = 256 << 10;

/// What the kernel says about this node's pods, and when it was asked.
#[derive(Debug)]
pub struct Lookout {
    sandboxes: Arc<Sandboxes>,
    wanted: watch::Sender<Wanted>,
    last: watch::Receiver<Look>,
    running: Arc<Running>,
    times: Arc<Times>,
}

/// How long looks took.
type Times = Histogram<{ TIME_BOUNDS.len() }>;

/// Which look is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// One that begins at this moment or later.
    by_anybody: BootTime,
    /// The same, for clients that cannot be known by any look before.
    by_new: BootTime,
}

/// The last look at the node's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When the last look began that succeeded. Pods whose processes are older were found.
    pub began: BootTime,
    /// When the last look began, whatever came of it.
    pub tried: BootTime,
    ended: BootTime,
    failed: Option<Failure>,
    found: Scanned,
}

/// Why a look shows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("the node's processes cannot be listed (--host-proc), or are more than 200,000")]
    Unlisted,
    #[error("a scan of the node's processes panicked, which is a bug of the proxy; standard error has its message")]
    Panicked,
}

/// When the look that is running began, in nanoseconds since boot; 0 between looks.
type Running = AtomicU64;

/// Looks whenever it is asked to.
#[derive(Debug)]
pub(super) struct Looker {
    wanted: watch::Receiver<Wanted>,
    last: watch::Sender<Look>,
    running: Arc<Running>,
    times: Arc<Times>,
}

impl Look {
    const NEVER: Self = {
        let never = BootTime::from_nanos(0);
        let found = Scanned { processes: 0, new: 0, sandboxes: 0, unreadable: 0, cost: Duration::ZERO };
        Self { began: never, tried: never, ended: never, failed: None, found }
    };

    /// Whether it ended within this time, or rests.
    fn is_recent(&self, max_age: Duration) -> bool {
        BootTime::now().since(self.ended) < max_age.max(self.rest())
    }

    /// How long no other one begins after its end.
    fn rest(&self) -> Duration {
        self.rest_of(MAX_REST)
    }

    /// The same, if a client waits that no look before can show.
    fn rest_before_new(&self) -> Duration {
        self.rest_of(MAX_REST_OF_NEW)
    }

    fn rest_of(&self, longest: Duration) -> Duration {
        let cost = self.found.cost;
        if self.failed.is_some() { longest } else { (cost * SHARE).min(longest.max(cost * MIN_REST)) }
    }
}

impl Lookout {
    /// Starts the thread, which ends with the last use of this. The first look begins when one is asked for.
    pub fn start(sandboxes: Sandboxes) -> io::Result<Self> {
        let (lookout, looker) = Self::new(sandboxes);
        let sandboxes = Arc::clone(&lookout.sandboxes);
        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let look = move || ready(unless_panicked(|| measured(|| sandboxes.scan())));
        let run = move || runtime.block_on(looker.run(look));
        thread::Builder::new().name("processes".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(lookout)
    }

    pub(super) fn new(sandboxes: Sandboxes) -> (Self, Looker) {
        let (wanted, of_wanted) = watch::channel(Wanted { by_anybody: Look::NEVER.tried, by_new: Look::NEVER.tried });
        let (of_last, last) = watch::channel(Look::NEVER);
        let running = Arc::<Running>::default();
        let times = Arc::new(Times::new(&TIME_BOUNDS));
        let looker =
            Looker { wanted: of_wanted, last: of_last, running: Arc::clone(&running), times: Arc::clone(&times) };
        (Self { sandboxes: Arc::new(sandboxes), wanted, last, running, times }, looker)
    }

    /// Shows in the metrics how long looks take, and what they find.
    pub fn export(&self, registry: &Registry) {
        let times = Arc::clone(&self.times);
        registry.observe_times(&table::IDENTITY_SCAN_DURATION, move || times.snapshot());
        let last = self.last.clone();
        registry.observe(&table::IDENTITY_PROCESSES, move || Some(last.borrow().found.processes as u64));
    }

    /// What the last look found.
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// The last look that has ended. To be read before what it found.
    pub fn last(&self) -> Look {
        *self.last.borrow()
    }

    /// The last look, if it ended within this time, or another one may not begin yet.
    pub fn recent(&self, max_age: Duration) -> Option<Look> {
        Some(self.last()).filter(|look| look.is_recent(max_age))
    }

    /// The same, or the next look that ends: the one that runs, if one does.
    pub async fn within(&self, max_age: Duration) -> Look {
        if let Some(look) = self.recent(max_age) {
            return look;
        }
        let asked = BootTime::now();
        let oldest = asked - max_age + Duration::from_nanos(1);
        self.want(Wanted { by_anybody: oldest, by_new: Look::NEVER.tried });
        self.next(|look| look.tried >= oldest || look.ended >= asked).await
    }

    /// A look that began at this moment or later, once it has ended. If it failed, [`Look::began`] is older.
    pub async fn since(&self, moment: BootTime) -> Look {
        self.want(Wanted { by_anybody: moment, by_new: moment });
        self.next(|look| look.tried >= moment).await
    }

    /// Why pods whose processes are new are not found, if so. For operators.
    pub fn trouble(&self) -> Option<String> {
        let running = self.running.load(Relaxed);
        let took = BootTime::now().since(BootTime::from_nanos(running));
        if self.last.has_changed().is_err() {
            Some(
                "the thread that looks at the node's processes has ended, which is a bug; restart the proxy".to_owned(),
            )
        } else if running > 0 && took > MAX_LOOK {
            Some(format!("a scan of the node's processes (--host-proc) has taken {} s so far", took.as_secs()))
        } else {
            self.last().failed.map(|failure| failure.to_string())
        }
    }

    fn want(&self, more: Wanted) {
        self.wanted.send_if_modified(|wanted| {
            let before = *wanted;
            wanted.by_anybody = before.by_anybody.max(more.by_anybody);
            wanted.by_new = before.by_new.max(more.by_new);
            *wanted != before
        });
    }

    async fn next(&self, is_enough: impl FnMut(&Look) -> bool) -> Look {
        let mut last = self.last.clone();
        let found = last.wait_for(is_enough).await.map(|look| *look);
        match found {
            Ok(look) => look,
            // There will be none. Who waits has a deadline, and `trouble` says why.
            Err(_) => pending().await,
        }
    }
}

impl Looker {
    /// Looks when that is wanted, until nobody can want it any more.
    pub(super) async fn run<F>(mut self, mut look: impl FnMut() -> F)
    where
        F: Future<Output = Result<Scanned, Failure>>,
    {
        let mut last = Look::NEVER;
        while self.wanted.wait_for(|wanted| wanted.by_anybody > last.tried).await.is_ok() {
            let tried = BootTime::now();
            self.running.store(tried.as_nanos(), Relaxed);
            let (found, failed) = match look().await {
                Ok(found @ Scanned { processes: 0, .. }) => (found, Some(Failure::Unlisted)),
                Ok(found) => (found, None),
                Err(failure) => (Scanned::default(), Some(failure)),
            };
            self.running.store(0, Relaxed);
            report(last.failed, failed);
            // Nothing was learned by one that failed, so nothing may rely on it.
            let began = if failed.is_none() { tried } else { last.began };
            last = Look { began, tried, ended: BootTime::now(), failed, found };
            self.times.record(last.ended.since(tried));
            self.last.send_replace(last);
            sleep(last.rest_before_new()).await;
            // Also over if nobody can want one any more.
            let new = self.wanted.wait_for(|wanted| wanted.by_new > last.tried);
            let _ = timeout(last.rest().saturating_sub(last.rest_before_new()), new).await;
        }
    }
}

/// Logs when looks begin to fail, and when they succeed again.
fn report(before: Option<Failure>, now: Option<Failure>) {
    match (before, now) {
        (before, Some(now)) if before != Some(now) => {
            tracing::warn!("{now}; until they are seen again, new pods get 503");
        }
        (Some(_), None) => tracing::info!("the node's processes can be seen again"),
        _ => {}
    }
}

/// Measures what a look costs. A limit on the processor makes it take several times as long, and costs nothing.
fn measured(look: impl FnOnce() -> Scanned) -> Scanned {
    let time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let began = time();
    let found = look();
    Scanned { cost: time().saturating_sub(began), ..found }
}

/// A hostile process must not end all looks by a bug. The one that panicked shows nothing.
fn unless_panicked(look: impl FnOnce() -> Scanned) -> Result<Scanned, Failure> {
    // Unwind safe: a scan replaces what is known when it is complete, and its locks are not poisoned for others.
    catch_unwind(AssertUnwindSafe(look)).map_err(|_| Failure::Panicked)
}

#[cfg(test)]
mod tests;
