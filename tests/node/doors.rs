//! The proxy's probes of its own doors on a node.

use crate::namespace::Namespace;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{World, eventually};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_door_that_the_node_never_had_is_no_failure_with_nonlocal_binds,
    a_door_for_ipv6_is_forgotten_with_the_node_s_ipv6,
];

/// The probes of the proxy's own doors on this node, by outcome.
fn probes(node: &Namespace) -> [u32; 2] {
    let page = node.curl("http://127.0.0.1:989/metrics").text;
    ["answered", "failed"].map(|outcome| {
        let series = format!("metadata_proxy_door_probes_total{{outcome=\"{outcome}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).expect("a number")
    })
}

/// As on nodes with keepalived, where a socket may have any address.
fn a_door_that_the_node_never_had_is_no_failure_with_nonlocal_binds() {
    let world = World::new();
    world.node.sh("echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind; echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind");
    let proxy = world.proxy(&[]);
    // The door on loopback is the last of three.
    eventually("its doors are probed", || probes(&world.node)[0] >= 1);
    let [_, failed] = probes(&world.node);
    assert_eq!(failed, 0, "{:?}", proxy.written());
}

fn a_door_for_ipv6_is_forgotten_with_the_node_s_ipv6() {
    let world = World::new();
    let keeper = Process::start(&world.node, &["redirect", "install", "--keep"]);
    keeper.line("redirect installed");
    let proxy = world.proxy(&[]);
    eventually("three doors are probed", || probes(&world.node) == [3, 0]);
    world.node.sh("for interface in eth0 pod1 pod2; do ip -6 address flush dev $interface scope global; done");
    keeper.line("has been restored");
    let [before, failed] = probes(&world.node);
    assert_eq!(failed, 0, "{:?}", proxy.written());
    // Each takes up to 15 s.
    for more in [2, 4] {
        eventually("two doors are probed again", || probes(&world.node)[0] >= before + more);
    }
    assert_eq!(probes(&world.node)[1], 0, "{:?}", proxy.written());
    let ready = world.node.curl("http://127.0.0.1:989/readyz").text;
    assert!(!ready.contains("fd20:ce::252"), "{ready}");
    // An address that the redirect would have on the node is another matter.
    assert_eq!(keeper.terminate().code(), Some(0));
    world.node.sh("ip address del 169.254.169.252/32 dev lo");
    proxy.line("this node no longer has the address 169.254.169.252");
}
