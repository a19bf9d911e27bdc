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

use tokio::runtime;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Sandboxes, Scanned};
use crate::clock::BootTime;

/// Looks take at most one part in so many of the time.
const MAX_SHARE: u32 = 20;

/// But a new pod is looked for at least this often, however long a look takes on a busy node.
const MAX_REST: Duration = Duration::from_millis(200);

/// A look that runs for longer is reported, since no request waits for longer. With 30,000 new processes one takes about a
/// second.
const MAX_LOOK: Duration = Duration::from_secs(2);

/// The stack of the thread, in bytes: a multiple of what a look needs. What it does not touch takes no memory.
const STACK: usize = 256 << 10;

/// What the kernel says about this node's pods, and when it was asked.
#[derive(Debug)]
pub struct Lookout {
    sandboxes: Arc<Sandboxes>,
    /// A look is wanted that begins at this moment or later.
    wanted: watch::Sender<BootTime>,
    last: watch::Receiver<Look>,
    running: Arc<Running>,
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
}

/// Why a look shows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("the node's processes cannot be listed (--host-proc)")]
    Unlisted,
    #[error("a scan of the node's processes panicked, which is a bug of the proxy; standard error has its message")]
    Panicked,
}

/// When the look that is running began, in nanoseconds since boot; 0 between looks.
type Running = AtomicU64;

/// Looks whenever it is asked to.
#[derive(Debug)]
pub(super) struct Looker {
    wanted: watch::Receiver<BootTime>,
    last: watch::Sender<Look>,
    running: Arc<Running>,
}

impl Look {
    const NEVER: Self = {
        let never = BootTime::from_nanos(0);
        Self { began: never, tried: never, ended: never, failed: None }
    };

    /// Whether it ended within this time, or rests.
    fn is_recent(&self, max_age: Duration) -> bool {
        BootTime::now().since(self.ended) < max_age.max(self.rest())
    }

    /// How long no other one begins after its end. After a failure, the longest time.
    fn rest(&self) -> Duration {
        (self.ended.since(self.began) * MAX_SHARE).min(MAX_REST)
    }
}

impl Lookout {
    /// Starts the thread, which ends with the last use of this. The first look begins when one is asked for.
    pub fn start(sandboxes: Sandboxes) -> io::Result<Self> {
        let (lookout, looker) = Self::new(sandboxes);
        let sandboxes = Arc::clone(&lookout.sandboxes);
        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let look = move || ready(unless_panicked(|| sandboxes.scan()));
        let run = move || runtime.block_on(looker.run(look));
        thread::Builder::new().name("processes".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(lookout)
    }

    pub(super) fn new(sandboxes: Sandboxes) -> (Self, Looker) {
        let (wanted, of_wanted) = watch::channel(BootTime::from_nanos(0));
        let (of_last, last) = watch::channel(Look::NEVER);
        let running = Arc::<Running>::default();
        let looker = Looker { wanted: of_wanted, last: of_last, running: Arc::clone(&running) };
        (Self { sandboxes: Arc::new(sandboxes), wanted, last, running }, looker)
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
        self.want(oldest);
        self.next(|look| look.tried >= oldest || look.ended >= asked).await
    }

    /// A look that began at this moment or later, once it has ended. If it failed, [`Look::began`] is older.
    pub async fn since(&self, moment: BootTime) -> Look {
        self.want(moment);
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

    fn want(&self, moment: BootTime) {
        self.wanted.send_if_modified(|wanted| {
            let is_later = moment > *wanted;
            *wanted = moment.max(*wanted);
            is_later
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
        while self.wanted.wait_for(|moment| *moment > last.tried).await.is_ok() {
            let tried = BootTime::now();
            self.running.store(tried.as_nanos(), Relaxed);
            let failed = match look().await {
                Ok(Scanned { processes: 0, .. }) => Some(Failure::Unlisted),
                Ok(_) => None,
                Err(failure) => Some(failure),
            };
            self.running.store(0, Relaxed);
            report(last.failed, failed);
            // Nothing was learned by one that failed, so nothing may rely on it.
            let began = if failed.is_none() { tried } else { last.began };
            last = Look { began, tried, ended: BootTime::now(), failed };
            self.last.send_replace(last);
            sleep(last.rest()).await;
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

/// A hostile process must not end all looks by a bug. The one that panicked shows nothing.
fn unless_panicked(look: impl FnOnce() -> Scanned) -> Result<Scanned, Failure> {
    // Unwind safe: a scan replaces what is known when it is complete, and its locks are not poisoned for others.
    catch_unwind(AssertUnwindSafe(look)).map_err(|_| Failure::Panicked)
}

#[cfg(test)]
mod tests;
