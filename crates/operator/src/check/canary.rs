//! [`Canary`]: checks again and again, and says what it finds.

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

/// Of the interval, so that the canaries of a cluster do not ask its DNS server
/// all at once.
const JITTER: Jitter = Jitter(0.9, 1.1);

/// What checks repeatedly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// Time from a check to the next.
    pub interval: Duration,
    /// The name of this node, to be named in what is said. `None` if it is not known.
    pub node: Option<String>,
    /// What the redirect leaves open on purpose.
    pub open: Routes,
}

impl Canary {
    /// Checks, and serves what it found at this address, while polled.
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
