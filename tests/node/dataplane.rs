//! Networks that take pods' packets past netfilter.

use crate::canary::canary;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, World, is_open, is_protected, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![a_network_that_may_bypass_netfilter_is_pointed_out];

/// The tests in which tc replaces Cilium's eBPF programs.
pub const WITH_TC: &[Test] = tests![a_network_that_bypasses_netfilter_is_seen_from_a_pod];

fn mac(place: &Namespace) -> String {
    place.sh("cat /sys/class/net/eth0/address").trim().to_owned()
}

/// Sends the first pod's packets from its interface to the uplink, and the responses back, before any hook of netfilter.
/// A frame keeps its address, so each side knows the other's as that of a gateway.
fn bypass(world: &World) {
    let pod = &world.pods[0];
    let redirect = |from: &str, matched: &str, to: &str| {
        world.node.sh(&format!(
            "tc qdisc add dev {from} clsact
            tc filter add dev {from} ingress protocol ip u32 match {matched} action mirred egress redirect dev {to}"
        ));
    };
    redirect("pod1", "ip dst 169.254.169.254", "eth0");
    redirect("eth0", "ip dst 10.8.1.2", "pod1");
    pod.ip(&format!("neigh replace 10.8.1.1 lladdr {} dev eth0", mac(&world.outside)));
    world.outside.ip(&format!("neigh replace 10.128.0.99 lladdr {} dev eth0", mac(pod)));
    world.outside.ip("route add 10.8.1.2/32 via 10.128.0.99");
}

fn a_network_that_bypasses_netfilter_is_seen_from_a_pod() {
    let world = World::new();
    let pod = &world.pods[0];
    succeeds(&redirect(&world.node, "install"));
    let _proxy = world.proxy(&[]);
    is_protected(pod);
    let canaries = world.pods.each_ref().map(|pod| canary(pod, "1s"));
    for canary in &canaries {
        canary.line(" protected: ");
    }
    bypass(&world);
    // The rules that `redirect` would have to rely on, if the kernel did not skip them.
    world.node.sh("nft add table netdev seen
        nft add chain netdev seen out '{ type filter hook egress device eth0 priority 0; }'
        nft add rule netdev seen out ip saddr 10.8.1.2 ip daddr 169.254.169.254 counter drop");
    is_open(pod, SERVER);
    let seen = world.node.sh("nft list table netdev seen");
    assert!(seen.contains("packets 0 "), "netfilter sees what tc redirects, so the redirect could close it: {seen}");

    let check = Process::run(pod, &["check"]);
    assert_eq!(check.code, Some(1), "{check:?}");
    assert!(check.stdout.contains("OPEN    GET http://169.254.169.254/: "), "{}", check.stdout);
    canaries[0].line(" UNPROTECTED: ");
    is_protected(&world.pods[1]);
    assert_eq!(canaries[1].written(), [""; 0], "the network of this pod is as it was");
}

fn a_network_that_may_bypass_netfilter_is_pointed_out() {
    for (interface, whose, remedy) in [
        ("cilium_host", "this node's network is Cilium's", "bpf.hostLegacyRouting"),
        ("bpfin.cali", "this node's network is Calico's", "bpfEnabled: false"),
        ("ovn-k8s-mp0", "this node's network is OVN-Kubernetes", "routingViaHost: true"),
    ] {
        let world = World::new();
        let keeper = Process::start(&world.node, &["redirect", "install", "--keep"]);
        keeper.line("redirect installed");
        assert!(!redirect(&world.node, "check").stdout.contains(whose));
        assert_eq!(keeper.terminate().code(), Some(0));

        world.node.ip(&format!("link add {interface} type veth peer name other-end"));
        let keeper = Process::start(&world.node, &["redirect", "install", "--keep"]);
        keeper.line(whose);
        let check = redirect(&world.node, "check");
        succeeds(&check);
        assert!(check.stdout.contains(remedy), "{check:?}");
        succeeds(&redirect(&world.pods[0], "install --mode sidecar --proxy-uid 61988"));
    }
}
