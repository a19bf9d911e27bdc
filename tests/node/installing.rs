//! Who can install the redirect on a node, and keeps it installed.

use std::fs::OpenOptions;
use std::process::Stdio;

use crate::closed::{GIVE_BACK, TAKE};
use crate::process::{BINARY, Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, WAYS_ROUND, World, eventually, is_closed, is_protected, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    what_another_tool_installed_is_in_force,
    what_only_another_tool_shows_keeps_its_addresses,
    the_proxy_itself_can_install_the_redirect,
    what_is_flushed_comes_back,
    output_that_cannot_be_written_changes_nothing_else,
    a_rule_of_others_that_comes_first_is_put_behind,
    without_privileges_it_says_what_is_missing,
    the_capability_net_admin_is_enough,
];

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
            // With other variables than those of the container, `install` replaces a good redirect.
            for said in ["rules in force still close the metadata server itself to pods", "METADATA_PROXY_REDIRECT_"] {
                assert!(checked.stdout.contains(said), "{said} is missing from {checked:?}");
            }
        }
        is_protected(&world.pods[0]);
        let removed = redirect(&world.node, "remove");
        let said = [format!("redirect removed from {tool}\n"), format!("there was no redirect in {other}\n")];
        assert!(removed.code == Some(0) && said.iter().all(|line| removed.stdout.contains(line)), "{removed:?}");
        assert!(with("").stdout.contains("OPEN"));
    }
}

/// On a host with iptables alone, whose redirect a container installed with nft.
fn what_only_another_tool_shows_keeps_its_addresses() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    succeeds(&redirect(&world.node, "install --tool nft"));
    let tools = world.node.sh("dir=$(mktemp -d) && for tool in iptables ip6tables; do
           for name in $tool $tool-save $tool-restore; do ln -s $(command -v $name) $dir; done
         done && echo $dir");
    let tools = tools.trim();
    let line = format!("env PATH={tools} {BINARY} redirect remove");
    let refused = Ended::of(world.node.command("sh").args(["-c", &line]));
    assert!(refused.code == Some(1) && refused.stderr.contains("nothing was changed"), "{refused:?}");
    is_protected(&world.pods[0]);
    let check = || Ended::of(world.node.command("sh").args(["-c", &line.replace("remove", "check")]));
    let unseen = check();
    assert!(unseen.code == Some(1) && unseen.stdout.is_empty(), "{unseen:?}");
    assert!(unseen.stderr.contains("what is in force cannot be seen"), "{unseen:?}");
    succeeds(&redirect(&world.node, "remove"));
    let open = check();
    assert!(open.code == Some(1) && open.stdout.contains("pods are OPEN"), "the table is gone: {open:?}");
    let removed = Ended::of(world.node.command("sh").args(["-c", &line]));
    assert_eq!(removed.code, Some(0), "there are no addresses left: {removed:?}");
    succeeds(&redirect(&world.node, "install --tool iptables"));
    succeeds(&check());
    world.node.sh(&format!("rm -r {tools}"));
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
    keeper.hang_up();
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
    // It cannot be restored at first.
    world.node.sh(&format!("nft flush ruleset; {TAKE}"));
    keeper.line("the redirect was missing");
    counts([2, 1, 0, 0]);
    world.node.sh(GIVE_BACK);
    keeper.line("redirect installed");
    counts([2, 1, 0, 0]);
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
    assert!(check.stdout.contains("pods may be OPEN by these") && !check.stdout.contains("still close"), "{check:?}");
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

/// Standard output is a full disk, or a pipe whose reader has left.
fn output_that_cannot_be_written_changes_nothing_else() {
    let world = World::new();
    let full = || OpenOptions::new().write(true).open("/dev/full").expect("Linux has it").into();
    let left = || std::io::pipe().map(|(_, writer)| writer.into()).expect("a pipe");
    let run = |stdout: Stdio, command: &str| {
        let mut binary = world.node.command(BINARY);
        // Without variables of the tests, of which the log would warn.
        binary.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
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
