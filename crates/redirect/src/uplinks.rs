//! Finds the uplinks: the interfaces on the node's routes to the metadata server. Packets received on them come from
//! outside the node.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::destination::{METADATA_V4, METADATA_V6};

/// The main routing table of IPv4, and all tables of IPv6. Policy routing is not considered.
pub(super) const ROUTES: &str = "/proc/net/route";
pub(super) const ROUTES_V6: &str = "/proc/net/ipv6_route";

/// Flags of routes that reject packets (`RTF_REJECT`) and that lead to the node itself (`RTF_LOCAL`).
const REJECTS: u32 = 0x200;
const LOCAL: u32 = 0x8000_0000;

/// The interfaces with the most specific route to an address of the metadata server. Empty if there is none.
pub(super) fn find() -> Vec<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mut found = in_table(&read(ROUTES), METADATA_V4);
    found.extend(in_table_v6(&read(ROUTES_V6), METADATA_V6));
    let mut seen = Vec::new();
    found.retain(|interface| {
        !seen.contains(interface) && {
            seen.push(interface.clone());
            true
        }
    });
    found
}

fn in_table(routes: &str, to: Ipv4Addr) -> Vec<String> {
    most_specific(routes.lines().skip(1).filter_map(|line| leading_to(line, to)))
}

fn in_table_v6(routes: &str, to: Ipv6Addr) -> Vec<String> {
    let leading: Vec<Leading> = routes.lines().filter_map(|line| leading_to_v6(line, to)).collect();
    // In IPVS mode, kube-proxy gives an interface of its own each address of a Service, which may be the server's: any tenant would
    // choose the uplink. Besides the local route, the kernel adds another by this interface.
    let owners: Vec<&str> = leading.iter().filter(|route| route.is_local).map(|route| route.interface).collect();
    let others = leading.iter().filter(|route| !owners.contains(&route.interface));
    most_specific(others.map(|route| (route.interface, route.length)))
}

fn most_specific<'a>(routes: impl Iterator<Item = (&'a str, u32)>) -> Vec<String> {
    let routes: Vec<_> = routes.collect();
    let longest = routes.iter().map(|(_, length)| *length).max();
    routes.iter().filter(|(_, length)| Some(*length) == longest).map(|(interface, _)| (*interface).to_owned()).collect()
}

/// The interface and prefix length of a route that matches the address.
fn leading_to(line: &str, to: Ipv4Addr) -> Option<(&str, u32)> {
    let mut fields = line.split_whitespace();
    let interface = fields.next()?;
    // The kernel prints an address in memory order as one number: on all machines of GCE, the address's first byte is the
    // number's last.
    let mut number = |skip| u32::from_str_radix(fields.nth(skip)?, 16).ok();
    let destination = number(0)?;
    let mask = number(5)?;
    (u32::from_le_bytes(to.octets()) & mask == destination).then_some((interface, mask.count_ones()))
}

/// A route of IPv6 that matches an address.
struct Leading<'a> {
    interface: &'a str,
    /// Of the prefix.
    length: u32,
    /// Whether the address is this interface's.
    is_local: bool,
}

/// The same for IPv6. A line has the destination, its prefix length, six other fields, flags, and the interface; numbers are
/// hexadecimal.
fn leading_to_v6(line: &str, to: Ipv6Addr) -> Option<Leading<'_>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [destination, length, .., flags, interface] = fields[..] else { return None };
    let destination = u128::from_str_radix(destination, 16).ok()?;
    let length = u32::from_str_radix(length, 16).ok()?;
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
    let is_match = flags & REJECTS == 0 && interface != "lo" && to.to_bits() & mask == destination & mask;
    is_match.then_some(Leading { interface, length, is_local: flags & LOCAL != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(in_table(&format!("{HEADER}{}", routes.concat()), METADATA_V4), uplinks, "{routes:?}");
        }
    }
    #[test]
    fn the_most_specific_route_of_ipv6_determines_it_too() {
        let none = "00000000000000000000000000000000";
        let route = |to: &str, length: &str, flags: &str, interface: &str| {
            format!("{to} {length} {none} 00 {none} 00000400 00000001 00000000 {flags} {interface}\n")
        };
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
            assert_eq!(in_table_v6(&routes.map(String::as_str).concat(), METADATA_V6), uplinks, "{routes:?}");
        }
    }
}
