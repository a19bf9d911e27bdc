//! [`Route`]: a route of this network namespace, from its `/proc/net`; and whether an address is its own, as rtnetlink(7) says.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{fs, iter};

use crate::netlink::{self, NLM_F_ACK, add_attribute, ask};

/// From `linux/rtnetlink.h`.
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;

/// Length of `rtmsg`, and the position of the route's type in it.
const MESSAGE: usize = 12;
const TYPE: usize = 7;

/// The main routing table of IPv4, and all tables of IPv6. Policy routing is not considered.
const V4: &str = "/proc/net/route";
const V6: &str = "/proc/net/ipv6_route";

/// From `linux/route.h` and `linux/ipv6_route.h`.
const RTF_REJECT: u32 = 0x200;
const RTF_ANYCAST: u32 = 0x10_0000;
const RTF_LOCAL: u32 = 0x8000_0000;

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The name of the interface that it leads to.
    pub interface: String,
    /// The first address of its prefix, and the prefix's length in bits.
    pub to: IpAddr,
    pub length: u32,
    flags: u32,
}

impl Route {
    /// Whether it is used for this address, if no other is more specific.
    pub fn matches(&self, addr: IpAddr) -> bool {
        match (self.to, addr) {
            (IpAddr::V4(to), IpAddr::V4(addr)) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(self.length)).unwrap_or(0);
                (to.to_bits() ^ addr.to_bits()) & mask == 0
            }
            (IpAddr::V6(to), IpAddr::V6(addr)) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(self.length)).unwrap_or(0);
                (to.to_bits() ^ addr.to_bits()) & mask == 0
            }
            _ => false,
        }
    }

    /// Whether it is to a single address.
    pub fn is_to_host(&self) -> bool {
        self.length == if self.to.is_ipv4() { 32 } else { 128 }
    }

    /// Whether it rejects packets.
    pub fn rejects(&self) -> bool {
        self.flags & RTF_REJECT != 0
    }

    /// Whether the address is the node's own.
    pub fn is_local(&self) -> bool {
        self.flags & RTF_LOCAL != 0
    }

    /// Whether it leads elsewhere, and is not one that each interface has by itself.
    pub fn leads_elsewhere(&self) -> bool {
        let is_every_interfaces = match self.to {
            IpAddr::V4(_) => false,
            IpAddr::V6(to) => to.is_unicast_link_local() || to.is_multicast(),
        };
        self.flags & (RTF_LOCAL | RTF_ANYCAST | RTF_REJECT) == 0 && !is_every_interfaces
    }
}

/// Whether packets to this address stay in this network namespace: it has the address, or a route that says so. That a socket
/// can be bound to it says less: with `ip_nonlocal_bind`, any address can be.
pub fn is_local(ip: IpAddr) -> io::Result<bool> {
    let (family, address, bits) = netlink::parts(ip);
    let mut request = vec![0; MESSAGE];
    (request[0], request[1]) = (family, bits);
    add_attribute(&mut request, RTA_DST, &address);
    match ask(RTM_GETROUTE, NLM_F_ACK, &request) {
        Ok(routes) => Ok(routes.iter().any(|route| route.get(TYPE) == Some(&RTN_LOCAL))),
        // The last two: a route of the type blackhole, or prohibit.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// All routes. Without those of IPv6 if the kernel has no IPv6.
pub fn list() -> io::Result<Vec<Route>> {
    let mut routes = parse_v4(&fs::read_to_string(V4)?);
    match fs::read_to_string(V6) {
        Ok(text) => routes.extend(parse_v6(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(routes)
}

/// Reads `/proc/net/route`. Lines that are not routes are left out.
pub fn parse_v4(text: &str) -> Vec<Route> {
    text.lines().filter_map(route_of_v4).collect()
}

/// Reads `/proc/net/ipv6_route`. Lines that are not routes are left out.
pub fn parse_v6(text: &str) -> Vec<Route> {
    text.lines().filter_map(route_of_v6).collect()
}

/// The interface, the destination, the gateway, flags, three other fields, and the mask.
fn route_of_v4(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
    // The kernel prints an address in memory order as one number: on all machines of GCE, the address's first byte is the
    // number's last.
    let (to, mask) = (Ipv4Addr::from(number(1)?.to_le_bytes()), number(7)?);
    Some(Route {
        interface: (*fields.first()?).to_owned(),
        to: to.into(),
        length: mask.count_ones(),
        flags: number(3)?,
    })
}

/// The destination, its prefix's length, six other fields, flags, and the interface. Numbers are hexadecimal.
fn route_of_v6(line: &str) -> Option<Route> {
    let mut fields = line.split_whitespace();
    let (to, length) = (fields.next()?, fields.next()?);
    let mut last = iter::from_fn(|| fields.next_back());
    let (interface, flags) = (last.next()?.to_owned(), u32::from_str_radix(last.next()?, 16).ok()?);
    let to = Ipv6Addr::from_bits(u128::from_str_radix(to, 16).ok()?);
    let length = u32::from_str_radix(length, 16).ok().filter(|length| *length <= 128)?;
    Some(Route { interface, to: to.into(), length, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every network namespace has loopback. 192.0.2.0/24 and `2001:db8::/32` are for documentation: no machine has them.
    #[test]
    fn an_address_of_this_machine_is_told_from_others() {
        let has_v6 = std::net::UdpSocket::bind("[::1]:0").is_ok();
        for (ip, expected) in [
            ("127.0.0.1", true),
            ("127.0.0.9", true),
            ("::1", has_v6),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
            // Every network has a route to it: that of broadcasts.
            ("127.255.255.255", false),
        ] {
            assert_eq!(is_local(ip.parse().expect("an address")).expect("the kernel answers"), expected, "{ip}");
        }
    }

    #[test]
    fn routes_are_read_as_the_kernel_prints_them() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    ens4\t00000000\t0100800A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                    veth1\t0500080A\t00000000\t0001\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n";
        let [default, pod] = &parse_v4(text)[..] else { panic!("two routes") };
        let addr = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!((&*pod.interface, pod.to, pod.is_to_host()), ("veth1", addr("10.8.0.5"), true));
        assert!(pod.matches(addr("10.8.0.5")) && !pod.matches(addr("10.8.0.6")) && !pod.matches(addr("::")));
        assert!(default.matches(addr("10.8.0.6")) && !default.is_to_host() && default.leads_elsewhere());

        let text = "fd000000000000000000000000000005 80 00000000000000000000000000000000 00 \
                    00000000000000000000000000000000 00000400 00000001 00000000 00000001    veth1\n\
                    fe800000000000000000000000000000 40 00000000000000000000000000000000 00 \
                    00000000000000000000000000000000 00000100 00000001 00000000 00000001    veth1\n\
                    00000000000000000000000000000001 80 00000000000000000000000000000000 00 \
                    00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n";
        let [pod, link_local, own] = &parse_v6(text)[..] else { panic!("three routes") };
        assert!(pod.is_to_host() && pod.leads_elsewhere() && pod.matches(addr("fd00::5")));
        assert!(!link_local.leads_elsewhere() && link_local.matches(addr("fe80::7")) && link_local.length == 64);
        assert!(own.is_local() && !own.leads_elsewhere());
    }

    #[test]
    fn other_lines_are_no_routes() {
        for line in ["", "eth0", "eth0\t0000000G\t0\t0003\t0\t0\t100\t00000000", "eth0\t00000000\t0\t0003"] {
            assert_eq!(parse_v4(line), []);
        }
        for line in
            ["", "fd00", "fd00 81 0 00 0 0 0 0 00000001 eth0", "fd00 40 0 00 0 0 0 0 flags eth0", "x 40 00000001 eth0"]
        {
            assert_eq!(parse_v6(line), []);
        }
    }

    #[test]
    fn this_networks_routes_can_be_listed() {
        assert!(list().is_ok());
    }
}
