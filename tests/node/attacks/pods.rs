//! Pods that need neither rules of others nor packets of their own making.

use redirect::SIDECAR_UID;

use super::{Read, Scene, TOOLS};
use crate::support::needs::{Test, tests};
use crate::world::{KUBE_ENV, SERVER, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_name_that_leads_to_the_server_leads_to_the_proxy,
    loopback_is_closed_to_neighbours,
    a_user_namespace_changes_nothing,
];

/// The tests of an interface over another one.
pub const WITH_MACVLAN: &[Test] = tests![net_admin_leads_past_the_node_unless_the_pod_has_users_of_its_own];

/// An `ExternalName`, or any other record of the attacker's.
fn a_name_that_leads_to_the_server_leads_to_the_proxy() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        for (port, expected) in [(80, Read::Proxy), (8081, Read::Nothing)] {
            let name = "service.team.svc.cluster.local";
            let resolve = format!("--resolve {name}:{port}:169.254.169.254 http://{name}:{port}");
            let ask = format!("curl -s -i --max-time 2 -H 'Metadata-Flavor: Google' {resolve}{KUBE_ENV} || true");
            assert_eq!(Read::of(&scene.victim().sh(&ask)), expected, "{tool}, port {port}");
        }
    }
}

/// CVE-2020-8558. A neighbour routes 127.0.0.0/8 to the node.
fn loopback_is_closed_to_neighbours() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let attacker = scene.attacker();
        attacker.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip addr flush dev lo
            ip route add 127.0.0.0/8 via 10.8.2.1 src 10.8.2.2");
        let attack = |port| {
            let curl = format!("curl -s -i --max-time 2 http://127.0.0.1:{port}/healthz || true");
            attacker.sh(&curl).contains("HTTP/1.1 ")
        };
        for port in [988, 989] {
            assert!(!attack(port), "{tool}: a neighbour reaches port {port} of loopback");
        }
        succeeds(&redirect(&scene.world.node, "remove"));
        scene.world.node.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
        assert!(attack(989), "an attack that works, were loopback routed and not guarded");
    }
}

/// The kernel lets a pod place an interface in the network of the other end of its own, if it has `NET_ADMIN` in the user namespace of
/// that network. No rule of the node can stop this: the test is to fail where that is not so any more.
fn net_admin_leads_past_the_node_unless_the_pod_has_users_of_its_own() {
    let scene = Scene::new("nft");
    let pod = scene.victim();
    let uplink = scene.world.node.sh("cat /sys/class/net/eth0/ifindex");
    let place = format!("ip link add link if{} link-netnsid 0 name over0 type macvlan mode bridge", uplink.trim());
    let ask = format!("curl -s -i --max-time 2 -H 'Metadata-Flavor: Google' {SERVER}{KUBE_ENV} || true");
    let attack = format!(
        "ip link show eth0 | grep -q link-netns && {place} && ip link set over0 up && ip addr add 10.128.0.77/24 dev over0 &&
        ip route replace 169.254.169.254 via 10.128.0.1 dev over0; {ask}"
    );

    pod.sh(&format!("! setpriv --bounding-set=-net_admin --inh-caps=-net_admin {place}"));
    scene.holds(pod, "without NET_ADMIN");

    let with_net_admin = format!("setpriv --bounding-set=-all,+net_admin --inh-caps=-all sh -c \"{attack}\"");
    assert_eq!(Read::of(&pod.sh(&with_net_admin)), Read::Server, "no rule is to be of any use");
    pod.ip("link delete over0");
    scene.holds(pod, "after the attack");

    // `hostUsers: false`: the pod's network belongs to a user namespace of the pod.
    let other = scene.attacker();
    let waits = "for i in \\$(seq 100); do ip link show eth0 >/dev/null 2>&1 && break; sleep 0.05; done";
    let alone = format!(
        "unshare --user --map-root-user --net sh -c \"{waits}; ip link set eth0 up; ip addr add 10.8.2.2/24 dev eth0
            ip route add default via 10.8.2.1; ip link show eth0 | grep -q link-netns && echo handle; {attack}\" &
        for i in $(seq 100); do
            [ $(readlink /proc/$!/ns/net) != $(readlink /proc/$$/ns/net) ] && break; sleep 0.05
        done
        ip link set eth0 netns $!; wait $!"
    );
    let answer = other.sh(&alone);
    assert!(answer.contains("handle"), "it has the same handle: {answer}");
    assert_eq!(Read::of(&answer), Read::Proxy, "{answer}");
}

/// In a user namespace of one's own, one has every capability, and is whoever one likes.
fn a_user_namespace_changes_nothing() {
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups unshare --user";
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let pod = scene.victim();
        for flush in ["nft flush ruleset", "iptables -t nat -F"] {
            let in_own_network = format!("{user} --map-root-user --net sh -c '{flush} && ! curl -s -m 2 {SERVER}'");
            pod.sh(&in_own_network);
        }
        scene.holds(pod, "after flushes");

        let sidecar = &scene.world.pods[1];
        succeeds(&redirect(&scene.world.node, "remove"));
        let install = format!("install --tool {tool} --mode sidecar --proxy-uid {SIDECAR_UID} --to 127.0.0.1:8988");
        succeeds(&redirect(sidecar, &install));
        let ask = format!("curl -s -i --max-time 2 -H 'Metadata-Flavor: Google' {SERVER}{KUBE_ENV} || true");
        let as_proxy = format!("setpriv --reuid {SIDECAR_UID} --clear-groups {ask}");
        assert_eq!(Read::of(&sidecar.sh(&as_proxy)), Read::Server, "the proxy's own requests");
        for whom in [format!("--map-user={SIDECAR_UID}"), "--map-root-user".to_owned()] {
            assert_eq!(Read::of(&sidecar.sh(&format!("{user} {whom} {ask}"))), Read::Nothing, "{tool}: {whom}");
        }
        let flush = format!("{user} --map-root-user sh -c 'nft flush ruleset; iptables -t nat -F; iptables -F; true'");
        sidecar.sh(&format!("{flush} 2>/dev/null"));
        assert_eq!(Read::of(&sidecar.sh(&ask)), Read::Nothing, "{tool}: rules were flushed");
    }
}
