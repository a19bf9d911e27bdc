//! [`Scans`]: scans the node's processes, on a thread of its own.
//!
//! A scan takes some milliseconds, and a pod can make it take a second by starting thousands of processes. Requests are served
//! meanwhile. Only requests of clients that are not known yet wait, and they share the next scan. One scan runs at a time, with
//! a rest after it.
//!
//! # Why no pod is taken for another
//!
//! The result of a scan is published when it ends, at once: first the [`Sandboxes`], then the [`Scan`] that says when it began.
//! A reader that reads the [`Scan`] first and the sandboxes then sees the result of that scan or of a later one. All of a result
//! was read between the scan's beginning and its end. Hence:
//!
//! - **Only the beginning of a scan is evidence.** A pod's processes are older than its connections. So a scan that began after
//!   a connection was accepted has found the connection's pod. A scan that was running then may have passed the pod's place
//!   before its processes began. It does not count, however late it ends: [`Scans::since`] waits for the next one.
//! - **A scan only proposes.** Whether a sandbox still lives and still has the address is read from the kernel when a
//!   client is identified ([`Sandboxes::holders`]). An old scan can make a pod unknown. It cannot identify a client as
//!   a pod that has ended or has lost its address. An address that an older sandbox has given itself is found up to a
//!   second later; that of a new sandbox is found by the first scan that finds the sandbox.
//! - **A scan that failed shows nothing.** [`Scan::began`] stays that of the last one that succeeded.

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
use base::clock::BootTime;
use telemetry::histogram::{Histogram, TIME_BOUNDS};
use telemetry::{Registry, table};

/// A rest takes this many times as long as the scan before, up to [`MAX_REST`]. So scans take at most about 1/20 of a processor's
/// time if each takes 10 ms or less, and longer ones more ([`MIN_REST`]).
const SHARE: u32 = 20;

/// Longest rests before a scan that a client waits for: if an earlier scan may show the client's pod, and if none can.
const MAX_REST: Duration = Duration::from_millis(200);
const MAX_REST_OF_NEW: Duration = Duration::from_millis(50);

/// Shortest rest, as a multiple of the cost of the scan before. So scans take at most a quarter of a processor, even if
/// a pod makes them long.
const MIN_REST: u32 = 3;

/// Maximum time between two scans, if nobody waits for one. New connections of known pods need none, but addresses that pods have
/// lost, and runtimes that take a pod's addresses when it starts, are seen by scans. A pod may also add routes all the time: a scan
/// must see them while there are still few, because a single read of many is dangerous
/// ([`HostProc::has_few_routes`](super::host_proc::HostProc::has_few_routes)).
const INTERVAL: Duration = Duration::from_secs(2);

/// A longer scan is reported, since no request waits longer. With 30,000 new processes, a scan takes about a second.
const MAX_SCAN: Duration = Duration::from_secs(2);

/// Stack size of the thread, in bytes: several times the need of a scan. Untouched pages take no memory.
const STACK: usize = 256 << 10;

/// The sandboxes of this node, and the thread that keeps them up to date.
#[derive(Debug)]
pub struct Scans {
    sandboxes: Arc<Sandboxes>,
    wanted: watch::Sender<Wanted>,
    last: watch::Receiver<Scan>,
    running: Arc<Running>,
    times: Arc<Times>,
}

/// Durations of scans.
type Times = Histogram<{ TIME_BOUNDS.len() }>;

/// The scan that clients wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The scan must begin at this moment or later.
    by_anybody: BootTime,
    /// The same, for clients that no earlier scan can show.
    by_new: BootTime,
}

/// The last scan of the node's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// Beginning of the last scan that succeeded. It found all pods whose processes are older.
    pub began: BootTime,
    /// Beginning of the last scan, failed or not.
    pub tried: BootTime,
    ended: BootTime,
    failed: Option<Failure>,
    found: Scanned,
}

/// Reason for a failed scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("the node's processes cannot be listed (--host-proc), or are more than 200,000")]
    Unlisted,
    #[error("a scan of the node's processes panicked, which is a bug of the proxy; standard error has its message")]
    Panicked,
}

/// Beginning of the running scan, in nanoseconds since boot; 0 between scans.
type Running = AtomicU64;

/// The loop of the thread.
#[derive(Debug)]
pub(super) struct ScanLoop {
    wanted: watch::Receiver<Wanted>,
    last: watch::Sender<Scan>,
    running: Arc<Running>,
    times: Arc<Times>,
}

impl Scan {
    const NEVER: Self = {
        let never = BootTime::from_nanos(0);
        let found = Scanned { processes: 0, new: 0, sandboxes: 0, unreadable: 0, cost: Duration::ZERO };
        Self { began: never, tried: never, ended: never, failed: None, found }
    };

    /// Whether it ended less than `max_age` ago, or its rest is not over yet.
    fn is_recent(&self, max_age: Duration) -> bool {
        BootTime::now().since(self.ended) < max_age.max(self.rest())
    }

    /// Minimum time between the end of this scan and the next one.
    fn rest(&self) -> Duration {
        self.rest_of(MAX_REST)
    }

    /// The same, while a client waits that no earlier scan can show.
    fn rest_before_new(&self) -> Duration {
        self.rest_of(MAX_REST_OF_NEW)
    }

    fn rest_of(&self, longest: Duration) -> Duration {
        let cost = self.found.cost;
        if self.failed.is_some() { longest } else { (cost * SHARE).min(longest.max(cost * MIN_REST)) }
    }
}

impl Scans {
    /// Starts the thread, which ends when this is dropped. The first scan begins on request.
    pub fn start(sandboxes: Sandboxes) -> io::Result<Self> {
        let (scans, scan_loop) = Self::new(sandboxes);
        let sandboxes = Arc::clone(&scans.sandboxes);
        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let scan = move || ready(unless_panicked(|| measured(|| sandboxes.scan())));
        let run = move || runtime.block_on(scan_loop.run(scan));
        thread::Builder::new().name("processes".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(scans)
    }

    pub(super) fn new(sandboxes: Sandboxes) -> (Self, ScanLoop) {
        let (wanted, of_wanted) = watch::channel(Wanted { by_anybody: Scan::NEVER.tried, by_new: Scan::NEVER.tried });
        let (of_last, last) = watch::channel(Scan::NEVER);
        let running = Arc::<Running>::default();
        let times = Arc::new(Times::new(&TIME_BOUNDS));
        let scan_loop =
            ScanLoop { wanted: of_wanted, last: of_last, running: Arc::clone(&running), times: Arc::clone(&times) };
        (Self { sandboxes: Arc::new(sandboxes), wanted, last, running, times }, scan_loop)
    }

    /// Exports the durations of scans and the number of processes.
    pub fn export(&self, registry: &Registry) {
        let times = Arc::clone(&self.times);
        registry.observe_times(&table::IDENTITY_SCAN_DURATION, move || times.snapshot());
        let last = self.last.clone();
        registry.observe(&table::IDENTITY_PROCESSES, move || Some(last.borrow().found.processes as u64));
    }

    /// The sandboxes as of the last scan.
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// The last scan that has ended. Must be read before [`Scans::sandboxes`].
    pub fn last(&self) -> Scan {
        *self.last.borrow()
    }

    /// The last scan, if it ended less than `max_age` ago, or if its rest is not over yet.
    pub fn recent(&self, max_age: Duration) -> Option<Scan> {
        Some(self.last()).filter(|scan| scan.is_recent(max_age))
    }

    /// The same, or the next scan that ends, which may be running already.
    pub async fn within(&self, max_age: Duration) -> Scan {
        if let Some(scan) = self.recent(max_age) {
            return scan;
        }
        let asked = BootTime::now();
        let oldest = asked - max_age + Duration::from_nanos(1);
        self.want(Wanted { by_anybody: oldest, by_new: Scan::NEVER.tried });
        self.next(|scan| scan.tried >= oldest || scan.ended >= asked).await
    }

    /// Waits for a scan that began at this moment or later. If it failed, [`Scan::began`] is older.
    pub async fn since(&self, moment: BootTime) -> Scan {
        self.want(Wanted { by_anybody: moment, by_new: moment });
        self.next(|scan| scan.tried >= moment).await
    }

    /// The reason why new pods are not found, for operators. `None` if they are found.
    pub fn trouble(&self) -> Option<String> {
        let running = self.running.load(Relaxed);
        let took = BootTime::now().since(BootTime::from_nanos(running));
        if self.last.has_changed().is_err() {
            Some("the thread that scans the node's processes has ended, which is a bug; restart the proxy".to_owned())
        } else if running > 0 && took > MAX_SCAN {
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

    async fn next(&self, is_enough: impl FnMut(&Scan) -> bool) -> Scan {
        let mut last = self.last.clone();
        let found = last.wait_for(is_enough).await.map(|scan| *scan);
        match found {
            Ok(scan) => scan,
            // The thread has ended. Callers have deadlines, and `trouble` says why.
            Err(_) => pending().await,
        }
    }
}

impl ScanLoop {
    /// Scans on request, and each [`INTERVAL`] after the first, until [`Scans`] is dropped.
    pub(super) async fn run<F>(mut self, mut scan: impl FnMut() -> F)
    where
        F: Future<Output = Result<Scanned, Failure>>,
    {
        let mut last = Scan::NEVER;
        while self.is_due(&last).await {
            let tried = BootTime::now();
            self.running.store(tried.as_nanos(), Relaxed);
            let (found, failed) = match scan().await {
                Ok(found @ Scanned { processes: 0, .. }) => (found, Some(Failure::Unlisted)),
                Ok(found) => (found, None),
                Err(failure) => (Scanned::default(), Some(failure)),
            };
            self.running.store(0, Relaxed);
            report(last.failed, failed);
            // A failed scan is no evidence.
            let began = if failed.is_none() { tried } else { last.began };
            last = Scan { began, tried, ended: BootTime::now(), failed, found };
            self.times.record(last.ended.since(tried));
            self.last.send_replace(last);
            sleep(last.rest_before_new()).await;
            // Also ends if `Scans` is dropped.
            let new = self.wanted.wait_for(|wanted| wanted.by_new > last.tried);
            let _ = timeout(last.rest().saturating_sub(last.rest_before_new()), new).await;
        }
    }

    /// Waits until the next scan is due. `false` once [`Scans`] is dropped.
    async fn is_due(&mut self, last: &Scan) -> bool {
        let wanted = self.wanted.wait_for(|wanted| wanted.by_anybody > last.tried);
        if *last == Scan::NEVER {
            return wanted.await.is_ok();
        }
        timeout(INTERVAL, wanted).await.map_or(true, |wanted| wanted.is_ok())
    }
}

/// Logs when scans begin to fail, and when they succeed again.
fn report(before: Option<Failure>, now: Option<Failure>) {
    match (before, now) {
        (before, Some(now)) if before != Some(now) => {
            tracing::warn!("{now}; until they are seen again, new pods get 503");
        }
        (Some(_), None) => tracing::info!("the node's processes can be seen again"),
        _ => {}
    }
}

/// Measures the processor time of a scan. Time in which it is throttled does not count.
fn measured(scan: impl FnOnce() -> Scanned) -> Scanned {
    let time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let began = time();
    let found = scan();
    Scanned { cost: time().saturating_sub(began), ..found }
}

/// Turns a panic into a failed scan: a hostile process must not end all scans through a bug.
fn unless_panicked(scan: impl FnOnce() -> Scanned) -> Result<Scanned, Failure> {
    // Unwind safe: a scan replaces the known state only when it is complete, and a panic releases its locks.
    catch_unwind(AssertUnwindSafe(scan)).map_err(|_| Failure::Panicked)
}

#[cfg(any(test, feature = "test-util"))]
mod in_task;
#[cfg(test)]
mod tests;
