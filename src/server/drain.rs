//! [`Drain`]: when the process stops, and what it finishes first.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

/// Tells everything that serves that the end has begun, and waits for what is in flight.
///
/// The end has two steps, so that a process that takes over on the same address misses nothing: first the doors close, and
/// who comes now comes to the other; only then are those inside told that each answer is their last. The other way round
/// they would leave, come back at once, and be in the queue of a listener that is just being closed.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    doors: CancellationToken,
    last_call: LastCall,
    connections: TaskTracker,
}

/// Word that what was accepted is to come to its end.
#[derive(Debug, Clone, Default)]
pub struct LastCall {
    /// The same as the token says, for those who look at every request: looking at a token takes a lock.
    has_come: Arc<AtomicBool>,
    token: CancellationToken,
}

impl LastCall {
    /// Gives word.
    pub fn call(&self) {
        self.has_come.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether it has come.
    pub fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Resolves when it comes.
    pub fn comes(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }
}

impl Drain {
    /// Resolves when nothing is to be accepted any more.
    pub fn doors(&self) -> CancellationToken {
        self.doors.clone()
    }

    /// When what was accepted is to come to its end.
    pub fn last_call(&self) -> LastCall {
        self.last_call.clone()
    }

    /// Whether the end has begun.
    pub fn has_begun(&self) -> bool {
        self.doors.is_cancelled()
    }

    /// Runs a connection that the end waits for.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.connections.spawn(connection).abort_handle()
    }

    /// Begins the end: nothing new is accepted.
    pub fn close_doors(&self) {
        self.doors.cancel();
    }

    /// Ends: nothing new is accepted, idle connections close, requests in flight are finished. Returns the number of
    /// connections that were still open when the time was up; they are cut when the runtime ends.
    pub async fn finish(&self, grace: Duration) -> usize {
        self.doors.cancel();
        self.last_call.call();
        self.connections.close();
        if timeout(grace, self.connections.wait()).await.is_ok() { 0 } else { self.connections.len() }
    }
}

/// SIGTERM and SIGINT, as they come.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// The handlers are in place when this returns, not when the first signal is awaited: as process 1 of a container, a
    /// process without a handler ignores SIGTERM.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
