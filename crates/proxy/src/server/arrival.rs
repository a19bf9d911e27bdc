//! [`Arrival`]: source and time of a connection.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::AsFd;

use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{getsockopt, setsockopt};

use base::clock::BootTime;
use option::{Ipv4PacketOptions, Ipv6PacketOptions};

/// Source and time of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The client's address.
    pub peer: SocketAddr,
    /// When the connection was accepted. Its client opened it earlier.
    pub accepted: BootTime,
    /// The index of the interface that the last packet of its handshake came in by, if it was read. With TCP Fast Open, and with
    /// `flowlabel_reflect`, it is that of the first packet.
    pub interface: Option<NonZeroU32>,
}

impl Arrival {
    /// A connection that is accepted now.
    pub fn now(peer: SocketAddr) -> Self {
        Self { peer, accepted: BootTime::now(), interface: None }
    }

    /// The same, with its interface.
    #[must_use]
    pub fn with_interface(self, connection: &impl AsFd) -> Self {
        Self { interface: self.interface(connection).ok().and_then(NonZeroU32::new), ..self }
    }

    fn interface(&self, connection: &impl AsFd) -> nix::Result<u32> {
        if self.peer.is_ipv4() {
            setsockopt(connection, Ipv4PacketInfo, &true)?;
            return Ok(getsockopt(connection, Ipv4PacketOptions)?.info.ipi_ifindex.cast_unsigned());
        }
        setsockopt(connection, Ipv6RecvPacketInfo, &true)?;
        let message = getsockopt(connection, Ipv6PacketOptions);
        // Otherwise, each packet that comes in would replace the interface.
        setsockopt(connection, Ipv6RecvPacketInfo, &false)?;
        Ok(message?.info.ipi6_ifindex)
    }

    /// The client's IP address. An IPv4-mapped IPv6 address is IPv4.
    pub fn addr(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }
}

/// `IP_PKTOPTIONS` of ip(7), and the same for IPv6: on a stream, the kernel answers with what it kept of the handshake.
#[allow(unreachable_pub, reason = "the macro makes public types")]
mod option {
    use nix::{getsockopt_impl, libc, sockopt_impl};

    /// A control message.
    #[derive(Clone, Copy)]
    #[repr(C)]
    pub struct Message<T> {
        header: libc::cmsghdr,
        pub info: T,
    }

    sockopt_impl!(Ipv4PacketOptions, GetOnly, libc::IPPROTO_IP, libc::IP_PKTOPTIONS, Message<libc::in_pktinfo>);
    sockopt_impl!(
        Ipv6PacketOptions,
        GetOnly,
        libc::IPPROTO_IPV6,
        libc::IPV6_2292PKTOPTIONS,
        Message<libc::in6_pktinfo>
    );
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_over_loopback_came_in_by_lo() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("loopback");
            let _client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let (connection, peer) = listener.accept().expect("a client");
            let arrival = Arrival::now(peer);
            assert_eq!(arrival.interface, None);
            assert_eq!(arrival.with_interface(&connection).interface, NonZeroU32::new(1), "{address}");
        }
    }
}
