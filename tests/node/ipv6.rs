//! Pods with IPv6, with and without IPv4, and nodes without it.

use crate::check::check;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, SERVER_V6, TOKEN, World, is_closed, is_protected, is_protected_at, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_pod_without_ipv4_is_served,
    a_node_without_ipv4_asks_the_server_by_ipv6,
    a_route_of_ipv6_through_a_pod_takes_no_pod_from_the_redirect,
    a_pod_s_address_arrives_unchanged,
    a_node_without_ipv6_needs_none,
    where_the_ipv6_address_cannot_be_had_ipv4_is_served,
    a_keeper_serves_ipv6_as_soon_as_its_address_can_be_had,
    the_node_does_not_speak_from_the_proxy_s_address,
];

/// Counts requests that succeed within a short time.
pub const ALONE: &[Test] = tests![a_pod_cannot_flood_by_ipv6];

fn a_pod_without_ipv4_is_served() {
    let world = World::new();
    let pod = &world.pods[0];
    pod.ip("-4 addr flush dev eth0");
    pod.name_the_server("fd20:ce::254");
    let check = || check(pod, &[]);
    let open = check();
    assert!(open.code == Some(1) && open.stdout.contains("OPEN    GET http://[fd20:ce::254]/: "), "{open:?}");
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        let closed = check();
        assert_eq!(closed.code, Some(2), "{tool}: nothing is open, and nothing works: {closed:?}");
        let proxy = world.proxy(&[]);
        is_protected_at(pod, &[SERVER_V6, "http://metadata.google.internal"]);
        is_protected(&world.pods[1]);
        let served = check();
        assert_eq!(served.code, Some(0), "{tool}: {served:?}");
        assert!(served.stdout.contains("ok      GET http://[fd20:ce::254]/: the proxy answers"), "{served:?}");
        assert!(served.stdout.contains("a token for "), "{served:?}");
        assert!(!served.stdout.contains("GET http://169.254.169.254"), "{served:?}");
        assert_eq!(proxy.terminate().code(), Some(0));
    }
}

fn a_node_without_ipv4_asks_the_server_by_ipv6() {
    let world = World::new();
    let pod = &world.pods[0];
    for place in [&*world.node, pod] {
        place.ip("-4 addr flush scope global");
    }
    succeeds(&redirect(&world.node, "install"));
    let proxy = Process::start(&world.node, &["--upstream=http://[fd20:ce::254]", "--log=info"]);
    proxy.line("cache warmed up");
    is_protected_at(pod, &[SERVER_V6]);
}

/// A node that accepts router advertisements gets such a route from a pod.
fn a_route_of_ipv6_through_a_pod_takes_no_pod_from_the_redirect() {
    let world = World::new();
    world.node.ip("-6 route add fd20:ce::/64 dev pod1");
    let _proxy = world.proxy(&[]);
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        world.pods.iter().for_each(is_protected);
        let found = redirect(&world.node, &format!("check --tool {tool}"));
        assert!(found.stdout.contains("not redirected: eth0 (IPv4), eth0 (IPv6)\n"), "{found:?}");
    }
}

/// The proxy tells pods apart by it.
fn a_pod_s_address_arrives_unchanged() {
    let world = World::new();
    let proxy = world.proxy(&["--audit"]);
    // Another pod each time: the audit has a line a minute for each.
    for (number, tool) in [(1, "nft"), (2, "iptables")] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        for (server, address) in [(SERVER, format!("10.8.{number}.2")), (SERVER_V6, format!("fd00:b:{number}::2"))] {
            assert_eq!(world.pods[number - 1].curl(&format!("{server}{TOKEN}")).status, 200);
            proxy.line(&address);
        }
    }
}

fn a_node_without_ipv6_needs_none() {
    let world = World::new();
    world.node.sh("for interface in eth0 pod1 pod2; do ip -6 address flush dev $interface scope global; done");
    let _proxy = world.proxy(&[]);
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        succeeds(&redirect(&world.node, &format!("check --tool {tool}")));
        let addresses = world.node.sh("ip address show lo");
        assert!(addresses.contains("169.254.169.252/32") && !addresses.contains("fd20:ce::252"), "{addresses}");
        is_protected_at(&world.pods[0], &[SERVER, "http://metadata.google.internal"]);
    }
}

/// Makes the address `fd20:ce::252` impossible, and the words that say why.
const NO_ADDRESS: [(&str, &str); 2] = [
    ("echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6", "net.ipv6.conf.lo.disable_ipv6=0"),
    ("ip address add fd20:ce::252/128 dev lo", "has the address fd20:ce::252 already"),
];
const LEFT_OUT: &str = "pods are served by IPv4 alone";

fn where_the_ipv6_address_cannot_be_had_ipv4_is_served() {
    for (prevent, why) in NO_ADDRESS {
        let world = World::new();
        let _proxy = world.proxy(&[]);
        let pod = &world.pods[0];
        for tool in ["nft", "iptables"] {
            // Also where it was served before.
            succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
            is_protected(pod);
            world.node.sh(&format!("ip address del fd20:ce::252/128 dev lo; {prevent}"));
            for command in ["install", "check"] {
                let said = redirect(&world.node, &format!("{command} --tool {tool}"));
                succeeds(&said);
                assert!(said.stdout.contains(LEFT_OUT) && said.stdout.contains(why), "{said:?}");
            }
            is_protected_at(pod, &[SERVER]);
            is_closed(pod, SERVER_V6);
            // An address that is named may be shared with who has it.
            if why.contains("disable_ipv6") {
                let alone = redirect(&world.node, &format!("install --tool {tool} --to [fd20:ce::252]:988"));
                let said = [why, "pods are closed"].iter().all(|words| alone.stderr.contains(words));
                assert!(alone.code == Some(1) && said, "{alone:?}");
            }
            succeeds(&redirect(&world.node, "remove"));
            world
                .node
                .sh("echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6; ip address del fd20:ce::252/128 dev lo || true");
        }
    }
}

fn a_keeper_serves_ipv6_as_soon_as_its_address_can_be_had() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let (prevent, why) = NO_ADDRESS[0];
    world.node.sh(prevent);
    let keeper = Process::start(&world.node, &["redirect", "install", "--keep"]);
    keeper.line(why);
    is_protected_at(&world.pods[0], &[SERVER]);
    world.node.sh("echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6");
    let before = keeper.line("has been restored");
    assert!(!before.iter().any(|line| line.contains(LEFT_OUT)), "it is logged again: {before:?}");
    is_protected(&world.pods[0]);
}

fn a_pod_cannot_flood_by_ipv6() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let [pod, other] = &world.pods;
    for tool in ["nft", "iptables"] {
        let flags = format!("--tool {tool} --redirect-max-new-connections 1");
        succeeds(&redirect(&world.node, &format!("install {flags}")));
        let ask = |most: usize| {
            format!("for i in $(seq {most}); do curl -s -g -m 1 -o /dev/null {SERVER_V6}/ || echo lost; done")
        };
        assert!(pod.sh(&ask(20)).contains("lost"), "{tool}");
        assert!(!other.sh(&ask(5)).contains("lost"), "{tool}: another pod");
        let check = redirect(&world.node, &format!("check {flags}"));
        succeeds(&check);
        assert!(!check.stdout.contains("since the rules were installed: 0\n"), "{check:?}");
    }
}

/// Calico's interfaces have no address, and the kernel looks for one elsewhere, on `lo` first.
fn the_node_does_not_speak_from_the_proxy_s_address() {
    let world = World::new();
    world.node.sh("ip address flush dev pod1; ip route add 10.8.1.2 dev pod1; ip -6 route add fd20:ce:0:1::2 dev pod1");
    let spoken = || world.node.sh("ip route get 10.8.1.2; ip -6 route get fd20:ce:0:1::2");
    let before = spoken();
    succeeds(&redirect(&world.node, "install"));
    assert_eq!(spoken(), before);
    is_closed(&world.pods[1], SERVER);
}
