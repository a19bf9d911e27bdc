//! The command `check` in a pod and on a node.

use serde_json::Value;

use crate::namespace::Namespace;
use crate::process::{BINARY, Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{OTHER_PORT, World, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] =
    tests![a_pod_learns_whether_it_is_protected, a_script_learns_it_too, another_interface_of_the_pod_is_tried,];

/// Runs `check` as in a container: without `NET_ADMIN`, which would lead past the node.
pub fn check(place: &Namespace, args: &[&str]) -> Ended {
    let as_container = ["--bounding-set=-net_admin", "--inh-caps=-net_admin", BINARY, "check"];
    Ended::of(place.command("setpriv").args(as_container).args(args))
}

fn a_pod_learns_whether_it_is_protected() {
    let world = World::new();
    let pod = &world.pods[0];
    let before = check(pod, &[]);
    assert_eq!(before.code, Some(1), "{before:?}");
    for open in [
        "OPEN    GET http://169.254.169.254/: ",
        "OPEN    GET http://metadata.google.internal/: ",
        "OPEN    GET http://169.254.169.254/computeMetadata/v1/instance/attributes/kube-env: ",
        "OPEN    GET http://169.254.169.254/computeMetadata/v1/instance/attributes/?recursive=true: ",
        "OPEN    connect to 169.254.169.254:443: ",
        "OPEN    connect to 169.254.169.254:8080: ",
        "OPEN    connect to 169.254.169.254:8081: ",
        "OPEN    connect to 169.254.169.254:8083: ",
        "OPEN    GET http://[fd20:ce::254]/: ",
        "OPEN    connect to [fd20:ce::254]:443: ",
        "fix: ",
        "Unprotected",
    ] {
        assert!(before.stdout.contains(open), "{open} is missing from\n{}", before.stdout);
    }

    succeeds(&redirect(&world.node, "install"));
    let without_proxy = check(pod, &[]);
    assert_eq!(without_proxy.code, Some(2), "closed, and not working: {without_proxy:?}");

    let _proxy = world.proxy(&[]);
    let after = check(pod, &[]);
    assert_eq!(after.code, Some(0), "{after:?}");
    assert!(
        after.stdout.contains("a token for ")
            && after.stdout.contains("ok      GET http://[fd20:ce::254]/: the proxy answers")
            && after.stdout.ends_with("only through the proxy.\n"),
        "{}",
        after.stdout
    );
    assert!(!after.stdout.contains("OPEN") && !after.stdout.contains("fix:"), "{}", after.stdout);

    let node = check(&world.node, &[]);
    assert_eq!(node.code, Some(1), "the node itself is not redirected: {node:?}");
    assert!(node.stdout.contains("hostNetwork"), "{}", node.stdout);

    let with_net_admin = Process::run(pod, &["check"]);
    assert_eq!(with_net_admin.code, Some(1), "{with_net_admin:?}");
    assert!(
        with_net_admin.stdout.contains("OPEN    the capabilities of this container, in the machine's user namespace: ")
    );

    succeeds(&redirect(&world.node, "install --redirect-allow 8080"));
    let ajar = check(pod, &[]);
    assert_eq!(ajar.code, Some(1), "{ajar:?}");
    assert_eq!(ajar.stdout.lines().filter(|line| line.starts_with("OPEN ")).count(), 1, "{}", ajar.stdout);
    for port in [8080, OTHER_PORT] {
        let allow = format!("--redirect-allow={port}");
        succeeds(&redirect(&world.node, &format!("install {allow}")));
        let meant = check(pod, &[&allow]);
        assert_eq!(meant.code, Some(0), "{meant:?}");
        let line = format!("allowed connect to 169.254.169.254:{port}: it is open, as --redirect-allow says");
        assert!(meant.stdout.contains(&line), "{}", meant.stdout);
        assert!(meant.stdout.ends_with("except for what --redirect-allow leaves open.\n"), "{}", meant.stdout);
    }
}

/// As by Multus: no packet of the second interface passes the node's network, and none needs a route.
fn another_interface_of_the_pod_is_tried() {
    let world = World::new();
    let pod = &world.pods[0];
    succeeds(&redirect(&world.node, "install"));
    let _proxy = world.proxy(&[]);
    pod.ip(&format!("link add net1 type veth peer name net1 netns {}", world.outside.name()));
    for (place, addr) in [(pod, "10.129.0.2/24"), (&world.outside, "10.129.0.1/24")] {
        place.ip(&format!("addr add {addr} dev net1"));
        place.ip("link set net1 up");
    }
    let open = check(pod, &[]);
    assert_eq!(open.code, Some(1), "{open:?}");
    let line =
        "OPEN    GET http://169.254.169.254/ through net1: answered by \"Metadata Server for VM\", not by the proxy";
    assert!(open.stdout.contains(line), "{}", open.stdout);
    // Processes in that network do not answer for the server any more.
    world.outside.ip("link set net1 down");
    let closed = check(pod, &[]).stdout;
    assert!(
        !closed.contains("OPEN ")
            && closed.contains("ok      GET http://169.254.169.254/ through net1: it is closed: "),
        "{closed}"
    );
    pod.ip("link set net1 down");
    assert!(!check(pod, &[]).stdout.contains("net1"));
}

fn a_script_learns_it_too() {
    let world = World::new();
    let ended = check(&world.pods[0], &["--format", "json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(report["verdict"], "unprotected");
    let findings = report["findings"].as_array().expect("a list");
    let token = findings.iter().find(|finding| finding["check"] == "token").expect("it was tried");
    assert_eq!(token["verdict"], "protected");
    assert!(token["milliseconds"].is_u64() && token["do"].is_null(), "{token}");
    assert!(findings.iter().all(|finding| finding["tried"].is_string() && finding["seen"].is_string()), "{report}");
}
