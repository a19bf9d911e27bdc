//! Pods that send from addresses of others.

use std::time::{Duration, Instant};

use redirect::SIDECAR_UID;

use crate::namespace::Namespace;
use crate::process::{BINARY, Process};
use crate::refusing::{Picky, after};
use crate::support::needs::{Test, tests};
use crate::world::{AS_A_PROXY, SERVER, TOKEN, World, is_protected, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_pod_cannot_ask_from_another_pod_s_address,
    pods_on_a_bridge_are_served_and_cannot_ask_from_elsewhere,
    pods_that_are_reached_by_another_interface_are_served,
    the_first_pod_shows_the_keeper_what_the_network_is,
    a_pod_that_has_no_route_yet_when_the_keeper_starts_is_scanned_again_soon,
    an_interface_that_a_pod_left_behind_is_named,
    a_tool_that_refuses_the_chain_for_spoofed_packets_does_not_close_pods,
    packets_that_pass_because_the_tool_refused_the_chain_are_not_shown_as_dropped,
    a_sidecar_shows_no_decision_on_spoofed_packets,
];

/// Each tool, and the command that removes the rule.
const TOOLS: [(&str, &str); 2] = [
    ("nft", "nft flush chain inet gce_metadata_proxy no_spoofing"),
    ("iptables", "iptables -t mangle -F GCE-METADATA-PROXY-SPOOF"),
];

/// What `redirect check` says where spoofed packets pass.
const NOT_DROPPED: &str = "packets with spoofed source addresses are not dropped";

/// Turns off the kernel's own check, which may be on, and counts packets of the proxy.
fn prepare(node: &Namespace) {
    node.sh("for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
        nft add table inet seen
        nft add chain inet seen in '{ type filter hook input priority 100; }'");
}

/// Whether a packet of this pod from this address reaches the proxy. The responses to a spoofed packet go to the owner of its
/// address, so the packets that arrive are counted instead.
fn arrives(node: &Namespace, pod: &Namespace, from: &str) -> bool {
    node.sh(&format!("nft flush chain inet seen in; nft add rule inet seen in ip saddr {from} tcp dport 988 counter"));
    pod.sh(&format!("curl -s --max-time 1 --interface {from} {SERVER}{TOKEN} || true"));
    !node.sh("nft list table inet seen").contains("packets 0 ")
}

fn a_pod_cannot_ask_from_another_pod_s_address() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let attacker = &world.pods[1];
    attacker.ip("addr add 10.8.1.2/32 dev eth0");
    prepare(&world.node);
    let attack = || arrives(&world.node, attacker, "10.8.1.2");
    for (tool, without) in TOOLS {
        let install = format!("--tool {tool}");
        succeeds(&redirect(&world.node, &format!("install {install}")));
        assert!(!attack(), "{tool}: a packet from another pod's address reaches the proxy");
        is_protected(attacker);
        is_protected(&world.pods[0]);
        let check = redirect(&world.node, &format!("check {install}"));
        assert!(check.code == Some(0) && !check.stdout.contains(NOT_DROPPED), "{check:?}");
        world.node.sh(without);
        assert!(attack(), "{tool}: an attack that works, were there no rule");

        let off = format!("{install} --redirect-drop-spoofed=false");
        succeeds(&redirect(&world.node, &format!("install {off}")));
        assert!(attack(), "{tool}: it is off");
        let check = redirect(&world.node, &format!("check {off}"));
        assert!(check.code == Some(0) && check.stdout.contains(NOT_DROPPED), "{check:?}");
    }
}

/// As flannel and GKE's older nodes have it: pods are ports of a bridge, which has the route.
fn pods_on_a_bridge_are_served_and_cannot_ask_from_elsewhere() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let [pod, attacker] = &world.pods;
    world.node.sh("ip link add cni0 type bridge; ip link set cni0 up
        for pod in pod1 pod2; do ip address flush dev $pod; ip link set $pod master cni0; ip link set $pod up; done
        ip address add 10.8.1.1/24 dev cni0; ip address add 10.8.2.1/24 dev cni0
        ip -6 address add fd00:b:1::1/64 dev cni0 nodad; ip -6 address add fd00:b:2::1/64 dev cni0 nodad");
    prepare(&world.node);
    // An address that the node would answer by its uplink.
    attacker.ip("addr add 10.200.0.9/32 dev eth0");
    for (tool, without) in TOOLS {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        is_protected(pod);
        is_protected(attacker);
        assert!(!arrives(&world.node, attacker, "10.200.0.9"), "{tool}: from an address that is not of the bridge");
        world.node.sh(without);
        assert!(arrives(&world.node, attacker, "10.200.0.9"), "{tool}: an attack that works, were there no rule");
    }
}

/// As with Cilium: the table of routes leads to pods by one interface, and packets take another.
fn one_way(node: &Namespace) {
    node.sh("for pod in 1 2; do
            ip rule add ipproto tcp sport 988 lookup 100
            ip rule add iif eth0 lookup 100
            ip address flush dev pod$pod
            ip route add 10.8.$pod.0/24 dev pod$pod table 100
        done
        ip link add cilium_host type veth peer name cilium_net; ip link set cilium_host up
        ip address add 10.8.0.1/32 dev cilium_host; ip route add 10.8.0.0/16 dev cilium_host
        for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
        for pod in pod1 pod2; do echo 1 > /proc/sys/net/ipv4/conf/$pod/proxy_arp; done");
}

fn is_served(pod: &Namespace) -> bool {
    let token = pod.curl(&format!("{SERVER}{TOKEN}"));
    token.status == 200 && token.text.contains("access_token")
}

fn pods_that_are_reached_by_another_interface_are_served() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let pod = &world.pods[0];
    one_way(&world.node);
    for (tool, _) in TOOLS {
        let (install, check) = (format!("install --tool {tool}"), format!("check --tool {tool}"));
        succeeds(&redirect(&world.node, &install));
        assert!(is_served(pod), "{tool}");
        let checked = redirect(&world.node, &check);
        assert!(checked.code == Some(0) && checked.stdout.contains(NOT_DROPPED), "{checked:?}");
        assert!(checked.stdout.contains("by the interface pod1"), "{checked:?}");
        succeeds(&redirect(&world.node, &format!("{install} --redirect-drop-spoofed")));
        assert!(!is_served(pod), "{tool}: on this network it drops everything");
    }
}

/// A node that starts has no pods. Two checks have to agree, which are 30 s apart.
fn the_first_pod_shows_the_keeper_what_the_network_is() {
    let world = World::new();
    world.node.sh("ip link set pod1 down; ip link set pod2 down");
    let keeper = Process::start(&world.node, &["redirect", "install", "--keep", "--tool", "nft"]);
    keeper.line(NOT_DROPPED);
    world.node.sh("ip link set pod1 up");
    let check = redirect(&world.node, "check --tool nft");
    assert!(check.code == Some(0), "until it is installed anew, both are as they should be: {check:?}");
    keeper.line("are dropped from now on");
    let rules = World::state_of(&world.node);
    assert!(rules.contains("from an address that is not the pods own"), "{rules}");
    assert_eq!(keeper.terminate().code(), Some(0));
}

const METRICS: &str = "127.0.0.1:1990";

/// Starts a keeper, which uses `nft`.
fn keeper(node: &Namespace) -> Process {
    let words = ["redirect", "install", "--keep", "--tool", "nft", "--keeper-metrics-addr", METRICS];
    Process::start(node, &words)
}

/// The decision that its metric shows.
fn shown(node: &Namespace) -> String {
    decision_at(node, METRICS).expect("a decision")
}

/// The decision that the metrics at this address show, if any.
fn decision_at(place: &Namespace, metrics: &str) -> Option<String> {
    let page = place.curl(&format!("http://{metrics}/metrics")).text;
    let mut decisions =
        page.lines().filter_map(|line| line.strip_prefix("metadata_proxy_redirect_spoofed{decision=\""));
    assert!(decisions.clone().next().is_some(), "no metric: {page}");
    decisions.find_map(|line| line.strip_suffix("\"} 1")).map(str::to_owned)
}

/// Whether there is a rule that drops spoofed packets.
fn drops(node: &Namespace) -> bool {
    World::state_of(node).contains("from an address that is not the pods own")
}

/// One that has a route of IPv6 already, which is none of IPv4. The rules are checked every 30 s.
#[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous")]
fn a_pod_that_has_no_route_yet_when_the_keeper_starts_is_scanned_again_soon() {
    let world = World::new();
    let node = &world.node;
    node.ip("address del 10.8.2.1/24 dev pod2");
    let keeper = keeper(node);
    keeper.line("by the interface pod2 (IPv4), so it");
    let check = redirect(node, "check --tool nft");
    assert!(check.code == Some(0) && check.stdout.contains("by the interface pod2 (IPv4), so it"), "{check:?}");
    assert_eq!(shown(node), "no_route");
    let began = Instant::now();
    node.ip("address add 10.8.2.1/24 dev pod2");
    keeper.line("are dropped from now on");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert!(drops(node));
    assert_eq!(shown(node), "dropped");
}

/// Until two scans agree, it may be one of a pod that is being started: rules that are restored drop what they dropped.
fn an_interface_that_a_pod_left_behind_is_named() {
    const NAMED: &str = "by the interface left (IPv4), left (IPv6), so it might drop packets of honest pods, too";
    let world = World::new();
    let node = &world.node;
    let keeper = keeper(node);
    keeper.line("redirect installed");
    node.sh("ip link add left type veth peer name gone; ip link set left up; nft flush ruleset");
    keeper.line("the redirect was missing");
    assert!(drops(node), "{}", World::state_of(node));
    let check = redirect(node, "check --tool nft");
    let changed = format!("are dropped, but the interfaces have changed since: no route leads to pods {NAMED}");
    assert!(check.code == Some(0) && check.stdout.contains(&changed), "{check:?}");
    keeper.line(NAMED);
    assert!(!drops(node), "{}", World::state_of(node));
    assert_eq!(shown(node), "no_route");
    let check = redirect(node, "check --tool nft");
    assert!(
        check.code == Some(0) && check.stdout.contains(&format!("{NOT_DROPPED}: no route leads to pods {NAMED}")),
        "{check:?}"
    );
    node.ip("link del left");
    keeper.line("are dropped from now on");
    assert_eq!(shown(node), "dropped");
}

/// As on a node whose kernel has no `xt_rpfilter`.
fn a_tool_that_refuses_the_chain_for_spoofed_packets_does_not_close_pods() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let pod = &world.pods[0];
    let picky = Picky::of("iptables-restore", &["rpfilter"]);
    let flags = "--tool iptables";
    let install = after(&world.node, &picky.first(), &format!("install {flags}"));
    succeeds(&install);
    let said = format!("{}{}", install.stdout, install.stderr);
    assert!(said.contains("without the chain that drops packets") && said.contains("not in this kernel"), "{said}");
    is_protected(pod);
    let check = after(&world.node, &picky.first(), &format!("check {flags}"));
    succeeds(&check);
    assert!(check.stdout.contains("are not dropped, although the interfaces allow it"), "{check:?}");
    let wanted = after(&world.node, &picky.first(), &format!("install {flags} --redirect-drop-spoofed"));
    assert_eq!(wanted.code, Some(1), "a flag wants it: {wanted:?}");
}

/// By the keeper and by the proxy's own redirect. The rules are installed without the chain, and restored without it.
fn packets_that_pass_because_the_tool_refused_the_chain_are_not_shown_as_dropped() {
    let world = World::new();
    let node = &world.node;
    let picky = Picky::of("nft", &["that is not the pods own"]);
    let started = |words: &str| {
        let line = format!("export {}; exec {BINARY} {words}", picky.first());
        Process::spawn(node.command("sh").args(["-c", &line]))
    };
    let keeper = started(&format!("redirect install --keep --keeper-metrics-addr {METRICS}"));
    keeper.line("redirect installed");
    assert_eq!(shown(node), "refused");
    node.sh("nft flush ruleset");
    keeper.line("has been restored");
    assert!(!drops(node), "{}", World::state_of(node));
    assert_eq!(shown(node), "refused");
    assert_eq!(keeper.terminate().code(), Some(0));

    succeeds(&redirect(node, "remove"));
    let proxy = started(&format!("{} --metrics-addr={METRICS} --redirect", AS_A_PROXY.join(" ")));
    proxy.line("cache warmed up");
    assert_eq!(shown(node), "refused");
}

/// It has no chain for them.
fn a_sidecar_shows_no_decision_on_spoofed_packets() {
    let world = World::new();
    let pod = &world.pods[0];
    let uid = SIDECAR_UID.to_string();
    let mode = ["--mode", "sidecar", "--proxy-uid", &uid, "--to", "127.0.0.1:8988"];
    let words = [&["redirect", "install", "--keep", "--keeper-metrics-addr", METRICS][..], &mode].concat();
    let keeper = Process::start(pod, &words);
    keeper.line("redirect installed");
    assert_eq!(decision_at(pod, METRICS), None);
}
