//! [`Drain`]: graceful shutdown.

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

/// Signals shutdown to everything that serves, and waits for requests in flight.
///
/// Shutdown has two steps, so that a process that takes over the same address misses no request. First the
/// listeners close, and new connections go to the other process. Only then do open connections announce that
/// their next response is the last. In the opposite order, clients would reconnect immediately and end up in
/// the queue of a listener that is being closed.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    doors: CancellationToken,
    last_call: LastCall,
    connections: TaskTracker,
}

/// Signal that accepted connections should finish.
#[derive(Debug, Clone, Default)]
pub struct LastCall {
    /// Same state as the token. Reading it for every request avoids the token's lock.
    has_come: Arc<AtomicBool>,
    token: CancellationToken,
}

impl LastCall {
    /// Sends the signal.
    pub fn call(&self) {
        self.has_come.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether the signal was sent.
    pub fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Resolves when the signal is sent.
    pub fn comes(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }
}

impl Drain {
    /// Cancelled when no more connections should be accepted.
    pub fn doors(&self) -> CancellationToken {
        self.doors.clone()
    }

    /// The signal that accepted connections should finish.
    pub fn last_call(&self) -> LastCall {
        self.last_call.clone()
    }

    /// Whether the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.doors.is_cancelled()
    }

    /// Runs a connection that the drain waits for.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.connections.spawn(connection).abort_handle()
    }

    /// Stops accepting connections.
    pub fn close_doors(&self) {
        self.doors.cancel();
    }

    /// Stops accepting connections, closes idle ones and waits for requests in flight. Returns the number of
    /// connections still open at the timeout.
    pub async fn finish(&self, grace: Duration) -> usize {
        self.doors.cancel();
        self.last_call.call();
        self.connections.close();
        if timeout(grace, self.connections.wait()).await.is_ok() { 0 } else { self.connections.len() }
    }
}

/// Ignores SIGHUP from now on, and logs it while polled. Other daemons read their configuration again on it.
pub fn ignore_hangups() -> io::Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            tracing::info!(
                "received SIGHUP; ignored: files are read again without it; changed flags or variables need a restart"
            );
        }
    })
}

/// A stream of SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers before it returns, because a process without a handler ignores SIGTERM as PID 1
    /// of a container.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
