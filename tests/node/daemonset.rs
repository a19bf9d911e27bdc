//! The redirect on a node, for the node's pods.

use std::io::ErrorKind;
use std::process::Command;

use crate::namespace::Namespace;
use crate::support::needs::{Test, tests};
use crate::world::{
    KUBE_ENV, NODE, NODE_V6, SERVER, SERVER_V6, TOKEN, WAYS_ROUND, World, eventually, is_closed, is_open, is_protected,
    is_protected_at, redirect, server, succeeds,
};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    nft_protects_a_node_from_first_to_last,
    iptables_protects_a_node_from_first_to_last,
    what_is_half_installed_is_noticed_and_repaired,
    the_node_s_own_address_is_guarded,
    a_watch_ends_when_the_server_has_vanished_without_a_word,
    rules_of_others_do_not_open_the_proxy_to_the_network,
    the_proxy_s_address_leads_to_nothing_else,
    a_way_round_can_be_allowed,
    what_comes_by_an_uplink_is_not_redirected,
    an_interface_that_has_the_server_s_address_is_no_uplink,
];

/// A value that the proxy does not cache.
const KUBE_LABELS: &str = "/computeMetadata/v1/instance/attributes/kube-labels";

/// Rules of other programs that accept everything, like those of kube-proxy and Docker. They exist before the redirect,
/// and stay.
fn have_rules_of_others(node: &Namespace) {
    for rule in [
        "iptables -A FORWARD",
        "iptables -A INPUT",
        "iptables -t mangle -A PREROUTING",
        "iptables -t nat -A PREROUTING",
        "ip6tables -A FORWARD",
        "iptables -t mangle -A POSTROUTING",
        "ip6tables -t mangle -A POSTROUTING",
        "ip6tables -A INPUT",
        "ip6tables -t mangle -A PREROUTING",
        "ip6tables -t nat -A PREROUTING",
    ] {
        node.sh(&format!("{rule} -j ACCEPT"));
    }
}

fn a_node_is_protected_from_first_to_last(tool: &str) {
    let world = World::new();
    have_rules_of_others(&world.node);
    let [pod, other] = &world.pods;
    let before = World::state_of(&world.node);
    for way in WAYS_ROUND.into_iter().chain([SERVER, SERVER_V6]) {
        is_open(pod, way);
    }
    let mut kept = pod.connect(server());
    assert!(kept.ask(KUBE_ENV).is_ok_and(|answer| answer.contains(" 200 ")));
    let mut waiting = pod.connect(server());
    let waiting = pod.spawn(move || waiting.ask(&format!("{KUBE_ENV}?wait_for_change=true&timeout_sec=3")));

    succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
    assert_eq!(kept.ask(KUBE_ENV), Err(ErrorKind::ConnectionReset), "a connection older than the redirect lives");
    let waited = waiting.join().expect("no panic");
    assert_eq!(waited, Err(ErrorKind::WouldBlock), "a connection older than the redirect gets its answer");
    is_closed(pod, SERVER);
    is_closed(pod, SERVER_V6);

    let proxy = world.proxy(&[]);
    is_protected(pod);
    is_protected(other);
    is_open(&world.node, SERVER);
    let installed = World::state_of(&world.node);
    succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
    assert_eq!(World::state_of(&world.node), installed, "to install twice is to install once");

    proxy.kill();
    is_closed(pod, SERVER);
    is_closed(pod, SERVER_V6);
    for way in WAYS_ROUND {
        is_closed(pod, way);
    }
    let proxy = world.proxy(&[]);
    is_protected(pod);

    succeeds(&redirect(&world.node, "remove"));
    assert_eq!(World::state_of(&world.node), before);
    for way in WAYS_ROUND.into_iter().chain([SERVER, SERVER_V6]) {
        is_open(pod, way);
    }
    assert_eq!(proxy.terminate().code(), Some(0));
}

fn nft_protects_a_node_from_first_to_last() {
    a_node_is_protected_from_first_to_last("nft");
}

fn iptables_protects_a_node_from_first_to_last() {
    a_node_is_protected_from_first_to_last("iptables");
}

/// Damage by other programs to the rules of each tool, one by one.
const DAMAGE: [(&str, &[&str]); 2] = [
    (
        "nft",
        &[
            "nft flush chain inet gce_metadata_proxy to_proxy",
            "nft delete chain inet gce_metadata_proxy no_bypass",
            "nft flush chain inet gce_metadata_proxy no_flood",
            "nft insert rule inet gce_metadata_proxy no_bypass accept",
            "nft add table inet gce_metadata_proxy '{ flags dormant; }'",
            "nft chain inet gce_metadata_proxy no_leaving '{ policy drop; }'",
            "table='table inet gce_metadata_proxy'; \
             nft list $table | sed -e \"1i delete $table\" -e 's/dstnat - 10/dstnat + 10/' | nft -f -",
            "ip address del 169.254.169.252/32 dev lo",
            "ip address del fd20:ce::252/128 dev lo",
        ],
    ),
    (
        "iptables",
        &[
            "iptables -t nat -F",
            "iptables -t mangle -F GCE-METADATA-PROXY-BOUND",
            "iptables -D FORWARD -j GCE-METADATA-PROXY-BYPASS",
            "iptables -I GCE-METADATA-PROXY-BYPASS -j RETURN",
            "ip6tables -F GCE-METADATA-PROXY-BYPASS",
            "iptables -I FORWARD -j ACCEPT",
            "ip6tables -t nat -I PREROUTING -j ACCEPT",
        ],
    ),
];

fn what_is_half_installed_is_noticed_and_repaired() {
    let world = World::new();
    let pod = &world.pods[0];
    let _proxy = world.proxy(&[]);
    for (tool, damages) in DAMAGE {
        let check = || redirect(&world.node, &format!("check --tool {tool}")).code;
        assert_eq!(check(), Some(1), "{tool} has nothing yet");
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        assert_eq!(check(), Some(0));
        for damage in damages {
            world.node.sh(damage);
            assert_eq!(check(), Some(1), "not noticed: {damage}");
            succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
            assert_eq!(check(), Some(0), "not repaired: {damage}");
            is_protected(pod);
        }
        assert_eq!(redirect(&world.node, &format!("check --tool {tool} --to 169.254.169.252:1988")).code, Some(1));
    }
    assert_eq!(redirect(&world.node, "check --tool nft").code, Some(1), "the tool used last has taken over");
}

fn the_node_s_own_address_is_guarded() {
    let world = World::new();
    let (to, to_v6) = (format!("{NODE}:988"), format!("[{NODE_V6}]:988"));
    let _proxy = world.proxy(&["--addr", &to, "--addr", &to_v6]);
    for (to, redirected) in [(&to, SERVER), (&to_v6, SERVER_V6)] {
        let ask = format!("http://{to}{TOKEN}");
        assert_eq!(world.outside.curl(&ask).status, 200, "without a redirect the network reaches the proxy");
        for tool in ["nft", "iptables"] {
            succeeds(&redirect(&world.node, &format!("install --tool {tool} --to {to}")));
            is_protected_at(&world.pods[0], &[redirected]);
            assert_eq!(world.node.curl(&ask).status, 200, "the node itself");
            assert_eq!(world.outside.curl(&ask).code, 28, "{tool} lets the network reach the proxy");
            assert_eq!(world.pods[0].curl(&ask).code, 28, "{tool} lets a pod reach the proxy round the redirect");
        }
        succeeds(&redirect(&world.node, "remove"));
    }
}

/// What listens on all addresses of the node listens on the proxy's, too.
fn the_proxy_s_address_leads_to_nothing_else() {
    let world = World::new();
    let _proxy = world.proxy(&["--metrics-addr=[::]:989"]);
    let ways =
        ["169.254.169.252", "[fd20:ce::252]"].map(|addr| [988, 989].map(|port| format!("http://{addr}:{port}/")));
    let ways: Vec<String> = ways.concat();
    world.node.sh("ip address add 169.254.169.252/32 dev lo; ip address add fd20:ce::252/128 dev lo");
    for way in &ways {
        assert_ne!(world.pods[0].curl(way).status, 0, "{way}: an attack that works, were there no guard");
    }
    world.node.sh("ip address del 169.254.169.252/32 dev lo; ip address del fd20:ce::252/128 dev lo");
    world.outside.sh(&format!("ip route add 169.254.169.252 via {NODE}; ip route add fd20:ce::252 via {NODE_V6}"));
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        for (place, way) in
            [&world.pods[0], &world.outside].into_iter().flat_map(|place| ways.iter().map(move |way| (place, way)))
        {
            assert_eq!(place.curl(way).code, 28, "{tool}: {way} leads somewhere from {}", place.name());
        }
        assert_ne!(world.node.curl(&ways[0]).status, 0, "the node itself");
        is_protected(&world.pods[0]);
    }
}

/// As after a live migration: the other end of a connection has vanished without a packet. The kernel needs a minute of
/// probes to notice this.
fn a_watch_ends_when_the_server_has_vanished_without_a_word() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let watch = format!("http://127.0.0.1:988{KUBE_LABELS}?wait_for_change=true");
    let watching = world.node.spawn({
        let (node, watch) = (world.node.command("curl"), watch.clone());
        move || watched(node, &watch)
    });
    eventually("the watch is upstream", || {
        let page = world.node.curl("http://127.0.0.1:989/metrics").text;
        page.lines().any(|line| line == "metadata_proxy_hanging 1")
    });
    world.outside.sh("nft add table inet gone; nft add chain inet gone in '{ type filter hook input priority 0; }'; \
         nft add rule inet gone in tcp dport 80 drop");
    let newcomer = world.node.spawn({
        let node = world.node.command("curl");
        move || watched(node, &watch)
    });
    for watch in [watching, newcomer] {
        assert_eq!(watch.join().expect("no panic"), "503", "the watch is deaf");
    }
}

/// The status of a slow response; `000` after 100 s, which is longer than the kernel needs.
fn watched(mut curl: Command, url: &str) -> String {
    let args =
        ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "100", "-H", "Metadata-Flavor: Google", url];
    let output = curl.args(args).output().expect("curl is here");
    String::from_utf8(output.stdout).expect("a number")
}

/// Adds a rule of another program that leads from a port of the node's address elsewhere, as kube-proxy does for a
/// Service.
fn lead(node: &Namespace, port: u16, to: &str) {
    node.sh(&format!("iptables -t nat -I PREROUTING -d {NODE} -p tcp --dport {port} -j DNAT --to-destination {to}"));
}

fn rules_of_others_do_not_open_the_proxy_to_the_network() {
    let world = World::new();
    // Somebody else's, so that it is there before the redirect.
    world.node.ip("addr add 169.254.169.252/32 dev lo");
    for to in [format!("{NODE}:988"), "169.254.169.252:988".to_owned()] {
        let proxy = world.proxy(&["--addr", &to, "--metrics-addr=0.0.0.0:989"]);
        lead(&world.node, 8080, &to);
        lead(&world.node, 8081, &format!("{NODE}:989"));
        let ask = format!("http://{NODE}:8080{TOKEN}");
        assert_eq!(world.outside.curl(&ask).status, 200, "without a redirect the network reaches the proxy");
        for tool in ["nft", "iptables"] {
            succeeds(&redirect(&world.node, &format!("install --tool {tool} --to {to}")));
            is_protected_at(&world.pods[0], &[SERVER]);
            assert_eq!(world.outside.curl(&ask).code, 28, "{tool} lets the network reach the proxy at {to}");
            let others = world.outside.curl(&format!("http://{NODE}:8081/healthz"));
            assert_eq!(others.status, 200, "{tool} closes what others opened: {others:?}");
        }
        succeeds(&redirect(&world.node, "remove"));
        world.node.sh("iptables -t nat -F PREROUTING");
        assert_eq!(proxy.terminate().code(), Some(0));
    }
    assert!(world.node.sh("ip address show lo").contains("169.254.169.252"), "what is somebody else's stays");
}

fn a_way_round_can_be_allowed() {
    let world = World::new();
    let pod = &world.pods[0];
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool} --redirect-allow 443,ipv6")));
        is_open(pod, WAYS_ROUND[0]);
        is_closed(pod, WAYS_ROUND[1]);
        is_closed(pod, WAYS_ROUND[2]);
        is_open(pod, WAYS_ROUND[3]);
        is_open(pod, SERVER_V6);
    }
}

fn what_comes_by_an_uplink_is_not_redirected() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool} --uplink eth0 --uplink pod2")));
        is_protected(&world.pods[0]);
        is_closed(&world.pods[1], SERVER);
    }
}

/// As kube-proxy's interface of IPVS mode has, when a Service claims the address.
fn an_interface_that_has_the_server_s_address_is_no_uplink() {
    let world = World::new();
    succeeds(&redirect(&world.node, "install"));
    world.node.sh("ip link add claimed type veth peer name gone; ip link set claimed up
        ip address add 169.254.169.254/32 dev claimed; ip -6 address add fd20:ce::254/128 dev claimed nodad");
    succeeds(&redirect(&world.node, "check"));
    let rules = redirect(&world.node, "install --dry-run").stdout;
    assert!(rules.contains("eth0") && !rules.contains("claimed"), "{rules}");
}
