//! [`Uplinks`]: the interfaces on the node's routes to the metadata server. Packets received on them come from outside the node.
//!
//! Uplinks are found for each IP version separately. If a pod could turn a pod interface into an uplink, no pod behind it would be
//! redirected. A route of IPv6 may come from the network, by a router advertisement, and a pod can send those where the node accepts
//! them. So an interface of pods is an uplink only if the route of IPv4, which comes from the node's own configuration, leads by it as
//! well (such as where the node is itself a container, with a veth).

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::{fmt, io};

use super::decision::Scan;
use super::destination::{METADATA_V4, METADATA_V6};
use super::interfaces;
use base::links::Link;
use base::routes::Route;

/// The uplinks, for the packets of each IP version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uplinks {
    v4: Vec<String>,
    v6: Vec<String>,
}

impl Uplinks {
    /// These, for both IP versions.
    pub fn named(names: Vec<String>) -> Self {
        Self { v4: names.clone(), v6: names }
    }

    /// The interfaces with the most specific route to an address of the metadata server. Empty if there is none.
    pub(super) fn find() -> io::Result<Self> {
        Ok(Self::of(&interfaces::routes()?, &interfaces::links()?))
    }

    fn of(routes: &[Route], links: &[Link]) -> Self {
        let v4 = unique(leading_to(routes, METADATA_V4.into()));
        let is_trusted =
            |route: &&Route| v4.is_empty() || v4.contains(&route.interface) || !may_be_of_pods(links, &route.interface);
        // Of a node's thousands of routes to pods, none leads there: whether they are trusted takes a search through all links each.
        let leading = routes.iter().filter(|route| route.matches(METADATA_V6.into()));
        let trusted: Vec<Route> = leading.filter(is_trusted).cloned().collect();
        let v6 = unique(leading_to(&trusted, METADATA_V6.into()));
        Self { v4, v6 }
    }

    /// Those for packets to this address.
    pub(super) fn towards(&self, to: SocketAddr) -> &[String] {
        if to.is_ipv4() { &self.v4 } else { &self.v6 }
    }

    /// All, for both IP versions.
    pub(super) fn names(&self) -> Vec<String> {
        unique(self.v4.iter().chain(&self.v6).cloned().collect())
    }
}

/// A route may be gone for a moment, as while the node's address is renewed.
impl Scan for Uplinks {
    fn agreed(&self, later: &Self) -> Option<Self> {
        (self == later).then(|| later.clone())
    }

    fn is_transient(&self) -> bool {
        *self == Self::default()
    }
}

/// For operators.
impl fmt::Display for Uplinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        write!(f, "{} (IPv4), {} (IPv6)", list(&self.v4), list(&self.v6))
    }
}

fn unique(mut names: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// Whether an interface is a veth, or a bridge with a veth as a port. The interfaces of pods are.
fn may_be_of_pods(links: &[Link], name: &str) -> bool {
    let Some(link) = links.iter().find(|link| link.name == name) else { return false };
    let is_veth = |link: &Link| link.kind == "veth";
    is_veth(link) || links.iter().any(|port| port.master == Some(link.index) && is_veth(port))
}

fn leading_to(routes: &[Route], to: IpAddr) -> Vec<String> {
    let leading = || routes.iter().filter(|route| route.matches(to) && !route.rejects() && route.interface != "lo");
    // In IPVS mode, kube-proxy gives an interface of its own each address of a Service, which may be the server's: any tenant would
    // choose the uplink. Besides the local route, the kernel adds another by this interface.
    let owners: Vec<&str> = leading().filter(|route| route.is_local()).map(|route| &*route.interface).collect();
    let others = || leading().filter(|route| !owners.contains(&&*route.interface));
    let longest = others().map(|route| route.length).max();
    others().filter(|route| Some(route.length) == longest).map(|route| route.interface.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spoofing::tests::link;
    use base::routes::{parse_v4, parse_v6};

    const HEADER: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
    const DEFAULT: &str = "ens4\t00000000\t0100800A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
    const LINK_LOCAL: &str = "ens5\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
    const PODS: &str = "cbr0\t0000010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const SERVER: &str = "ens6\tFEA9FEA9\t0100800A\t0007\t0\t0\t100\tFFFFFFFF\t0\t0\t0\n";

    #[test]
    fn the_most_specific_route_determines_the_uplink() {
        for (routes, uplinks) in [
            (vec![DEFAULT, PODS], vec!["ens4"]),
            (vec![DEFAULT, LINK_LOCAL, PODS], vec!["ens5"]),
            (vec![DEFAULT, LINK_LOCAL, SERVER], vec!["ens6"]),
            (vec![PODS], vec![]),
        ] {
            assert_eq!(
                leading_to(&parse_v4(&format!("{HEADER}{}", routes.concat())), METADATA_V4.into()),
                uplinks,
                "{routes:?}"
            );
        }
    }

    const NONE: &str = "00000000000000000000000000000000";

    fn route(to: &str, length: &str, flags: &str, interface: &str) -> String {
        format!("{to} {length} {NONE} 00 {NONE} 00000400 00000001 00000000 {flags} {interface}\n")
    }

    /// A pod sent a router advertisement, with a route to the server's network.
    #[test]
    fn no_interface_of_pods_becomes_an_uplink_by_a_route_of_ipv6() {
        let own = route(NONE, "00", "00000003", "ens4");
        let advertised = |interface| route("fd2000ce000000000000000000000000", "40", "00000003", interface);
        let links = [
            link(2, "ens4", "", None),
            link(3, "cni0", "bridge", None),
            link(4, "veth1", "veth", Some(3)),
            link(5, "br0", "bridge", None),
            link(6, "ens5", "", Some(5)),
            link(7, "eth0", "veth", None),
        ];
        let by_v4 = |interface: &str| format!("{HEADER}{}", DEFAULT.replace("ens4", interface));
        for (what, v4, v6, expected) in [
            ("a bridge of pods", by_v4("ens4"), [own.clone(), advertised("cni0")].concat(), "ens4 (IPv4), ens4 (IPv6)"),
            ("a pod's link", by_v4("ens4"), [own.clone(), advertised("eth0")].concat(), "ens4 (IPv4), ens4 (IPv6)"),
            ("without another route", by_v4("ens4"), advertised("cni0"), "ens4 (IPv4), none (IPv6)"),
            ("a bridge of hardware", by_v4("ens4"), advertised("br0"), "ens4 (IPv4), br0 (IPv6)"),
            ("a node that is a container", by_v4("eth0"), advertised("eth0"), "eth0 (IPv4), eth0 (IPv6)"),
            ("the same without IPv4", HEADER.to_owned(), advertised("eth0"), "none (IPv4), eth0 (IPv6)"),
        ] {
            let routes = [parse_v4(&v4), parse_v6(&v6)].concat();
            assert_eq!(Uplinks::of(&routes, &links).to_string(), expected, "{what}");
        }
    }

    #[test]
    fn the_most_specific_route_of_ipv6_determines_it_too() {
        let none = NONE;
        let default = route(none, "00", "00000003", "ens4");
        let network = route("fd2000ce000000000000000000000000", "40", "00000001", "ens5");
        let nowhere = route(none, "00", "00200200", "lo");
        let rejected = route("fd2000ce000000000000000000000254", "80", "00000200", "ens6");
        let service = ["80200001", "00000001"]
            .map(|flags| route("fd2000ce000000000000000000000254", "80", flags, "kube-ipvs0"))
            .concat();
        let pods = route("fd00000b000100000000000000000000", "40", "00000001", "pod1");
        for (routes, uplinks) in [
            ([&nowhere, &default, &pods], vec!["ens4"]),
            ([&network, &default, &pods], vec!["ens5"]),
            ([&rejected, &default, &pods], vec!["ens4"]),
            ([&service, &default, &pods], vec!["ens4"]),
            ([&nowhere, &nowhere, &pods], vec![]),
        ] {
            assert_eq!(
                leading_to(&parse_v6(&routes.map(String::as_str).concat()), METADATA_V6.into()),
                uplinks,
                "{routes:?}"
            );
        }
    }
}
