//! [`Destination`]: the addresses that pods' requests are sent to.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

pub const METADATA_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// The server's address on machines with IPv6.
pub const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// The port of k8s-metadata-proxy. Below 1024, so that no unprivileged process can take it.
const PORT: u16 = 988;

/// The addresses of the proxy on a node. They are next to those of the metadata server, in networks that no machine or pod
/// uses. GKE gives the first to its own proxies.
pub const PROXY: [SocketAddr; 2] = [
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(169, 254, 169, 252), PORT)),
    SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x252), PORT, 0, 0)),
];

/// The addresses that the proxy listens on: at least one, and at most one of each IP version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    v4: Option<SocketAddrV4>,
    v6: Option<SocketAddrV6>,
}

/// The proxy's own addresses on a node.
impl Default for Destination {
    fn default() -> Self {
        let [SocketAddr::V4(v4), SocketAddr::V6(v6)] = PROXY else { unreachable!("one of each IP version") };
        Self { v4: Some(v4), v6: Some(v6) }
    }
}

impl Destination {
    /// `None` if there is no address, or more than one of an IP version.
    pub fn new(addrs: &[SocketAddr]) -> Option<Self> {
        let v4: Vec<_> =
            addrs.iter().filter_map(|addr| if let SocketAddr::V4(addr) = addr { Some(*addr) } else { None }).collect();
        let v6: Vec<_> =
            addrs.iter().filter_map(|addr| if let SocketAddr::V6(addr) = addr { Some(*addr) } else { None }).collect();
        let is_one_of_each = v4.len() <= 1 && v6.len() <= 1 && !addrs.is_empty();
        is_one_of_each.then(|| Self { v4: v4.first().copied(), v6: v6.first().copied() })
    }

    /// The first address of each IP version that a node can send its pods to. `None` if there is none.
    pub fn first_of(addrs: &[SocketAddr]) -> Option<Self> {
        let fits = |addr: &&SocketAddr| !addr.ip().is_unspecified() && !addr.ip().is_loopback();
        let first = |is_v4| addrs.iter().filter(fits).find(|addr| addr.is_ipv4() == is_v4).copied();
        Self::new(&[first(true), first(false)].into_iter().flatten().collect::<Vec<_>>())
    }

    pub fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.v4.map(SocketAddr::V4).into_iter().chain(self.v6.map(SocketAddr::V6))
    }

    /// The IPv6 address, if there is also one for IPv4, by which pods are served without it.
    pub(super) fn spare_v6(&self) -> Option<IpAddr> {
        self.v4.and(self.v6).map(|v6| IpAddr::V6(*v6.ip()))
    }

    pub(super) fn without_v6(self) -> Self {
        Self { v6: None, ..self }
    }

    /// Without the IPv6 address on a node that has no IPv6, unless it is the only one.
    pub(super) fn on_this_node(&self) -> Self {
        let v6 = self.v6.filter(|_| self.v4.is_none() || has_ipv6());
        Self { v6, ..self.clone() }
    }
}

/// Whether the redirect adds this address to the node. It adds link-local IPv4 addresses, and IPv6 addresses of the metadata
/// server's network, which nobody else uses. Any other address must exist already.
pub fn is_added(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() && ip != METADATA_V4,
        IpAddr::V6(ip) => ip.segments()[..4] == METADATA_V6.segments()[..4] && ip != METADATA_V6,
    }
}

/// Whether the redirect adds this address to the node as it is now.
pub fn is_added_now(ip: IpAddr) -> bool {
    is_added(ip) && (ip.is_ipv4() || has_ipv6() && !is_ipv6_off_on_lo())
}

/// Whether this network namespace can serve pods over IPv6: it has an address that other machines can reach.
pub fn has_ipv6() -> bool {
    #[cfg(test)]
    if let Some(has_ipv6) = super::fake::has_ipv6() {
        return has_ipv6;
    }
    has_global(&fs::read_to_string("/proc/net/if_inet6").unwrap_or_default())
}

/// Whether the kernel has IPv6, so that this network namespace may get such an address.
pub fn may_have_ipv6() -> bool {
    #[cfg(test)]
    if let Some(has_ipv6) = super::fake::has_ipv6() {
        return has_ipv6;
    }
    fs::exists("/proc/net/if_inet6").unwrap_or(false)
}

/// Whether the kernel refuses IPv6 addresses on the interface `lo`.
pub(super) fn is_ipv6_off_on_lo() -> bool {
    #[cfg(test)]
    if let Some(has_ipv6) = super::fake::has_ipv6() {
        return !has_ipv6;
    }
    fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6").is_ok_and(|value| value.trim() != "0")
}

/// Each line has an address, the interface's index, the prefix length, the scope (00: global), flags, and the interface's
/// name.
fn has_global(addresses: &str) -> bool {
    addresses
        .lines()
        .map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>())
        .any(|fields| matches!(fields[..], [scope, _, interface] if scope == "00" && interface != "lo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addrs(text: &[&str]) -> Vec<SocketAddr> {
        text.iter().map(|addr| addr.parse().expect("an address")).collect()
    }

    #[test]
    fn there_is_at_most_one_address_of_an_ip_version() {
        let destination = |text: &[&str]| Destination::new(&addrs(text)).map(|it| it.addrs().count());
        assert_eq!(destination(&["169.254.169.252:988", "[fd20:ce::252]:988"]), Some(2));
        assert_eq!(destination(&["[fd20:ce::252]:988"]), Some(1));
        assert_eq!(destination(&["10.0.0.1:988", "10.0.0.2:988"]), None);
        assert_eq!(destination(&[]), None);
    }

    #[test]
    fn pods_are_not_sent_to_loopback_or_everywhere() {
        let first = |text: &[&str]| Destination::first_of(&addrs(text));
        assert_eq!(first(&["127.0.0.1:988", "[::1]:988", "0.0.0.0:988", "[::]:988"]), None);
        let found = first(&["127.0.0.1:988", "10.0.0.1:988", "[fd20:ce::252]:988"]).expect("two");
        assert_eq!(found.addrs().collect::<Vec<_>>(), addrs(&["10.0.0.1:988", "[fd20:ce::252]:988"]));
    }

    #[test]
    fn addresses_that_others_may_have_are_not_added() {
        for (addr, expected) in [
            ("169.254.169.252", true),
            ("169.254.20.10", true),
            ("169.254.169.254", false),
            ("10.0.0.1", false),
            ("fd20:ce::252", true),
            ("fd20:ce::254", false),
            ("fd00::252", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_added(addr.parse().expect("an address")), expected, "{addr}");
        }
    }

    #[test]
    fn ipv6_is_there_if_other_machines_can_use_it() {
        let lo = "00000000000000000000000000000001 01 80 10 80       lo\n";
        let ours = "fd2000ce000000000000000000000252 01 80 00 82       lo\n";
        let link = "fe80000000000000000000000000000a 02 40 20 80     ens4\n";
        let global = "2600190040000000000000000000000a 02 80 00 80     ens4\n";
        assert!(!has_global("") && !has_global(&[lo, ours, link].concat()));
        assert!(has_global(&[lo, ours, link, global].concat()));
    }
}
