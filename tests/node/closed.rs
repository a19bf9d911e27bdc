//! A redirect that cannot be installed: pods are closed until it can be.

use std::fs;

use crate::namespace::Namespace;
use crate::process::{Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{
    AS_A_PROXY, KUBE_ENV, SERVER, SERVER_V6, WAYS_ROUND, World, eventually, is_closed, is_open, is_protected,
    is_protected_at, redirect, server, succeeds,
};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    an_address_that_is_taken_closes_pods,
    an_address_that_the_node_lacks_closes_pods,
    a_keeper_closes_pods_until_it_can_redirect_them,
    a_proxy_without_an_address_closes_pods,
    a_proxy_that_cannot_start_closes_pods,
    what_is_left_of_flushed_rules_closes_nothing,
    the_startup_taint_stays_while_pods_are_closed,
];

/// Somebody else has the proxy's address, as GKE's own server has it.
pub const TAKE: &str = "ip address del 169.254.169.252/32 dev lo 2>/dev/null; ip address add 169.254.169.252/32 dev lo";
pub const GIVE_BACK: &str = "ip address del 169.254.169.252/32 dev lo";

pub fn all_is_closed(pod: &Namespace) {
    for way in WAYS_ROUND.into_iter().chain([SERVER, SERVER_V6]) {
        is_closed(pod, way);
    }
}

/// Asserts that a command failed with these messages.
pub fn fails(ended: &Ended, said: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for words in said {
        assert!(ended.stderr.contains(words) || ended.stdout.contains(words), "{words} is missing from {ended:?}");
    }
}

fn an_address_that_is_taken_closes_pods() {
    const TAKEN: &str = "has the address 169.254.169.252 already";
    for tool in ["nft", "iptables"] {
        let world = World::new();
        let pod = &world.pods[0];
        let mut kept = pod.connect(server());
        assert!(kept.ask(KUBE_ENV).is_ok());
        world.node.sh(TAKE);
        let (install, check) = (format!("install --tool {tool}"), format!("check --tool {tool}"));
        fails(&redirect(&world.node, &check), &["OPEN", TAKEN]);

        fails(&redirect(&world.node, &install), &[TAKEN, "--to", "pods are closed"]);
        all_is_closed(pod);
        assert!(kept.ask(KUBE_ENV).is_err(), "{tool}: a connection from before lives");
        is_open(&world.node, SERVER);
        fails(&redirect(&world.node, &check), &["pods are closed", TAKEN]);
        // As the chart has it with another `port`: that does not say whose the address is.
        let port = "--to 169.254.169.252:987 --to [fd20:ce::252]:987";
        fails(&redirect(&world.node, &format!("{install} {port}")), &[TAKEN, "pods are closed"]);
        all_is_closed(pod);
        world.node.sh(GIVE_BACK);
        fails(&redirect(&world.node, &check), &["pods are closed", "Run 'redirect install'"]);

        world.node.sh(TAKE);
        let elsewhere = ["--addr=169.254.169.253:988", "--addr=[fd20:ce::253]:988"];
        let proxy = world.proxy(&elsewhere);
        let to = elsewhere.map(|addr| addr.replace("--addr", "--to")).join(" ");
        succeeds(&redirect(&world.node, &format!("{install} {to}")));
        is_protected(pod);
        assert_eq!(proxy.terminate().code(), Some(0));
        fails(&redirect(&world.node, &install), &["pods are closed"]);
        all_is_closed(pod);
        world.node.sh(GIVE_BACK);
        succeeds(&redirect(&world.node, &install));
        let addresses = world.node.sh("ip address show lo");
        assert!(
            addresses.contains("169.254.169.252/32 metric") && !addresses.contains("169.254.169.253"),
            "{addresses}"
        );
        let _proxy = world.proxy(&[]);
        is_protected(pod);
        succeeds(&redirect(&world.node, "remove"));
        let addresses = world.node.sh("ip address show lo");
        assert!(!addresses.contains("169.254") && !addresses.contains("fd20"), "{addresses}");

        world.node.sh(TAKE);
        fails(&redirect(&world.node, &install), &["pods are closed"]);
        succeeds(&redirect(&world.node, "remove"));
        assert!(world.node.sh("ip address show lo").contains("169.254.169.252"), "what is somebody else's stays");
        is_open(pod, SERVER);
    }
}

/// Pods would be sent to nobody, or to another machine of the node's network.
fn an_address_that_the_node_lacks_closes_pods() {
    const MISSING: &str = "this node has no address 10.128.0.77";
    let change = |world: &World, what: &str| world.node.ip(&format!("address {what} 10.128.0.77/32 dev eth0"));
    for tool in ["nft", "iptables"] {
        let world = World::new();
        let pod = &world.pods[0];
        let flags = format!("--tool {tool} --to 10.128.0.77:988");
        let (install, check) = (format!("install {flags}"), format!("check {flags}"));
        fails(&redirect(&world.node, &check), &["OPEN", MISSING]);
        fails(&redirect(&world.node, &install), &[MISSING, "--to", "pods are closed"]);
        all_is_closed(pod);
        fails(&redirect(&world.node, &check), &["pods are closed", MISSING]);

        change(&world, "add");
        let _proxy = world.proxy(&["--addr=10.128.0.77:988"]);
        succeeds(&redirect(&world.node, &install));
        succeeds(&redirect(&world.node, &check));
        is_protected_at(pod, &[SERVER]);
        let other = format!("install --tool {tool} --to 10.128.0.78:988");
        fails(&redirect(&world.node, &other), &["no address 10.128.0.78", "The rules in force stay"]);
        succeeds(&redirect(&world.node, &check));
        is_protected_at(pod, &[SERVER]);
        succeeds(&redirect(&world.node, &format!("{install} --redirect-allow 8080")));
        fails(&redirect(&world.node, &other), &["no address 10.128.0.78", "pods are closed"]);
        let with_v6 = redirect(&world.node, &format!("install {flags} --to [fd00:a::77]:988"));
        succeeds(&with_v6);
        assert!(
            with_v6.stdout.contains("by IPv4 alone") && with_v6.stdout.contains("no address fd00:a::77"),
            "{with_v6:?}"
        );

        change(&world, "del");
        fails(&redirect(&world.node, &check), &["does not match these flags", MISSING]);
        fails(&redirect(&world.node, &install), &[MISSING, "pods are closed"]);
        all_is_closed(pod);
    }
}

fn a_keeper_closes_pods_until_it_can_redirect_them() {
    let world = World::new();
    let pod = &world.pods[0];
    let _proxy = world.proxy(&[]);
    world.node.sh(TAKE);
    let keeper = Process::start(&world.node, &["redirect", "install", "--keep"]);
    keeper.line("pods are closed");
    all_is_closed(pod);
    for _ in 0..2 {
        world.node.sh("nft delete table inet gce_metadata_proxy");
        let before = keeper.line("the redirect was missing");
        assert!(before.is_empty(), "the same reason is logged again: {before:?}");
        eventually("it is closed again", || redirect(&world.node, "check").stdout.contains("pods are closed"));
    }
    world.node.sh(GIVE_BACK);
    let before = keeper.line("redirect installed");
    assert!(!before.iter().any(|line| line.contains("cannot be installed")), "{before:?}");
    is_protected(pod);
    assert_eq!(redirect(&world.node, "check").code, Some(0));

    world.node.sh("nft flush ruleset");
    world.node.sh(TAKE);
    keeper.line("the redirect was missing");
    keeper.line("pods are closed");
    all_is_closed(pod);
    world.node.sh(GIVE_BACK);
    keeper.line("redirect installed");
    is_protected(pod);
    world.node.sh(TAKE);
    keeper.line("pods are closed");
    all_is_closed(pod);
    assert_eq!(keeper.terminate().code(), Some(0));
    all_is_closed(pod);
}

fn a_proxy_without_an_address_closes_pods() {
    let world = World::new();
    assert_eq!(world.proxy(&["--redirect"]).terminate().code(), Some(0));
    let refused = Process::run(&world.node, &["--addr=0.0.0.0:988", "--metrics-addr=127.0.0.1:0", "--redirect"]);
    fails(&refused, &["0.0.0.0:988", "--addr", "pods are closed"]);
    all_is_closed(&world.pods[0]);
}

/// It fails before it comes to its redirect.
fn a_proxy_that_cannot_start_closes_pods() {
    let world = World::new();
    let pod = &world.pods[0];
    let policy = std::env::temp_dir().join(format!("policy-{}.yaml", std::process::id()));
    fs::write(&policy, "conceal: [").expect("a temporary file");
    let broken = format!("--policy={}", policy.display());
    let fail = |words: &[&str], said: &[&str]| {
        fails(&Process::run(&world.node, &[&AS_A_PROXY[..], &["--redirect"], words].concat()), said);
    };
    let no_kubeconfig = [
        "--workload-identity",
        "--node-name=n",
        "--workload-identity-provider=none",
        "--host-proc=/proc",
        "--kubeconfig=/nonexistent",
    ];

    fail(&[&broken, "--redirect-allow=8080"], &[&broken[9..], "pods are closed"]);
    is_closed(pod, SERVER);
    is_open(pod, "http://169.254.169.254:8080");
    fail(&[&broken], &["The rules in force stay"]);
    succeeds(&redirect(&world.node, "remove"));
    fail(&no_kubeconfig, &["/nonexistent", "pods are closed"]);
    all_is_closed(pod);
    fail(&[&broken], &["Pods stay closed"]);
    all_is_closed(pod);

    world.node.ip("address add 10.128.0.77/32 dev eth0");
    succeeds(&redirect(&world.node, "install --to 10.128.0.77:988"));
    fail(&[&broken], &["The rules in force stay"]);
    world.node.ip("address del 10.128.0.77/32 dev eth0");
    fail(&[&broken], &["pods are closed"]);
    all_is_closed(pod);

    let proxy = world.proxy(&["--redirect"]);
    is_protected(pod);
    fail(&["--metrics-addr=127.0.0.1:0"], &["--addr", "The redirect in force stays"]);
    is_protected(pod);
    drop(proxy);
    fs::remove_file(policy).expect("it is there");
}

/// Ways to open pods that leave something of the rules.
const OPENED: [(&str, &str); 6] = [
    ("nft", "nft flush table inet gce_metadata_proxy"),
    (
        "nft",
        "nft delete chain inet gce_metadata_proxy no_bypass; nft delete chain inet gce_metadata_proxy to_proxy; \
     nft delete chain inet gce_metadata_proxy no_leaving",
    ),
    // What an administrator does to start with no rules. `-X` stops at the first chain that it cannot delete.
    (
        "iptables",
        "for tool in iptables ip6tables; do for table in filter nat mangle; do \
     $tool -t $table -F; $tool -t $table -X; done; done 2>/dev/null; iptables -t mangle -N GCE-METADATA-PROXY-LEAVING || true",
    ),
    (
        "iptables",
        "for tool in iptables ip6tables; do for table in filter nat mangle; do $tool -t $table -F; done; done",
    ),
    ("iptables", "for table in filter nat mangle; do iptables -t $table -F; done"),
    (
        "iptables",
        "iptables -D FORWARD -j GCE-METADATA-PROXY-BYPASS; iptables -t nat -F; \
     iptables -t mangle -D POSTROUTING -j GCE-METADATA-PROXY-LEAVING",
    ),
];

/// Empty chains, and chains that no packet passes, are no rules in force.
fn what_is_left_of_flushed_rules_closes_nothing() {
    let world = World::new();
    let pod = &world.pods[0];
    let policy = std::env::temp_dir().join(format!("policy-flushed-{}.yaml", std::process::id()));
    fs::write(&policy, "conceal: [").expect("a temporary file");
    let broken = format!("--policy={}", policy.display());
    let broken = [&AS_A_PROXY[..], &["--redirect", &broken]].concat();
    for (tool, open) in OPENED {
        let check = || redirect(&world.node, &format!("check --tool {tool}"));
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        world.node.sh(open);
        is_open(pod, SERVER);
        fails(&check(), &["OPEN"]);
        fails(&Process::run(&world.node, &broken), &["pods are closed"]);
        all_is_closed(pod);
        fails(&Process::run(&world.node, &broken), &["Pods stay closed"]);
        succeeds(&redirect(&world.node, "remove"));
    }
    fs::remove_file(policy).expect("it is there");
    for (tool, open) in [OPENED[0], OPENED[3]] {
        let keeper = Process::start(&world.node, &["redirect", "install", "--keep", "--tool", tool]);
        keeper.line("redirect installed");
        world.node.sh(open);
        keeper.line("the redirect was missing");
        is_closed(pod, SERVER);
        assert_eq!(keeper.terminate().code(), Some(0));
    }
}

/// The proxy is not even asked whether it is ready.
fn the_startup_taint_stays_while_pods_are_closed() {
    let world = World::new();
    let flags = "--startup-taint=a.b/c --node-name=n --kubeconfig=/nonexistent --metrics-addr=127.0.0.1:1";
    world.node.sh(TAKE);
    let line = format!("redirect install --keep {flags}");
    let keeper = Process::start(&world.node, &line.split(' ').collect::<Vec<_>>());
    keeper.line("pods are closed");
    world.node.sh("nft delete table inet gce_metadata_proxy");
    let before = keeper.line("the redirect was missing");
    assert!(before.is_empty(), "{before:?}");
    world.node.sh(GIVE_BACK);
    let before = keeper.line("redirect installed");
    assert!(!before.iter().any(|line| line.contains("startup taint")), "{before:?}");
    keeper.line("the startup taint stays until it is ready");
}
