//! The redirect within one pod.

use std::io::ErrorKind;
use std::process::Command;

use redirect::SIDECAR_UID;

use crate::namespace::Namespace;
use crate::process::{BINARY, Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{
    AS_A_PROXY, KUBE_ENV, SERVER, SERVER_V6, WAYS_ROUND, World, is_closed, is_open, is_protected, is_protected_at,
    redirect, server, succeeds,
};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    nft_protects_a_pod_from_first_to_last,
    iptables_protects_a_pod_from_first_to_last,
    a_sidecar_on_a_protected_node_asks_the_node_s_proxy,
    a_capability_that_leads_past_the_proxy_is_named,
    a_pod_may_be_served_by_ipv6_too,
    a_sidecar_on_the_node_s_network_leaves_the_node_s_rules,
];

/// Tests that are not in a container.
pub const ON_A_MACHINE: &[Test] = tests![a_sidecar_on_the_machine_s_own_network_is_refused];

/// The runAsUser of the proxy's container, and of no other.
const PROXY: u32 = SIDECAR_UID;

/// Users of applications, among them `nonroot` of distroless images, and `nobody`.
const APPLICATIONS: [u32; 3] = [1000, 65532, 65534];

/// A command that runs in the pod as this user.
fn as_user(uid: u32, pod: &Namespace, program: &str) -> Command {
    let (mut command, uid) = (pod.command("setpriv"), uid.to_string());
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", program]);
    command
}

/// The same without capabilities, as the manifests have it.
fn as_application(uid: u32, pod: &Namespace) -> Command {
    let mut command = as_user(uid, pod, "setpriv");
    // Its own user cannot take them out of the bounding set any more.
    command.args(["--no-new-privs", BINARY]);
    command
}

/// The proxy listens on 127.0.0.1 alone, and IPv6 is closed.
fn is_protected_by_v4(pod: &Namespace) {
    is_protected_at(pod, &[SERVER, "http://metadata.google.internal"]);
    is_closed(pod, SERVER_V6);
}

fn proxy(pod: &Namespace) -> Process {
    let mut command = as_user(PROXY, pod, BINARY);
    let proxy =
        Process::spawn(command.args(AS_A_PROXY).args(["--addr=127.0.0.1:8988", "--metrics-addr=127.0.0.1:8989"]));
    proxy.line("cache warmed up");
    proxy
}

fn a_pod_is_protected_from_first_to_last(tool: &str) {
    let world = World::new();
    let [pod, other] = &world.pods;
    for rule in ["iptables -A OUTPUT", "iptables -t nat -A OUTPUT", "ip6tables -A OUTPUT"] {
        pod.sh(&format!("{rule} -j ACCEPT"));
    }
    let before = World::state_of(pod);
    for way in WAYS_ROUND.into_iter().chain([SERVER, SERVER_V6]) {
        is_open(pod, way);
    }
    let mut kept = pod.connect(server());
    assert!(kept.ask(KUBE_ENV).is_ok_and(|answer| answer.contains(" 200 ")));

    let install = format!("install --mode sidecar --proxy-uid {PROXY} --to 127.0.0.1:8988 --tool {tool}");
    succeeds(&redirect(pod, &install));
    succeeds(&redirect(pod, &install.replace("install", "check")));
    assert_eq!(kept.ask(KUBE_ENV), Err(ErrorKind::ConnectionReset), "a connection older than the redirect lives");
    is_closed(pod, SERVER);

    let running = proxy(pod);
    is_protected_by_v4(pod);
    for application in APPLICATIONS {
        let check = as_application(application, pod).arg("check").output().expect("it can be run");
        assert_eq!(check.status.code(), Some(0), "as {application}: {check:?}");
    }
    is_open(other, SERVER);

    running.kill();
    is_closed(pod, SERVER);
    let running = proxy(pod);
    is_protected_by_v4(pod);

    succeeds(&redirect(pod, "remove"));
    assert_eq!(World::state_of(pod), before);
    is_open(pod, SERVER);
    assert_eq!(running.terminate().code(), Some(0));
}

fn nft_protects_a_pod_from_first_to_last() {
    a_pod_is_protected_from_first_to_last("nft");
}

fn iptables_protects_a_pod_from_first_to_last() {
    a_pod_is_protected_from_first_to_last("iptables");
}

fn a_sidecar_on_a_protected_node_asks_the_node_s_proxy() {
    let world = World::new();
    let pod = &world.pods[0];
    succeeds(&redirect(&world.node, "install"));
    let _of_the_node = world.proxy(&[]);
    succeeds(&redirect(pod, &format!("install --mode sidecar --proxy-uid {PROXY} --to 127.0.0.1:8988")));
    let _of_the_pod = proxy(pod);
    is_protected_by_v4(pod);
}

/// What containerd gives to each container, with one more that is harmless here.
fn a_capability_that_leads_past_the_proxy_is_named() {
    let world = World::new();
    let pod = &world.pods[0];
    succeeds(&redirect(pod, &format!("install --mode sidecar --proxy-uid {PROXY} --to 127.0.0.1:8988")));
    let check = |capabilities: &str| {
        let drop = ["--bounding-set", capabilities, "--inh-caps", capabilities, BINARY, "check"];
        let check = pod.command("setpriv").args(drop).output().expect("it can be run");
        (check.status.code(), String::from_utf8(check.stdout).expect("text"))
    };
    assert!(!check("-all,+net_raw").1.contains("capabilities"), "no proxy is in this pod");
    let _proxy = proxy(pod);
    let (code, said) = check("-all,+net_raw,+chown");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("OPEN ") && said.contains("NET_RAW") && !said.contains("SETUID"), "{said}");
    let (code, said) = check("-all,+chown");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("none leads past the proxy"), "{said}");
}

fn a_pod_may_be_served_by_ipv6_too() {
    let world = World::new();
    let pod = &world.pods[0];
    let mut command = as_user(PROXY, pod, BINARY);
    command.args(AS_A_PROXY).args(["--addr=127.0.0.1:8988", "--addr=[::1]:8988", "--metrics-addr=127.0.0.1:8989"]);
    let proxy = Process::spawn(&mut command);
    proxy.line("cache warmed up");
    for tool in ["nft", "iptables"] {
        let to = "--to 127.0.0.1:8988 --to [::1]:8988";
        succeeds(&redirect(pod, &format!("install --mode sidecar --proxy-uid {PROXY} --tool {tool} {to}")));
        is_protected(pod);
    }
}

/// A pod with `hostNetwork: true`. Also where the rules alone are left of the node's redirect, or its addresses alone.
fn a_sidecar_on_the_node_s_network_leaves_the_node_s_rules() {
    let world = World::new();
    let node = &world.node;
    let flags = |tool| format!("--mode sidecar --proxy-uid {PROXY} --to 127.0.0.1:8988 --tool {tool}");
    let refused = |tool| {
        let before = World::state_of(node);
        let install = redirect(node, &format!("install {}", flags(tool)));
        let said =
            ["hostNetwork", "The node's rules stay as they are"].iter().all(|words| install.stderr.contains(words));
        assert!(install.code == Some(1) && said, "{tool}: {install:?}");
        let check = redirect(node, &format!("check {}", flags(tool)));
        assert!(check.code == Some(1) && check.stdout.contains("hostNetwork"), "{tool}: {check:?}");
        assert_eq!(World::state_of(node), before, "{tool}");
        is_open(node, SERVER);
    };
    for tool in ["nft", "iptables"] {
        succeeds(&redirect(node, &format!("install --tool {tool}")));
        ["nft", "iptables"].into_iter().for_each(refused);
        is_closed(&world.pods[0], SERVER);
        node.sh("ip address del 169.254.169.252/32 dev lo; ip address del fd20:ce::252/128 dev lo");
        refused(tool);
        succeeds(&redirect(node, &format!("install --tool {tool}")));
        node.sh("nft flush ruleset");
        refused(tool);
        succeeds(&redirect(node, "remove"));
        succeeds(&redirect(node, &format!("install {}", flags(tool))));
        succeeds(&redirect(node, &format!("install {}", flags(tool))));
        succeeds(&redirect(node, "remove"));
    }
}

/// A pod with `hostNetwork: true` where there is no redirect. The command changes nothing.
fn a_sidecar_on_the_machine_s_own_network_is_refused() {
    let flags = ["--mode=sidecar", &format!("--proxy-uid={PROXY}"), "--to=127.0.0.1:8988"];
    let check = Ended::of(Command::new(BINARY).args(["redirect", "check"]).args(flags));
    let said = ["network of the machine itself", "hostNetwork"].iter().all(|words| check.stdout.contains(words));
    assert!(check.code == Some(1) && said, "{check:?}");
}
