//! Other interfaces of this pod than the one by which it reaches the metadata server: the node's redirect may not see their packets.

use std::net::IpAddr;

use base::links::{self, Link};
use base::routes::{self, Route};

/// A pod has fewer. More are those of a node.
const MAX: usize = 8;

/// Names of the other interfaces that are up.
pub(super) fn others(server: IpAddr) -> Vec<String> {
    of(&links::list().unwrap_or_default(), &routes::list().unwrap_or_default(), server)
}

/// Nothing on a node, whose own interface is hardware and whose others lead to pods.
fn of(links: &[Link], routes: &[Route], server: IpAddr) -> Vec<String> {
    let leading = routes.iter().filter(|route| route.matches(server) && !route.rejects() && route.interface != "lo");
    let Some(own) = leading.max_by_key(|route| route.length).map(|route| &route.interface) else { return Vec::new() };
    let is_pod = links.iter().any(|link| link.name == *own && link.leads_elsewhere);
    let others = links.iter().filter(|link| link.is_up && link.name != "lo" && link.name != *own);
    let others: Vec<String> = others.map(|link| link.name.clone()).collect();
    if is_pod && others.len() <= MAX { others } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::routes::parse_v4;

    fn link(name: &str, leads_elsewhere: bool) -> Link {
        Link { index: 2, name: name.to_owned(), is_up: true, kind: String::new(), master: None, leads_elsewhere }
    }

    #[test]
    fn a_pod_s_other_interfaces_are_those_that_do_not_lead_to_the_server() {
        let routes = parse_v4("eth0\t00000000\t0100080A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n");
        let server = IpAddr::from([169, 254, 169, 254]);
        let mut pod = vec![link("lo", false), link("eth0", true), link("net1", true), link("sriov0", false)];
        assert_eq!(of(&pod, &routes, server), ["net1", "sriov0"]);
        pod[2].is_up = false;
        assert_eq!(of(&pod, &routes, server), ["sriov0"]);
        assert!(of(&pod, &[], server).is_empty(), "there is no route");
        let node = [link("lo", false), link("eth0", false), link("veth1", true)];
        assert!(of(&node, &routes, server).is_empty());
    }
}
