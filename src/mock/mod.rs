//! A metadata server to test against: what Google's server answers, with every way in which it can fail.
//!
//! It exists for the demo, the tests and the benches (cargo feature `mock`) and is in no production build. It shares no
//! code with the proxy, so that a mistake in the proxy's reading of a path or query is not repeated here, and it writes
//! its answers by hand on a [`TcpStream`](tokio::net::TcpStream), so that any answer can be broken at any byte.
//!
//! What it answers follows, in this order: Google's document "View and query VM metadata"; header traces of real servers
//! (2019, in opencensus-java#1855; 2025, in gcp-metadata#657); Google's own emulator of 2016, a Python program, called
//! "the emulator" below; and what client libraries insist on. Where none of them tells, a query is read the way that
//! gives away more, so that a proxy in front of it which lets too much through is caught.
//!
//! To read: `rows` is the tree as data, `tree` and `render` are what can be asked of it, `routes` goes from a request to
//! an answer, `connection` and `delivery` put it on the wire, and `fault` is how it goes wrong.
//!
//! ```no_run
//! # async fn example() {
//! use gce_metadata_proxy::mock::{Fault, Mock};
//!
//! let mock = Mock::start().await;
//! mock.fault_next(2, Fault::Status(503, "not ready".into()));
//! // ... send requests to mock.addr() ...
//! assert_eq!(mock.requests_to("/computeMetadata/v1/instance/service-accounts/default/token"), 3);
//! mock.stop().await;
//! # }
//! ```

mod account;
mod answer;
mod connection;
mod delivery;
mod fault;
mod guest;
mod handle;
mod head;
mod identity;
mod journal;
mod kind;
mod legacy;
mod lock;
mod noise;
mod place;
mod query;
mod read;
mod refusal;
mod render;
mod routes;
mod rows;
mod state;
mod token;
mod tree;
mod wire;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use fault::Fault;
pub use handle::Handle;
pub use journal::Seen;
pub use rows::{BUILDER_ACCOUNT, DEFAULT_ACCOUNT, SECRET_MARKER, secret_paths};
pub use token::TokenPolicy;

use state::State;

/// Connections that the kernel may hold before they are accepted; a load test opens thousands at once.
const BACKLOG: u32 = 4096;

/// How long to wait when no connection can be accepted, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A metadata server that has its address but does not serve yet.
#[derive(Debug)]
pub struct Mock {
    listener: TcpListener,
    state: Arc<State>,
    /// Dropped last, which tells [`Handle::stop`] that everything is closed.
    alive: watch::Sender<()>,
}

impl Mock {
    /// Takes an address; port 0 takes any free port. An address that another mock has just given up can be taken at once.
    #[expect(clippy::unused_async, reason = "only a runtime can bind it, as with tokio's TcpListener")]
    pub async fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        let listener = socket.listen(BACKLOG)?;
        let state = Arc::new(State::new(listener.local_addr()?));
        Ok(Self { listener, state, alive: watch::Sender::new(()) })
    }

    /// Binds a free port of 127.0.0.1 and serves on a task of its own, until [`Handle::stop`] or the runtime's end.
    ///
    /// # Panics
    ///
    /// When no port can be bound.
    pub async fn start() -> Handle {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::start_on(addr).await.expect("a free port on the loopback address can be bound")
    }

    /// Binds an address and serves on a task of its own, until [`Handle::stop`] or the runtime's end.
    pub async fn start_on(addr: SocketAddr) -> io::Result<Handle> {
        let mock = Self::bind(addr).await?;
        let handle = mock.handle();
        tokio::spawn(mock.run(std::future::pending()));
        Ok(handle)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.state.addr
    }

    /// What a test holds: the counters, and the script of faults and values.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.state), self.alive.subscribe())
    }

    /// Serves until `shutdown` resolves or [`Handle::stop`] is called, then closes every connection, idle or not.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, state, alive } = self;
        let mut connections = JoinSet::new();
        let mut stop = state.stop.subscribe();
        let mut over = pin!(async {
            tokio::select! {
                () = shutdown => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
        loop {
            tokio::select! {
                () = &mut over => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection::serve(stream, Arc::clone(&state)));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the mock cannot accept connections; retrying");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        connections.shutdown().await;
        drop(alive);
    }
}

#[cfg(test)]
mod tests;
