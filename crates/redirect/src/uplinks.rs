//! Finds the interface on the node's route to the metadata server. Packets received on it come from outside
//! the node.

use std::fs;
use std::net::Ipv4Addr;

use super::plan::METADATA_V4;

/// The main routing table. Policy routing is not considered.
const ROUTES: &str = "/proc/net/route";

/// The interfaces with the most specific route to the metadata server. Empty if there is no route.
pub(super) fn find() -> Vec<String> {
    in_table(&fs::read_to_string(ROUTES).unwrap_or_default(), METADATA_V4)
}

fn in_table(routes: &str, to: Ipv4Addr) -> Vec<String> {
    let routes: Vec<(&str, u32)> = routes.lines().skip(1).filter_map(|line| leading_to(line, to)).collect();
    let longest = routes.iter().map(|(_, mask)| *mask).max();
    routes.iter().filter(|(_, mask)| Some(*mask) == longest).map(|(interface, _)| (*interface).to_owned()).collect()
}

/// The interface and prefix length of a route that matches the address.
fn leading_to(line: &str, to: Ipv4Addr) -> Option<(&str, u32)> {
    let mut fields = line.split_whitespace();
    let interface = fields.next()?;
    // Addresses are printed as they are in memory: the first byte of the address is the last of the number, on
    // all machines of GCE.
    let mut number = |skip| u32::from_str_radix(fields.nth(skip)?, 16).ok();
    let destination = number(0)?;
    let mask = number(5)?;
    (u32::from_le_bytes(to.octets()) & mask == destination).then_some((interface, mask.count_ones()))
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
}
