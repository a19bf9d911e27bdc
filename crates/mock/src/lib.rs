//! A mock metadata server: responds as Google's server does, and can fail in every way.
//!
//! It is for the demo, the tests and the benches (cargo feature `mock`) and not part of production builds. It
//! is a crate of its own and shares no code with the proxy, so that a mistake in the proxy's parsing is not repeated here. It writes
//! responses directly to a [`TcpStream`](tokio::net::TcpStream), so that any of them can be broken at any byte.
//!
//! Its behaviour follows, in this order: Google's document "View and query VM metadata"; header traces of real
//! servers (2019, in opencensus-java#1855; 2025, in gcp-metadata#657); Google's own emulator of 2016, a Python
//! program, called "the emulator" below; and the requirements of client libraries. Where none of them decides,
//! a query is read in the way that reveals more, which exposes a proxy that lets too much through.
//!
//! Where to start: `rows` is the tree as data, `tree` and `render` read it, `routes` maps requests to
//! responses, `connection` and `delivery` send them, and `fault` breaks them.
//!
//! ```no_run
//! # async fn example() {
//! use mock::{Fault, Mock};
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
mod forged;
pub mod google;
mod guest;
mod handle;
mod head;
mod identity;
mod journal;
mod kind;
mod legacy;
mod listening;
mod place;
mod query;
mod read;
mod refusal;
mod render;
mod routes;
mod rows;
mod script;
mod state;
mod token;
mod tree;
mod wire;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

pub use fault::Fault;
pub use handle::Handle;
pub use journal::RecordedRequest;
pub use rows::{BUILDER_ACCOUNT, DEFAULT_ACCOUNT, SECRET_MARKER, secret_paths};

use listening::{accept, listen, stopped};
use state::State;

/// A metadata server that is bound but does not serve yet.
#[derive(Debug)]
pub struct Mock {
    listener: TcpListener,
    state: Arc<State>,
    /// Dropped last, which signals [`Handle::stop`] that everything is closed.
    stop: watch::Receiver<bool>,
}

impl Mock {
    /// Binds an address. Port 0 binds any free port. An address that another mock has just released can be
    /// bound immediately.
    #[expect(clippy::unused_async, reason = "only a runtime can bind it, as with tokio's TcpListener")]
    pub async fn bind(addr: SocketAddr) -> io::Result<Self> {
        let listener = listen(addr)?;
        let state = Arc::new(State::new(listener.local_addr()?));
        let stop = state.stop.subscribe();
        Ok(Self { listener, state, stop })
    }

    /// Binds a free port of 127.0.0.1 and serves in a separate task, until [`Handle::stop`] or the end of the
    /// runtime.
    ///
    /// # Panics
    ///
    /// If no port can be bound.
    pub async fn start() -> Handle {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::start_on(addr).await.expect("a free port on the loopback address can be bound")
    }

    /// Binds an address and serves in a separate task, until [`Handle::stop`] or the end of the runtime.
    pub async fn start_on(addr: SocketAddr) -> io::Result<Handle> {
        let mock = Self::bind(addr).await?;
        let handle = mock.handle();
        tokio::spawn(mock.run(std::future::pending()));
        Ok(handle)
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.state.addr
    }

    /// The handle for tests: counters, faults and values.
    pub fn handle(&self) -> Handle {
        Handle { state: Arc::clone(&self.state) }
    }

    /// Serves until `shutdown` resolves or [`Handle::stop`] is called, then closes all connections, idle or
    /// not.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, state, mut stop } = self;
        let over = async {
            tokio::select! {
                () = shutdown => {}
                () = stopped(&mut stop) => {}
            }
        };
        accept(listener, over, |stream| connection::serve(stream, Arc::clone(&state))).await;
    }
}

#[cfg(test)]
mod tests;
