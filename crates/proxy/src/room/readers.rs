//! [`Readers`]: the connections to which charged responses are being written.
//!
//! A response is charged until its last byte is written or dropped, so a client that does not read keeps its room in
//! use.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Charge;
use crate::shares::Client;

/// Time to read a response while other requests wait. On the same node even the largest response takes only
/// milliseconds.
pub(super) const READ_TIMEOUT: Duration = Duration::from_millis(250);

/// The connections to which charged responses are being written, by ID.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<u64, Reader>);

/// A connection to which a response is being written, and the client charged for it.
#[derive(Debug, Clone, Copy)]
struct Reader {
    peer: SocketAddr,
    charged: Client,
    since: Instant,
}

/// Bytes being written to a client, with their room.
struct Reading {
    bytes: Bytes,
    charge: Arc<Charge>,
    /// The ID of its reader, or `None` for the proxy's own requests.
    reader: Option<u64>,
}

impl Readers {
    fn insert(&mut self, id: u64, peer: SocketAddr, charged: Client) {
        self.0.insert(id, Reader { peer, charged, since: Instant::now() });
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Connections that have had [`READ_TIMEOUT`] to read: first those of the charged client, then all.
    pub(super) fn slow(&self, charged: Option<Client>) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let slow = || self.0.values().filter(|reader| reader.since.elapsed() >= READ_TIMEOUT);
        let of_charged = slow().filter(|reader| Some(reader.charged) == charged).map(|reader| reader.peer).collect();
        (of_charged, slow().map(|reader| reader.peer).collect())
    }
}

impl Charge {
    /// Attaches the room to bytes sent to a client. It is released when the last reference is dropped.
    pub fn read_by(self: &Arc<Self>, peer: Option<SocketAddr>, bytes: Bytes) -> Bytes {
        let reader = peer.map(|peer| {
            let mut state = self.account.room.state.lock();
            let number = state.number();
            state.readers.insert(number, peer, self.account.client());
            number
        });
        Bytes::from_owner(Reading { bytes, charge: Arc::clone(self), reader })
    }
}

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(number) = self.reader {
            self.charge.account.room.state.lock().readers.0.remove(&number);
        }
    }
}
