//! [`CutUnread`]: a function by which the room closes connections whose clients do not read.
//!
//! The room itself does not know connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Closes connections with these peers that do not read. Returns `false` if all of them are reading.
#[derive(Clone)]
pub struct CutUnread(Arc<Cut>);

type Cut = dyn Fn(&[SocketAddr]) -> bool + Send + Sync;

impl CutUnread {
    /// Uses this function, which gets the peers of slow connections.
    pub fn new(cut: impl Fn(&[SocketAddr]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(cut))
    }

    /// Closes no connections.
    pub fn never() -> Self {
        Self::new(|_| false)
    }

    /// Closes connections with these peers that do not read. Returns `false` if there are none.
    pub(super) fn cut(&self, peers: &[SocketAddr]) -> bool {
        !peers.is_empty() && (self.0)(peers)
    }
}

impl fmt::Debug for CutUnread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutUnread")
    }
}
