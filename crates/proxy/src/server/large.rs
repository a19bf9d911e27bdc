//! [`LargeWrites`]: which clients have a large piece of a response on its way.
//!
//! A write costs the kernel some 8 µs whatever its size, so a large response is written in large pieces. But what a client has not read
//! is kept in kernel memory, and a hostile client opens many connections and reads nothing. So there are few large pieces at a time, of
//! which a client has at most half. A small one follows, which the kernel takes only once the client has acknowledged nearly all of the
//! large one: a client that reads has it for a moment. While others have them all, responses are written in small pieces.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::memory::MAX_LARGE_WRITES;
use crate::shares::Client;

/// The clients of the large pieces that are on their way, one entry for each piece.
#[derive(Debug, Default)]
pub(super) struct LargeWrites(Mutex<SmallVec<[Client; MAX_LARGE_WRITES]>>);

/// A client's large piece. Exists until the client has acknowledged it, or its connection is closed.
#[derive(Debug)]
pub(super) struct LargeWrite {
    client: Client,
    writes: Arc<LargeWrites>,
}

impl LargeWrites {
    /// Returns `None` if there are [`MAX_LARGE_WRITES`], or the client has half of them.
    pub(super) fn begin(self: &Arc<Self>, client: Client) -> Option<LargeWrite> {
        let mut clients = self.0.lock();
        let held = clients.iter().filter(|other| **other == client).count();
        if clients.len() == MAX_LARGE_WRITES || held == MAX_LARGE_WRITES / 2 {
            return None;
        }
        clients.push(client);
        Some(LargeWrite { client, writes: Arc::clone(self) })
    }
}

impl Drop for LargeWrite {
    fn drop(&mut self) {
        let mut clients = self.writes.0.lock();
        if let Some(at) = clients.iter().position(|client| *client == self.client) {
            clients.swap_remove(at);
        }
    }
}
