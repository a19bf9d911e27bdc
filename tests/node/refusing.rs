//! A tool that refuses the redirect's rules: pods are closed by what it accepts, or by the other tool.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redirect::SIDECAR_UID;

use crate::closed::{all_is_closed, fails};
use crate::namespace::Namespace;
use crate::process::{BINARY, Ended, Process};
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, World, eventually, is_open, is_protected, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_tool_that_refuses_a_rule_closes_pods,
    a_tool_that_fails_now_is_not_passed_over,
    the_other_tool_closes_pods,
    a_sidecar_that_cannot_redirect_closes_its_pod,
    where_nothing_can_be_installed_it_says_that_pods_are_open,
    what_a_tool_keeps_the_others_do_not,
];

/// A folder with an `nft`, or another tool, that refuses rules with any of these words.
pub struct Picky(PathBuf);

impl Picky {
    fn new(words: &[&str]) -> Self {
        Self::of("nft", words)
    }

    pub fn of(program: &str, words: &[&str]) -> Self {
        Self::except_for(program, words, "nothing")
    }

    /// As [`Picky::of`], but with this argument it refuses nothing.
    pub fn except_for(program: &str, words: &[&str], argument: &str) -> Self {
        // One for each, as tests that run at once may refuse the same.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let (id, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(format!("picky-{id}-{number}"));
        fs::create_dir_all(&folder).expect("a folder");
        let patterns: Vec<String> = words.iter().map(|word| format!("*'{word}'*")).collect();
        let script = format!(
            "#!/bin/sh\ninput=$(cat)\n\
             case \"$* $input\" in *{argument}*) ;; {}) echo again >>$0.refused; echo ${{SAID:-not in this kernel}} >&2; exit 1 ;; esac\n\
             printf '%s\\n' \"$input\" | {} \"$@\"\n",
            patterns.join("|"),
            real(program)
        );
        let tool = folder.join(program);
        fs::write(&tool, script).expect("a script");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("it can be run");
        Self(folder)
    }

    /// Number of rules that it has refused.
    fn refusals(&self) -> usize {
        fs::read_to_string(self.0.join("nft.refused")).unwrap_or_default().lines().count()
    }

    /// The assignment before a command that puts this tool first on its path.
    pub fn first(&self) -> String {
        format!("PATH={}:$PATH", self.0.display())
    }

    /// The same, with no other tool on the path.
    fn alone(&self) -> String {
        for tool in ["sh", "cat"] {
            let link = self.0.join(tool);
            if !link.exists() {
                symlink(Path::new("/bin").join(tool), link).expect("a link");
            }
        }
        format!("PATH={}", self.0.display())
    }
}

impl Drop for Picky {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn real(program: &str) -> String {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().expect("a shell");
    String::from_utf8(found.stdout).expect("text").trim().to_owned()
}

/// Runs `redirect` with these words, in a shell, after this text.
pub fn after(place: &Namespace, before: &str, words: &str) -> Ended {
    Ended::of(place.command("sh").args(["-c", &format!("{before} {BINARY} redirect {words}")]))
}

/// A refusal of the redirect itself, and also of the guard, while rules of other settings are in place.
fn a_tool_that_refuses_a_rule_closes_pods() {
    for refused in [&["dnat ip to"][..], &["dnat ip to", "ct status"]] {
        let world = World::new();
        let picky = Picky::new(refused);
        succeeds(&redirect(&world.node, "install"));
        succeeds(&after(&world.node, &picky.first(), "install"));
        assert!(picky.refusals() > 0, "it was installed again");
        assert_eq!(redirect(&world.node, "check").code, Some(0), "what stands is closed");
        succeeds(&redirect(&world.node, "install --to 169.254.169.252:1988"));
        fails(&after(&world.node, &picky.first(), "install"), &["not in this kernel", "pods are closed: nft"]);
        all_is_closed(&world.pods[0]);
        assert!(!World::state_of(&world.node).contains(":1988"), "rules of other settings stand");
        fails(&after(&world.node, &picky.first(), "check"), &["pods are closed", "not in this kernel"]);
        succeeds(&redirect(&world.node, "remove"));
        is_open(&world.pods[0], SERVER);
    }
}

/// The rules of the other one would be added to those in force.
fn a_tool_that_fails_now_is_not_passed_over() {
    let world = World::new();
    let picky = Picky::new(&["list tables"]);
    let tired = format!("SAID='No buffer space available' {}", picky.first());
    let failed = ["nft is installed, but fails now", "pods are closed: nft"];
    fails(&after(&world.node, &tired, "install"), &failed);
    fails(&after(&world.node, &tired, "check"), &failed[..1]);
    fails(&after(&world.node, &tired, "remove"), &failed[..1]);
    all_is_closed(&world.pods[0]);

    // One that has worked, whatever it says later.
    let folder = picky.0.join("later");
    fs::create_dir(&folder).expect("a folder");
    symlink(real("nft"), folder.join("nft")).expect("a link");
    let line = format!("exec env PATH={}:$PATH {BINARY} redirect install --keep", folder.display());
    let keeper = Process::spawn(world.node.command("sh").args(["-c", &line]));
    keeper.line("redirect installed");
    fs::remove_file(folder.join("nft")).expect("it is there");
    symlink(picky.0.join("nft"), folder.join("nft")).expect("a link");
    keeper.line("could not be checked and was installed again");
    assert!(!World::state_of(&world.node).contains("GCE-METADATA-PROXY"), "the other tool has rules, too");
    assert_eq!(redirect(&world.node, "check").code, Some(0));
}

fn the_other_tool_closes_pods() {
    let world = World::new();
    let picky = Picky::new(&["add table"]);
    fails(&after(&world.node, &picky.first(), "install"), &["not in this kernel", "pods are closed: iptables"]);
    all_is_closed(&world.pods[0]);
    fails(&after(&world.node, &picky.first(), "check"), &["pods are closed"]);
    succeeds(&redirect(&world.node, "install"));
    let _proxy = world.proxy(&[]);
    is_protected(&world.pods[0]);
    assert!(!World::state_of(&world.node).contains("GCE-METADATA-PROXY"), "rules of the other tool are left");
}

fn a_sidecar_that_cannot_redirect_closes_its_pod() {
    let world = World::new();
    let pod = &world.pods[0];
    let picky = Picky::new(&["dnat ip to"]);
    let flags = format!("--mode sidecar --proxy-uid {SIDECAR_UID} --to 127.0.0.1:8988");
    fails(&after(pod, &picky.first(), &format!("install {flags}")), &["not in this kernel", "pods are closed"]);
    all_is_closed(pod);
    is_open(&world.pods[1], SERVER);
    let as_proxy =
        format!("setpriv --reuid {SIDECAR_UID} --clear-groups curl -s -o /dev/null -w %{{http_code}} {SERVER}");
    assert_eq!(pod.sh(&as_proxy), "200", "the proxy's own requests");
    fails(&after(pod, &picky.first(), &format!("check {flags}")), &["pods are closed", "not in this kernel"]);
    succeeds(&redirect(pod, "remove"));
    is_open(pod, SERVER);
}

fn where_nothing_can_be_installed_it_says_that_pods_are_open() {
    let world = World::new();
    let picky = Picky::new(&["add table"]);
    fails(&after(&world.node, &picky.alone(), "install"), &["Pods are OPEN", "not in this kernel"]);
    is_open(&world.pods[0], SERVER);
    let nowhere = "PATH=/nonexistent";
    fails(&after(&world.node, nowhere, "install"), &["Pods are OPEN", "neither nft nor iptables-restore"]);
    let mut keeper = world.node.command("sh");
    let keeper =
        Process::spawn(keeper.args(["-c", &format!("exec env {} {BINARY} redirect install --keep", picky.alone())]));
    keeper.line("Pods are OPEN");
    let tried = picky.refusals();
    eventually("it has tried twice more", || picky.refusals() >= tried + 8);
    assert_eq!(keeper.written(), Vec::<String>::new(), "the same is logged again");
    fs::remove_file(picky.0.join("nft")).expect("it is there");
    symlink(real("nft"), picky.0.join("nft")).expect("a link");
    keeper.line("redirect installed");
    assert_eq!(redirect(&world.node, "check").code, Some(0));
}

/// The rules of a tool or IP version that fails stay, and so do the addresses, where they may send pods. The others go.
fn what_a_tool_keeps_the_others_do_not() {
    const OF_IPTABLES: &str = "-A GCE-METADATA-PROXY-REDIRECT ";
    const OF_NFT: &str = "table inet gce_metadata_proxy";
    for (refusing, refused, kept, gone) in [
        ("nft", "delete table", OF_NFT, OF_IPTABLES),
        ("iptables-restore", "COMMIT", "-d 169.254.169.254/32 ", "-d fd20:ce::254/128 "),
    ] {
        let world = World::new();
        succeeds(&redirect(&world.node, "install --tool iptables"));
        if refusing == "nft" {
            // As an installation by the other tool leaves them that nothing removed.
            world.node.sh(&format!("{BINARY} redirect install --dry-run --tool nft | nft -f -"));
        }
        let before = World::state_of(&world.node);
        assert!(before.contains(kept) && before.contains(gone), "{before}");

        let picky = Picky::of(refusing, &[refused]);
        let failed = ["rules of a redirect may remain", "not in this kernel", "'redirect remove' again"];
        fails(&after(&world.node, &picky.first(), "remove"), &failed);
        let state = World::state_of(&world.node);
        assert!(state.contains(kept), "{refusing} removed it");
        assert!(!state.contains(gone), "{refusing} held up the others: {state}");
        assert!(state.contains("169.254.169.252/32") && state.contains("fd20:ce::252/128"), "{state}");

        succeeds(&redirect(&world.node, "remove"));
        let state = World::state_of(&world.node);
        for left in [OF_IPTABLES, OF_NFT, "169.254.169.252/32", "fd20:ce::252/128"] {
            assert!(!state.contains(left), "{left}: {state}");
        }
        is_open(&world.pods[0], SERVER);
    }
}
