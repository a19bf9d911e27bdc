//! The redirect on a node, for the node's pods.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use crate::namespace::Namespace;
use crate::process::{BINARY, Ended, Process};
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
    a_rule_of_others_that_comes_first_is_put_behind,
    a_way_round_can_be_allowed,
    what_another_tool_installed_is_in_force,
    the_proxy_itself_can_install_the_redirect,
    what_is_flushed_comes_back,
    output_that_cannot_be_written_changes_nothing_else,
    without_privileges_it_says_what_is_missing,
    the_capability_net_admin_is_enough,
    what_comes_by_an_uplink_is_not_redirected,
    an_interface_that_has_the_server_s_address_is_no_uplink,
    a_door_that_the_node_never_had_is_no_failure_with_nonlocal_binds,
    a_door_for_ipv6_is_forgotten_with_the_node_s_ipv6,
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

fn what_another_tool_installed_is_in_force() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    for (tool, other) in [("nft", "iptables"), ("iptables", "nft")] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        let with = |settings: &str| redirect(&world.node, &format!("check --tool {other} {settings}"));
        for (settings, expected) in [("", "with these settings"), ("--redirect-allow 443", "with other settings")] {
            let checked = with(settings);
            assert_eq!(checked.code, Some(1), "{checked:?}");
            let expected = format!("it was installed with {tool}, {expected}");
            assert!(checked.stdout.contains(&expected) && !checked.stdout.contains("OPEN"), "{checked:?}");
        }
        is_protected(&world.pods[0]);
        succeeds(&redirect(&world.node, "remove"));
        assert!(with("").stdout.contains("OPEN"));
    }
}

fn the_proxy_itself_can_install_the_redirect() {
    let world = World::new();
    let proxy = world.proxy(&["--redirect"]);
    is_protected(&world.pods[0]);
    assert_eq!(proxy.terminate().code(), Some(0));
    is_closed(&world.pods[0], SERVER);
    for nowhere in ["--addr=0.0.0.0:988", "--addr=127.0.0.1:988"] {
        let refused = Process::run(&world.node, &[nowhere, "--metrics-addr=127.0.0.1:0", "--redirect"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for said in [nowhere.trim_start_matches("--addr="), "--addr", "pods are closed"] {
            assert!(refused.stderr.contains(said), "{said} is missing from {refused:?}");
        }
    }
}

fn what_is_flushed_comes_back() {
    const METRICS: &str = "127.0.0.1:1990";
    let world = World::new();
    let keeper = Process::start(&world.node, &["redirect", "install", "--keep", "--keeper-metrics-addr", METRICS]);
    keeper.line("redirect installed");
    let restored = || {
        let page = world.node.curl(&format!("http://{METRICS}/metrics")).text;
        ["absent", "changed", "closed", "unreadable"].map(|found| {
            let series = format!("metadata_proxy_redirect_restored_total{{found=\"{found}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
        })
    };
    let counts = |counts: [u32; 4]| eventually("it is counted", || restored() == counts.map(Some));
    assert_eq!(redirect(&world.node, "check").code, Some(0));
    counts([0, 0, 0, 0]);
    world.node.sh("nft flush ruleset");
    assert_eq!(redirect(&world.node, "check").code, Some(1));
    keeper.line("the redirect was missing");
    assert_eq!(redirect(&world.node, "check").code, Some(0));
    counts([1, 0, 0, 0]);
    world.node.sh("nft flush chain inet gce_metadata_proxy to_proxy");
    keeper.line("was changed and has been restored");
    counts([1, 1, 0, 0]);
    assert_eq!(keeper.terminate().code(), Some(0));
    assert_eq!(redirect(&world.node, "check").code, Some(0), "it stays");
}

/// As Calico's chain accepts what is between pods and other machines, if it comes first. Pods' ways round stay closed even then
/// (`attacks/`), but by packets that get no answer.
fn a_rule_of_others_that_comes_first_is_put_behind() {
    let world = World::new();
    let keeper = Process::start(&world.node, &["redirect", "install", "--keep", "--tool", "iptables"]);
    keeper.line("redirect installed");
    world.node.sh("for tool in iptables ip6tables; do $tool -I FORWARD -j ACCEPT; done");
    let check = redirect(&world.node, "check --tool iptables");
    assert!(check.code == Some(1) && check.stdout.contains("rules of others come before"), "{check:?}");
    keeper.line("has been restored");
    for way in WAYS_ROUND {
        is_closed(&world.pods[0], way);
    }
    succeeds(&redirect(&world.node, "check --tool iptables"));
}

fn without_privileges_it_says_what_is_missing() {
    let world = World::new();
    for (drop, missing) in [
        ("setpriv --bounding-set -net_admin --inh-caps -net_admin", "CAP_NET_ADMIN is missing"),
        ("setpriv --reuid 10988 --clear-groups", "CAP_NET_ADMIN is missing"),
        ("env PATH=/nonexistent", "neither nft nor iptables-restore"),
    ] {
        for command in ["install", "remove", "check"] {
            let line = format!("/usr/bin/{drop} {BINARY} redirect {command}");
            let ended = Ended::of(world.node.command("sh").args(["-c", &line]));
            assert_eq!(ended.code, Some(1), "{line}: {ended:?}");
            assert!(ended.stderr.contains(missing), "{line}: {ended:?}");
        }
    }
}

/// Drops all other capabilities, as in a container.
const NET_ADMIN_ALONE: &str = "setpriv --bounding-set -all,+net_admin --inh-caps -all,+net_admin";

fn the_capability_net_admin_is_enough() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    for command in ["install --tool nft", "check --tool nft", "install --tool iptables", "remove", "install"] {
        world.node.sh(&format!("{NET_ADMIN_ALONE} {BINARY} redirect {command}"));
    }
    is_protected(&world.pods[0]);
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

/// Standard output is a full disk, or a pipe whose reader has left.
fn output_that_cannot_be_written_changes_nothing_else() {
    let world = World::new();
    let full = || OpenOptions::new().write(true).open("/dev/full").expect("Linux has it").into();
    let left = || std::io::pipe().map(|(_, writer)| writer.into()).expect("a pipe");
    let run = |stdout: Stdio, command: &str| {
        let mut binary = world.node.command(BINARY);
        let output = binary.args(["redirect"]).args(command.split(' ')).stdout(stdout).output().expect("it runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    for (command, code) in [("check", 1), ("install --dry-run", 0), ("install", 0), ("check", 0), ("remove", 0)] {
        assert_eq!(run(left(), command), (Some(code), String::new()), "{command}");
    }
    for (command, is_installed) in [("install", true), ("check", true), ("remove", false)] {
        let (code, text) = run(full(), command);
        assert_eq!((code, text.lines().count()), (Some(74), 1), "{command}: {text}");
        assert_eq!(redirect(&world.node, "check").code == Some(0), is_installed, "{command}");
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
