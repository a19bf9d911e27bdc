//! [`Arrival`]: source and time of a connection.

use std::net::{IpAddr, SocketAddr};

use base::clock::BootTime;

/// Source and time of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The client's address.
    pub peer: SocketAddr,
    /// When the connection was accepted. Its client opened it earlier.
    pub accepted: BootTime,
}

impl Arrival {
    /// A connection that is accepted now.
    pub fn now(peer: SocketAddr) -> Self {
        Self { peer, accepted: BootTime::now() }
    }

    /// The client's IP address. An IPv4-mapped IPv6 address is IPv4.
    pub fn addr(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }
}
