//! The command `check` in a pod and on a node.

use serde_json::Value;

use crate::namespace::Namespace;
use crate::process::{Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{World, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![a_pod_learns_whether_it_is_protected, a_script_learns_it_too,];

fn check(place: &Namespace) -> Ended {
    Process::run(place, &["check"])
}

fn a_pod_learns_whether_it_is_protected() {
    let world = World::new();
    let pod = &world.pods[0];
    let before = check(pod);
    assert_eq!(before.code, Some(1), "{before:?}");
    for open in [
        "OPEN    GET http://169.254.169.254/: ",
        "OPEN    GET http://metadata.google.internal/: ",
        "OPEN    GET http://169.254.169.254/computeMetadata/v1/instance/attributes/kube-env: ",
        "OPEN    GET http://169.254.169.254/computeMetadata/v1/instance/attributes/?recursive=true: ",
        "OPEN    connect to 169.254.169.254:443: ",
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
    let without_proxy = check(pod);
    assert_eq!(without_proxy.code, Some(2), "closed, and not working: {without_proxy:?}");

    let _proxy = world.proxy(&[]);
    let after = check(pod);
    assert_eq!(after.code, Some(0), "{after:?}");
    assert!(
        after.stdout.contains("a token for ")
            && after.stdout.contains("ok      GET http://[fd20:ce::254]/: the proxy answers")
            && after.stdout.ends_with("only through the proxy.\n"),
        "{}",
        after.stdout
    );
    assert!(!after.stdout.contains("OPEN") && !after.stdout.contains("fix:"), "{}", after.stdout);

    let node = check(&world.node);
    assert_eq!(node.code, Some(1), "the node itself is not redirected: {node:?}");
    assert!(node.stdout.contains("hostNetwork"), "{}", node.stdout);

    succeeds(&redirect(&world.node, "install --redirect-allow 8081"));
    let ajar = check(pod);
    assert_eq!(ajar.code, Some(1), "{ajar:?}");
    assert_eq!(ajar.stdout.lines().filter(|line| line.starts_with("OPEN ")).count(), 1, "{}", ajar.stdout);
    let meant = Process::run(pod, &["check", "--redirect-allow=8081"]);
    assert_eq!(meant.code, Some(0), "{meant:?}");
    let line = "allowed connect to 169.254.169.254:8081: it is open, as --redirect-allow says";
    assert!(meant.stdout.contains(line), "{}", meant.stdout);
    assert!(meant.stdout.ends_with("except for what --redirect-allow leaves open.\n"), "{}", meant.stdout);
}

fn a_script_learns_it_too() {
    let world = World::new();
    let ended = Process::run(&world.pods[0], &["check", "--format", "json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(report["verdict"], "unprotected");
    let findings = report["findings"].as_array().expect("a list");
    let token = findings.iter().find(|finding| finding["check"] == "token").expect("it was tried");
    assert_eq!(token["verdict"], "protected");
    assert!(token["milliseconds"].is_u64() && token["do"].is_null(), "{token}");
    assert!(findings.iter().all(|finding| finding["tried"].is_string() && finding["seen"].is_string()), "{report}");
}
