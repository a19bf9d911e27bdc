//! [`Canary`]: checks repeatedly, and publishes the results.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::heads;
use super::pages::Pages;
use crate::pages::{self, ListenError};
use base::backoff::Jitter;
use redirect::Routes;
use telemetry::Registry;

/// Factors of the interval, so that the canaries of a cluster do not all query its DNS server at once.
const JITTER: Jitter = Jitter(0.9, 1.1);

/// Repeats the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// Time between checks.
    pub interval: Duration,
    /// The name of this node, for log lines and pages. `None` if unknown.
    pub node: Option<String>,
    /// Routes that the redirect leaves open on purpose.
    pub open: Routes,
}

impl Canary {
    /// Checks repeatedly, and serves the results at this address, while polled.
    pub(super) async fn run(self, addr: SocketAddr) -> Result<(), ListenError> {
        let door = pages::bind(addr, false, "--metrics-addr")?;
        let node = self.node.unwrap_or_else(|| "this node".to_owned());
        let found = Arc::new(Pages::new(node, Registry::of_this_process()));
        let shown = Arc::clone(&found);
        let _serving = tokio::spawn(pages::serve(door, move |path| shown.answer(path)));
        loop {
            found.show(&heads(&self.open).await);
            sleep(JITTER.of(self.interval, fastrand::f64())).await;
        }
    }
}
