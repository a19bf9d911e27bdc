//! [`Place`] and [`Serving`]: a connection's share of the limited resources.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Connections;
use super::open::{Asker, Asks, Resource};
use crate::memory::{OPEN_BYTES, SERVING_BYTES, UNREAD_BYTES};
use crate::server::large::LargeWrites;
use crate::shares::{Availability, Client};
use telemetry::shedding::Shed;

/// Size of the head, in bytes, that is included in the charge of an open connection.
pub(super) const SMALL_HEAD_BYTES: usize = 2 * 1024;

/// Number of connections of a client that are charged with an unread response only while they have one, since few
/// clients do not read. Further connections are charged with one from the start. Otherwise a client that opens hundreds
/// of connections and stops reading all of them at once would take the memory before the others give way. Pods keep a
/// few connections for each library that they use.
const FEW_CONNECTIONS: usize = 8;

/// The place of a connection. Released on drop.
#[derive(Debug)]
pub(in crate::server) struct Place {
    pub(in crate::server) number: u64,
    pub(super) client: Client,
    pub(super) connections: Arc<Connections>,
}

/// Permission to have hyper's state. Released on drop.
#[derive(Debug)]
pub(in crate::server) struct Serving {
    number: u64,
    client: Client,
    /// The charge includes a response that the client does not read, now or [always](FEW_CONNECTIONS).
    is_unread: bool,
    is_of_many: bool,
    pub(super) connections: Arc<Connections>,
}

/// Whether to close other connections of the same client. Finding them takes some microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Reclaim {
    Yes,
    /// No, only connections of a client that holds more.
    No,
}

impl Place {
    fn asks(&self) -> Asks {
        Asks { client: self.client, by: Asker::Admitted(self.number) }
    }

    /// Charges an incomplete head of this size. Returns `false` if there is no memory for it.
    pub(in crate::server) fn hold_head(&self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(SMALL_HEAD_BYTES) else { return true };
        let mut open = self.connections.open.lock();
        let held = open.connections.get(&self.number).map_or(0, |connection| connection.bytes);
        let wanted = OPEN_BYTES + more;
        if wanted <= held {
            return true;
        }
        let has_room = self.connections.make_memory(&mut open, self.asks(), wanted - held);
        if has_room {
            open.weigh(self.number, wanted);
            self.connections.note_use(&open);
        }
        has_room
    }

    /// Charges the memory to serve a request, if there is room or others give way.
    pub(in crate::server) fn serve(&self, reclaim: Reclaim) -> Option<Serving> {
        let mut open = self.connections.open.lock();
        let is_of_many = open.places.held_by(self.client) > FEW_CONNECTIONS;
        let bytes = if is_of_many { SERVING_BYTES + UNREAD_BYTES } else { SERVING_BYTES };
        self.connections.pressure.took(bytes);
        let may_take = match open.room(Resource::Memory, self.asks(), bytes) {
            Availability::Free | Availability::From(_) => true,
            Availability::FromItself => reclaim == Reclaim::Yes,
            Availability::None => reclaim == Reclaim::Yes || open.holds_nothing_else(self.asks()),
        };
        if !may_take || !self.connections.make_memory(&mut open, self.asks(), bytes) {
            return None;
        }
        // The charge of hyper's state includes the head.
        open.weigh(self.number, OPEN_BYTES + bytes);
        self.connections.note_use(&open);
        let connections = Arc::clone(&self.connections);
        Some(Serving { number: self.number, client: self.client, is_unread: is_of_many, is_of_many, connections })
    }

    /// Where the client asks for large writes.
    pub(in crate::server) fn large_writes(&self) -> (Arc<LargeWrites>, Client) {
        (Arc::clone(&self.connections.large_writes), self.client)
    }

    /// Counts a connection that is reset, unless it was cut, which counted it.
    pub(in crate::server) fn note_reset(&self) {
        if self.connections.open.lock().connections.contains_key(&self.number) {
            self.connections.shedding.reset();
        }
    }

    /// Counts a connection that is reset because there is no memory for the client's bytes.
    pub(in crate::server) fn refused(&self, peer: SocketAddr) {
        self.note_reset();
        self.connections.shedding.closed(Shed::Memory, peer);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        if open.remove(self.number).is_some() {
            self.connections.note_use(&open);
        }
    }
}

impl Serving {
    /// Charges for an unread response, or stops doing so. Sent bytes cannot be refused, so they are charged whether or
    /// not others can give way.
    pub(in crate::server) fn weigh_response(&mut self, is_unread: bool) {
        if self.is_of_many || is_unread == self.is_unread {
            return;
        }
        self.is_unread = is_unread;
        let mut open = self.connections.open.lock();
        if is_unread {
            self.connections.pressure.took(UNREAD_BYTES);
            let asks = Asks { client: self.client, by: Asker::Admitted(self.number) };
            self.connections.make_memory(&mut open, asks, UNREAD_BYTES);
        }
        let unread = if is_unread { UNREAD_BYTES } else { 0 };
        open.weigh(self.number, OPEN_BYTES + SERVING_BYTES + unread);
        self.connections.note_use(&open);
    }

    /// Whether connections drop hyper's state as soon as they are idle.
    pub(in crate::server) fn is_crowded(&self) -> bool {
        self.connections.is_crowded.load(Relaxed) || self.connections.is_pressed.load(Relaxed)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.weigh(self.number, OPEN_BYTES);
        self.connections.note_use(&open);
    }
}
