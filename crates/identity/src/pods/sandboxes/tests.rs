//! Which addresses a sandbox has, and how long.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::Ipv6Addr;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::ioctl_fionread;
use rustix::param::clock_ticks_per_second;
use tokio::time::advance;

use super::fake_proc::FakeProc;
use super::fake_proc::stat;
use super::table::{MAX_LOST, REREAD};
use super::*;
use crate::pods::scanner::SETTLED;
use base::clock::suspend;

mod reading;
mod succession;

pub(super) const A: &str = "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f";
pub(super) const B: &str = "11111111-2222-3333-4444-555555555555";

pub(super) fn uid(text: &str) -> PodUid {
    PodUid::parse(text).expect("a UID")
}

/// With the network `a`, and the network `claimed`, to which a process of a pod may have gone.
fn node() -> FakeProc {
    let proc = FakeProc::new();
    proc.network("a", &["10.8.0.5"]);
    proc.network("claimed", &["10.8.0.99"]);
    proc
}

#[test]
fn sandboxes_are_counted_without_reading_a_network() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    proc.of_pod(30, 1000, B, "claimed");
    // As much as is read of a file: without it, a reader would wait for ever.
    let unread = vec![0; 64 << 10];
    let pipes = ["fib_triestat", "fib_trie"].map(|file| {
        let path = proc.network_dir("a").join(file);
        fs::remove_file(&path).expect("it is there");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a free name");
        let mut pipe = OpenOptions::new().read(true).write(true).open(&path).expect("a pipe");
        pipe.write_all(&unread).expect("a pipe has room for it");
        pipe
    });
    let counted = Sandboxes::count_at(proc.dir()).expect("a /proc");
    assert_eq!((counted.processes, counted.sandboxes, counted.unreadable), (3, 2, 0));
    for pipe in pipes {
        assert_eq!(ioctl_fionread(&pipe).ok(), Some(unread.len() as u64), "the network was read");
    }
}

/// Opens it, and scans once.
fn scanned(proc: &FakeProc) -> Sandboxes {
    let sandboxes = proc.open();
    sandboxes.scan();
    sandboxes
}

/// A node whose pod [`A`] has process 20 as its settled anchor, after a scan.
fn with_pod() -> (FakeProc, Sandboxes) {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = scanned(&proc);
    (proc, sandboxes)
}

/// The pods that have this address.
fn holders(sandboxes: &Sandboxes, addr: &str) -> Vec<PodUid> {
    uids(&sandboxes.holders(addr.parse().expect("an address")).expect("all can be read"))
}

fn recent_holders(sandboxes: &Sandboxes, addr: &str) -> Vec<PodUid> {
    uids(&sandboxes.recent_holders(addr.parse().expect("an address")))
}

fn uids(sandboxes: &[Sandbox]) -> Vec<PodUid> {
    let mut uids: Vec<_> = sandboxes.iter().map(|sandbox| sandbox.uid).collect();
    uids.sort_unstable();
    uids
}

/// A tick at which a process is so young that its sandbox may still be in the making.
fn just_now() -> u64 {
    BootTime::now().as_nanos() / (1_000_000_000 / clock_ticks_per_second())
}

fn found(processes: usize, new: usize, sandboxes: usize, unreadable: usize) -> Scanned {
    Scanned { processes, new, sandboxes, unreadable, cost: Duration::ZERO }
}

#[test]
fn a_sandbox_has_its_addresses_of_both_families() {
    let proc = FakeProc::new();
    proc.network("a", &["10.8.0.5", "fd00:b::5"]);
    proc.of_pod(20, 1234, A, "a");
    proc.of_pod(21, 1240, A, "a");
    let sandboxes = proc.open();
    assert_eq!(sandboxes.count(), 0);
    assert_eq!(sandboxes.scan(), found(3, 3, 1, 0));
    for addr in ["10.8.0.5", "::ffff:10.8.0.5", "fd00:b::5"] {
        assert_eq!(holders(&sandboxes, addr), [uid(A)], "{addr}");
    }
    let began = BootTime::from_nanos(1234 * 1_000_000_000 / clock_ticks_per_second());
    let holder = sandboxes.holders(IpAddr::from([10, 8, 0, 5])).expect("all can be read");
    assert_eq!(holder.as_slice(), [Sandbox { uid: uid(A), began }]);
    for addr in ["127.0.0.1", "::1", "fe80::1", "10.128.0.2", "10.8.0.6"] {
        assert!(holders(&sandboxes, addr).is_empty(), "{addr}");
    }
    assert!(sandboxes.is_alive(uid(A)) && !sandboxes.is_alive(uid(B)));
}

#[test]
fn a_dead_sandbox_has_nothing_at_once_even_if_its_id_and_address_are_used_again() {
    let (proc, sandboxes) = with_pod();
    proc.end(20);
    proc.of_pod(20, 2000, B, "a");
    assert!(holders(&sandboxes, "10.8.0.5").is_empty());
    assert_eq!(sandboxes.count(), 0, "it is forgotten");
    assert!(!sandboxes.is_alive(uid(A)));
    assert_eq!(sandboxes.scan().new, 1, "another process with the same ID is a new one");
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(B)]);
    proc.end(20);
    assert!(!sandboxes.is_alive(uid(B)));
    assert_eq!(sandboxes.count(), 0);
}

#[test]
fn a_process_that_nobody_waits_for_is_dead() {
    let (proc, sandboxes) = with_pod();
    fs::write(proc.dir.join("20/stat"), stat(20, b"pause", 'Z', 1000)).expect("a temporary file");
    assert!(!sandboxes.is_alive(uid(A)));
    proc.renew(20);
    assert_eq!(sandboxes.scan().sandboxes, 0);
}

#[tokio::test(start_paused = true)]
async fn the_addresses_of_a_sandbox_are_followed_at_once_until_they_settle_and_each_second_then() {
    let proc = FakeProc::new();
    proc.network("a", &[]);
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = proc.open();
    let follows = |addr: &str| {
        proc.network("a", &[addr]);
        sandboxes.scan();
        holders(&sandboxes, addr) == [uid(A)]
    };
    advance(SETTLED).await;
    sandboxes.scan();
    assert!(follows("10.8.0.5"), "its network was made late");
    assert!(follows("10.8.0.6"), "it changes");
    assert!(holders(&sandboxes, "10.8.0.5").is_empty() && sandboxes.is_alive(uid(A)));
    advance(SETTLED).await;
    sandboxes.scan();
    assert!(!follows("10.8.0.7"), "it has settled");
    assert!(holders(&sandboxes, "10.8.0.6").is_empty(), "what was read before is not believed");
    advance(REREAD).await;
    assert!(follows("10.8.0.7"));
}

/// The anchor of a pod that was seen at these ages, with an address or without.
fn anchor_seen(seen: &[(u64, bool)]) -> Anchor {
    let proc = FakeProc::new();
    proc.network("a", &[]);
    proc.of_pod(20, just_now(), A, "a");
    let sandboxes = proc.open();
    let mut age = 0;
    for (at, has_address) in seen {
        suspend(Duration::from_secs(at - age));
        age = *at;
        let addresses: &[&str] = if *has_address { &["10.8.0.5"] } else { &[] };
        proc.network("a", addresses);
        sandboxes.scan();
    }
    sandboxes.anchor(uid(A))
}

#[test]
fn who_had_addresses_only_at_the_beginning_is_bare_and_who_lost_them_later_is_not() {
    for (seen, is_bare) in [
        (&[(1, false)][..], true),
        // gVisor, seen between the network plugin and its start.
        (&[(1, true), (2, false)], true),
        (&[(1, true), (40, false), (80, false)], true),
        (&[(1, true)], false),
        // The runtime takes the addresses of a pod that ends.
        (&[(1, true), (11, true), (12, false)], false),
        (&[(300, true), (301, false), (302, false)], false),
        // No scan saw when it lost them.
        (&[(1, true), (300, false), (301, false)], false),
        // A pod gives itself one.
        (&[(1, false), (20, true)], false),
    ] {
        let anchor = anchor_seen(seen);
        assert_eq!(matches!(anchor, Anchor::Bare(_)), is_bare, "{seen:?}: {anchor:?}");
    }
}

#[test]
fn who_cannot_be_read_is_not_bare_until_it_is_read_again() {
    let proc = FakeProc::new();
    proc.network("a", &[]);
    proc.of_pod(20, just_now(), A, "a");
    let sandboxes = scanned(&proc);
    suspend(Duration::from_secs(100));
    let text = proc.hide("networks/a/fib_trie");
    sandboxes.scan();
    assert!(matches!(sandboxes.anchor(uid(A)), Anchor::Networked(_)));
    proc.show("networks/a/fib_trie", &text);
    sandboxes.scan();
    assert!(matches!(sandboxes.anchor(uid(A)), Anchor::Bare(_)));
}

#[test]
fn two_pods_with_one_address_are_both_named() {
    let proc = node();
    proc.network("b", &["10.8.0.6", "10.8.0.5"]);
    proc.of_pod(20, 1000, A, "a");
    proc.of_pod(30, 2000, B, "b");
    let sandboxes = scanned(&proc);
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(B), uid(A)]);
    proc.end(20);
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(B)]);
}

#[test]
fn who_had_an_address_is_remembered_for_five_minutes() {
    let proc = node();
    proc.network("b", &["10.8.0.6", "10.8.0.7"]);
    proc.of_pod(20, just_now(), A, "a");
    proc.of_pod(30, just_now(), B, "b");
    let sandboxes = scanned(&proc);
    let all = || ["10.8.0.5", "10.8.0.6", "10.8.0.7"].map(|addr| recent_holders(&sandboxes, addr));
    let both = [vec![uid(A)], vec![uid(B)], vec![uid(B)]];
    assert_eq!(all(), both);
    // One is found to have ended by a scan, and the other one has lost an address.
    proc.end(20);
    proc.network("b", &["10.8.0.7"]);
    sandboxes.scan();
    assert_eq!(all(), both);
    // One is found to have ended by a request.
    proc.end(30);
    assert!(!sandboxes.is_alive(uid(B)) && sandboxes.count() == 0);
    assert_eq!(all(), both);
    suspend(REMEMBERED / 2);
    sandboxes.scan();
    assert_eq!(all(), both);
    suspend(REMEMBERED);
    sandboxes.scan();
    assert_eq!(all(), [const { vec![] }; 3]);
}

#[test]
fn the_number_of_lost_addresses_that_are_remembered_is_bounded() {
    let proc = FakeProc::new();
    proc.network("a", &[]);
    proc.of_pod(20, just_now(), A, "a");
    let sandboxes = proc.open();
    for number in 0..200 {
        proc.network("a", &[&format!("10.8.1.{number}"), "10.8.0.5"]);
        sandboxes.scan();
    }
    assert_eq!(sandboxes.table.lock().lost[&uid(A)].len(), MAX_LOST);
    proc.end(20);
    sandboxes.scan();
    assert_eq!(sandboxes.table.lock().lost[&uid(A)].len(), MAX_LOST);
    assert_eq!(recent_holders(&sandboxes, "10.8.0.5"), [uid(A)]);
}

#[test]
fn if_one_of_two_cannot_be_read_nobody_is_named() {
    let proc = FakeProc::new();
    for (number, (pid, pod)) in [(20, A), (30, B)].into_iter().enumerate() {
        let network = format!("n{number}");
        proc.network(&network, &["10.8.0.5"]);
        proc.of_pod(pid, 1000, pod, &network);
    }
    let sandboxes = scanned(&proc);
    proc.hide("networks/n1/fib_trie");
    assert_eq!(sandboxes.holders(IpAddr::from([10, 8, 0, 5])), None);
    assert_eq!(sandboxes.count(), 2, "both are alive");
}

#[test]
fn processes_in_the_nodes_network_are_no_sandbox() {
    let proc = node();
    // A pod with hostNetwork, and a monitor of the runtime that is older than pause.
    proc.of_pod(20, 1000, A, "node");
    proc.of_pod(30, 1000, B, "node");
    proc.of_pod(31, 1001, B, "a");
    let sandboxes = proc.open();
    assert_eq!(sandboxes.scan().sandboxes, 1);
    assert!(holders(&sandboxes, "10.128.0.2").is_empty());
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(B)]);
}

#[test]
fn the_nodes_addresses_are_its_own() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = proc.open();
    let is_of_node = |addr: &str| sandboxes.is_of_node(addr.parse().expect("an address"));
    for addr in ["127.0.0.1", "127.9.9.9", "::1", "10.128.0.2", "::ffff:10.128.0.2", "fd00:a::2"] {
        assert!(is_of_node(addr), "{addr}");
    }
    assert!(!is_of_node("10.8.0.5"));
    proc.network("node", &["10.128.0.3"]);
    assert!(!is_of_node("10.128.0.2"), "an address that the node lost may be a pod's");
    sandboxes.scan();
    assert!(is_of_node("10.128.0.3"));
}

#[test]
fn the_number_of_addresses_is_bounded() {
    let proc = FakeProc::new();
    let many: Vec<String> = (0..200).map(|number| Ipv6Addr::from(number + (0xfd00 << 112)).to_string()).collect();
    let mut addresses = vec!["10.8.0.5"];
    addresses.extend(many.iter().map(String::as_str));
    proc.network("a", &addresses);
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = scanned(&proc);
    assert_eq!(sandboxes.table.lock().sandboxes[&uid(A)].addresses.len(), MAX_ADDRESSES);
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(A)]);
}
