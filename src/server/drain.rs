//! [`Drain`]: when the process stops, and what it finishes first.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tells everything that serves that the end has begun, and waits for what is in flight.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    stopping: CancellationToken,
    connections: TaskTracker,
}

impl Drain {
    /// Resolves when the end begins.
    pub fn stopping(&self) -> CancellationToken {
        self.stopping.clone()
    }

    /// Whether the end has begun.
    pub fn has_begun(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Runs a connection that the end waits for.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        self.connections.spawn(connection);
    }

    /// Begins the end: nothing new is accepted, idle connections close, requests in flight are finished. Returns the
    /// number of connections that were still open when the time was up; they are cut when the runtime ends.
    pub async fn finish(&self, grace: Duration) -> usize {
        self.stopping.cancel();
        self.connections.close();
        if timeout(grace, self.connections.wait()).await.is_ok() { 0 } else { self.connections.len() }
    }
}

/// Resolves at the first SIGTERM or SIGINT. The handlers are in place when this returns, not when the future is first
/// polled: as process 1 of a container, a process without a handler ignores SIGTERM.
pub fn signals() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: draining"),
            _ = interrupt.recv() => tracing::info!("SIGINT: draining"),
        }
    })
}
