//! The redirect within one pod.

use std::io::ErrorKind;
use std::process::Command;

use redirect::SIDECAR_UID;

use crate::namespace::Namespace;
use crate::process::{BINARY, Process};
use crate::support::needs::{Test, tests};
use crate::world::{
    AS_A_PROXY, KUBE_ENV, SERVER, WAYS_ROUND, World, is_closed, is_open, is_protected, redirect, server, succeeds,
};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    nft_protects_a_pod_from_first_to_last,
    iptables_protects_a_pod_from_first_to_last,
    a_sidecar_on_a_protected_node_asks_the_node_s_proxy,
];

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
    for way in WAYS_ROUND.into_iter().chain([SERVER]) {
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
    is_protected(pod);
    for application in APPLICATIONS {
        let check = as_user(application, pod, BINARY).arg("check").output().expect("it can be run");
        assert_eq!(check.status.code(), Some(0), "as {application}: {check:?}");
    }
    is_open(other, SERVER);

    running.kill();
    is_closed(pod, SERVER);
    let running = proxy(pod);
    is_protected(pod);

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
    let _of_the_node = world.proxy(&["--addr=127.0.0.1:988"]);
    succeeds(&redirect(pod, &format!("install --mode sidecar --proxy-uid {PROXY} --to 127.0.0.1:8988")));
    let _of_the_pod = proxy(pod);
    is_protected(pod);
}
