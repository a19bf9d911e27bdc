//! Finds the uplinks: the interfaces on the node's routes to the metadata server. Packets received on them come from
//! outside the node.

use std::net::IpAddr;

use super::destination::{METADATA_V4, METADATA_V6};
use base::routes::{self, Route};

/// The interfaces with the most specific route to an address of the metadata server. Empty if there is none.
pub(super) fn find() -> Vec<String> {
    let routes = routes::list().unwrap_or_default();
    let mut found = leading_to(&routes, METADATA_V4.into());
    found.extend(leading_to(&routes, METADATA_V6.into()));
    let mut seen = Vec::new();
    found.retain(|interface| {
        !seen.contains(interface) && {
            seen.push(interface.clone());
            true
        }
    });
    found
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
            assert_eq!(
                leading_to(&parse_v6(&routes.map(String::as_str).concat()), METADATA_V6.into()),
                uplinks,
                "{routes:?}"
            );
        }
    }
}
