//! `check --interval` in a pod, while the redirect and the proxy come and go.

use crate::namespace::Namespace;
use crate::process::{Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{World, eventually, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    what_pods_can_reach_is_followed,
    a_proxy_that_restarts_is_no_failure,
    an_address_without_a_canary_and_one_that_is_taken_are_named,
];

const ADMIN: &str = "--metrics-addr=127.0.0.1:8989";

const PROTECTED: &str = " protected: pods of node-7 ";
const TROUBLE: &str = " TROUBLE: nothing is exposed unintentionally to pods of node-7";
const UNPROTECTED: &str = " UNPROTECTED: pods of node-7 ";

/// Starts a canary that checks at this interval.
pub fn canary(pod: &Namespace, interval: &str) -> Process {
    Process::start(pod, &["check", &format!("--interval={interval}"), "--node-name=node-7", ADMIN])
}

/// The answer of its readiness probe.
fn last(pod: &Namespace) -> Ended {
    Process::run(pod, &["check", "--last", ADMIN])
}

fn what_pods_can_reach_is_followed() {
    let world = World::new();
    let pod = &world.pods[0];
    let canary = canary(pod, "1s");
    canary.line(UNPROTECTED);
    canary.hang_up();
    let open = last(pod);
    assert_eq!(open.code, Some(1), "{open:?}");
    for named in [
        "HEAD http://169.254.169.254/: answered by \"Metadata Server for VM\", not by the proxy",
        "HEAD http://169.254.169.254/computeMetadata/v1/instance/attributes/kube-env: \"Metadata Server for VM\" returns it",
        "connect to 169.254.169.254:8081: it is open",
        "HEAD http://[fd20:ce::254]/: answered by \"Metadata Server for VM\", not by the proxy",
        ". Fix: run 'gce-metadata-proxy redirect check' in the container 'redirect' of this node's proxy",
    ] {
        assert!(open.stdout.contains(named), "{named} is missing from\n{}", open.stdout);
    }
    assert_eq!(open.stdout.lines().count(), 1, "an event is one line: {}", open.stdout);

    succeeds(&redirect(&world.node, "install"));
    canary.line(TROUBLE);
    let closed = last(pod);
    assert_eq!(closed.code, Some(1), "{closed:?}");
    assert!(closed.stdout.contains("nobody answers: Connection refused"), "{closed:?}");

    let proxy = world.proxy(&[]);
    canary.line(PROTECTED);
    succeeds(&last(pod));
    let metrics = pod.curl("http://127.0.0.1:8989/metrics").text;
    for series in [
        "metadata_proxy_check_protected 1",
        "metadata_proxy_check_findings{check=\"proxied\",verdict=\"protected\"} 2",
        "metadata_proxy_check_findings{check=\"way_round\",verdict=\"protected\"} 8",
        "metadata_proxy_check_findings{check=\"way_round\",verdict=\"unprotected\"} 0",
    ] {
        assert!(metrics.contains(&format!("\n{series}\n")), "{series} is missing from\n{metrics}");
    }

    succeeds(&redirect(&world.node, "remove"));
    let before = canary.line(UNPROTECTED);
    assert!(before.is_empty(), "what is exposed counts at once, and only changes are logged: {before:?}");
    assert_eq!(last(pod).code, Some(1));
    succeeds(&redirect(&world.node, "install"));
    canary.line(PROTECTED);

    proxy.kill();
    let before = canary.line(TROUBLE);
    assert!(before.len() == 1 && before[0].contains(" ready until 3 checks in a row fail"), "{before:?}");
    assert_eq!(last(pod).code, Some(1));
    assert_eq!(canary.terminate().code(), Some(0));
}

fn a_proxy_that_restarts_is_no_failure() {
    let world = World::new();
    let pod = &world.pods[0];
    succeeds(&redirect(&world.node, "install"));
    let proxy = world.proxy(&[]);
    let canary = canary(pod, "6s");
    canary.line(PROTECTED);
    proxy.kill();
    canary.line("ready until 3 checks in a row fail");
    succeeds(&last(pod));
    let _proxy = world.proxy(&[]);
    let before = canary.line(PROTECTED);
    assert!(before.is_empty(), "{before:?}");
}

fn an_address_without_a_canary_and_one_that_is_taken_are_named() {
    let world = World::new();
    let pod = &world.pods[0];
    let none = last(pod);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stdout.contains("no 'check --interval' answers at 127.0.0.1:8989"), "{none:?}");
    let first = canary(pod, "1m");
    eventually("it has checked", || last(pod).stdout.contains("UNPROTECTED"));
    let second = Process::run(pod, &["check", "--interval=1m", ADMIN]);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("cannot listen on 127.0.0.1:8989 (--metrics-addr)"), "{second:?}");
    first.kill();
}
