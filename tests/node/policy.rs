//! Network policies: what a pod under default deny must be allowed, by where the network enforces them.

use std::net::SocketAddr;

use crate::attacks::{Read, destination, proxy, read, read_briefly};
use crate::check::check;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, World, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_policy_at_the_pod_s_interface_sees_the_server_s_address,
    a_policy_in_netfilter_sees_the_proxy_s_address,
    a_policy_is_named_where_nobody_answers,
];

/// As eBPF programs and Open vSwitch have it: before any hook that rewrites.
const AT_THE_INTERFACE: &str = "add chain netdev policies pod { type filter hook ingress device pod1 priority 0; }";

/// As those that use iptables or nftables: where the node gets what was rewritten.
const IN_NETFILTER: &str = "add chain inet policies pod { type filter hook input priority 0; }";

/// The first pod may send TCP to this address and nothing else.
fn allow(world: &World, chain: &str, to: &str) {
    let to: SocketAddr = to.parse().expect("an address");
    let family = chain.split(' ').nth(2).expect("a family");
    let from = if family == "inet" { "iifname pod1" } else { "" };
    world.node.sh(&format!(
        "nft -f - <<end
        add table {family} policies
        delete table {family} policies
        add table {family} policies
        {chain}
        add rule {family} policies pod {from} ip daddr {} tcp dport {} accept
        add rule {family} policies pod {from} meta l4proto tcp drop\nend",
        to.ip(),
        to.port()
    ));
}

fn world() -> (World, Process) {
    let world = World::new();
    succeeds(&redirect(&world.node, "install"));
    let proxy = proxy(&world);
    (world, proxy)
}

fn a_policy_at_the_pod_s_interface_sees_the_server_s_address() {
    let (world, _proxy) = world();
    allow(&world, AT_THE_INTERFACE, "169.254.169.254:80");
    assert_eq!(read(&world.pods[0], SERVER), Read::Proxy);
    allow(&world, AT_THE_INTERFACE, &destination(&world)[0]);
    assert_eq!(read_briefly(&world.pods[0], SERVER), Read::Nothing);
}

fn a_policy_in_netfilter_sees_the_proxy_s_address() {
    let (world, _proxy) = world();
    allow(&world, IN_NETFILTER, &destination(&world)[0]);
    assert_eq!(read(&world.pods[0], SERVER), Read::Proxy);
    allow(&world, IN_NETFILTER, "169.254.169.254:80");
    assert_eq!(read_briefly(&world.pods[0], SERVER), Read::Nothing);
}

fn a_policy_is_named_where_nobody_answers() {
    let (world, proxy) = world();
    let pod = &world.pods[0];
    let named = "docs/redirect.md#network-policies";
    allow(&world, IN_NETFILTER, "192.0.2.1:80");
    let closed = check(pod, &[]);
    assert_eq!(closed.code, Some(2), "{closed:?}");
    assert!(closed.stdout.contains(named), "{}", closed.stdout);
    world.node.sh("nft delete table inet policies");
    proxy.kill();
    let gone = check(pod, &[]);
    assert_eq!(gone.code, Some(2), "{gone:?}");
    assert!(!gone.stdout.contains(named), "a proxy that is not there is no policy: {}", gone.stdout);
}
