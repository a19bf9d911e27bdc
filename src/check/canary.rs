//! [`Canary`]: checks again and again, and says what it finds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;

use super::heads;
use super::pages::Pages;
use crate::config::{MAX_ADMIN_CONNECTIONS, TIMEOUTS};
use crate::redirect::Routes;
use crate::server::{self, Arrival, Connections, Drain, Server};
use crate::telemetry::Registry;

/// The part of the interval by which each wait differs at random, so that the canaries of a cluster do not ask its DNS server
/// all at once.
const JITTER: f64 = 0.1;

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

/// The address for operators cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} (--metrics-addr): {error}; choose another address")]
pub struct ListenError {
    addr: SocketAddr,
    error: io::Error,
}

impl Canary {
    /// Checks, and serves what it found at this address, while polled.
    pub(super) async fn run(self, addr: SocketAddr) -> Result<(), ListenError> {
        let listener = server::bind(addr, false).map_err(|error| ListenError { addr, error })?;
        let node = self.node.unwrap_or_else(|| "this node".to_owned());
        let pages = Arc::new(Pages::new(node, Registry::of_this_process()));
        let _serving = tokio::spawn(serve(listener, Arc::clone(&pages)));
        loop {
            pages.show(&heads(&self.open).await);
            sleep(self.interval.mul_f64(1.0 + JITTER * (2.0 * fastrand::f64() - 1.0))).await;
        }
    }
}

/// Pods can reach it, so the limits are those of the proxy's own listener for operators.
async fn serve(listener: TcpListener, pages: Arc<Pages>) {
    let connections =
        Connections::new(MAX_ADMIN_CONNECTIONS, usize::MAX, Arc::default(), Arc::default(), &Registry::default());
    let stacks = Arc::new(move |_: Arrival| Arc::clone(&pages).into_stack());
    Server { stacks, timeouts: TIMEOUTS, connections, drain: Drain::default() }.run(listener).await;
}
