use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::symlink;

use rustix::param::clock_ticks_per_second;
use tokio::time::advance;

use super::super::scanner::BUDGET;
use super::fake_proc::FakeProc;
use super::fake_proc::stat;
use super::*;
use base::clock::suspend;

const A: &str = "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f";
const B: &str = "11111111-2222-3333-4444-555555555555";

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).expect("a UID")
}

/// With the network `a`, and the network `claimed`, to which a process of a pod may have gone.
fn node() -> FakeProc {
    let proc = FakeProc::new();
    proc.network("a", &["10.8.0.5"]);
    proc.network("claimed", &["10.8.0.99"]);
    proc
}

/// Opens it, and scans once.
fn scanned(proc: &FakeProc) -> Sandboxes {
    let sandboxes = proc.open();
    sandboxes.scan();
    sandboxes
}

/// A process of a pod whose anchor has ended does not become the anchor, however often it is read.
fn never_succeeds(proc: &FakeProc, sandboxes: &Sandboxes, pid: u32) {
    for _ in 0..3 {
        assert_eq!(sandboxes.scan().sandboxes, 0);
        proc.renew(pid);
    }
}

/// The pod has the address of its anchor, and not that of the network `claimed`.
fn only_the_anchor_holds(sandboxes: &Sandboxes) {
    assert_eq!(holders(sandboxes, "10.8.0.5"), [uid(A)]);
    assert!(holders(sandboxes, "10.8.0.99").is_empty());
}

/// The pods that have this address.
fn holders(sandboxes: &Sandboxes, addr: &str) -> Vec<PodUid> {
    let holders = sandboxes.holders(addr.parse().expect("an address")).expect("all can be read");
    let mut holders: Vec<_> = holders.iter().map(|sandbox| sandbox.uid).collect();
    holders.sort_unstable();
    holders
}

fn recent_holders(sandboxes: &Sandboxes, addr: &str) -> Vec<PodUid> {
    let holders = sandboxes.recent_holders(addr.parse().expect("an address"));
    let mut holders: Vec<_> = holders.iter().map(|sandbox| sandbox.uid).collect();
    holders.sort_unstable();
    holders
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
fn an_older_process_of_the_runtime_in_the_pods_group_is_not_its_sandbox() {
    let proc = node();
    // CRI-O's conmon of the sandbox, if its group is that of the pod.
    let slice = format!("/kubepods.slice/kubepods-pod{}.slice", A.replace('-', "_"));
    proc.process(19, 1230, &format!("{slice}/crio-conmon-1.scope"), "node");
    proc.process(20, 1234, &format!("{slice}/crio-1.scope"), "a");
    proc.process(21, 1240, &format!("{slice}/crio-conmon-2.scope"), "node");
    let sandboxes = scanned(&proc);
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(A)]);
    assert!(holders(&sandboxes, "10.128.0.2").is_empty());
    proc.end(20);
    assert!(!sandboxes.is_alive(uid(A)), "conmon lives on");
    sandboxes.scan();
    assert!(holders(&sandboxes, "10.8.0.5").is_empty());
}

#[test]
fn a_dead_sandbox_has_nothing_at_once_even_if_its_id_and_address_are_used_again() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = scanned(&proc);
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
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = scanned(&proc);
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

#[test]
fn a_process_with_a_network_of_its_own_holds_nothing() {
    let proc = node();
    proc.of_pod(30, 1000, A, "a");
    // The lower ID is the younger process: IDs wrap around.
    proc.of_pod(20, 1500, A, "claimed");
    let sandboxes = proc.open();
    for _ in 0..2 {
        sandboxes.scan();
        only_the_anchor_holds(&sandboxes);
        proc.renew(20);
    }
}

#[test]
fn who_was_seen_beside_the_anchor_does_not_succeed_it() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    proc.of_pod(21, 1500, A, "claimed");
    let sandboxes = scanned(&proc);
    proc.end(20);
    never_succeeds(&proc, &sandboxes, 21);
    // The kubelet makes a new sandbox for the same pod.
    proc.of_pod(22, 2000, A, "a");
    sandboxes.scan();
    only_the_anchor_holds(&sandboxes);
}

#[test]
fn a_forerunner_of_pause_does_not_bar_it() {
    let proc = node();
    let now = just_now();
    proc.of_pod(20, now, A, "a");
    proc.of_pod(21, now + 1, A, "a");
    let sandboxes = scanned(&proc);
    proc.end(20);
    assert!(!sandboxes.is_alive(uid(A)));
    sandboxes.scan();
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(A)]);
    assert_eq!(sandboxes.scan().new, 0);
}

#[test]
fn who_could_not_be_read_for_a_while_is_not_forgiven() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    proc.of_pod(21, 1500, A, "a");
    let sandboxes = scanned(&proc);
    proc.end(20);
    proc.renew(21);
    let text = proc.hide("21/cgroup");
    assert_eq!(sandboxes.scan().unreadable, 1);
    proc.show("21/cgroup", &text);
    proc.renew(21);
    assert_eq!(sandboxes.scan().sandboxes, 0);
}

#[test]
fn who_has_a_network_of_its_own_does_not_succeed_even_a_young_anchor() {
    let proc = node();
    let now = just_now();
    proc.of_pod(20, now, A, "a");
    proc.of_pod(21, now + 1, A, "claimed");
    let sandboxes = scanned(&proc);
    proc.end(20);
    never_succeeds(&proc, &sandboxes, 21);
}

#[test]
fn an_older_process_takes_over() {
    let proc = node();
    // Both began while the first scan listed processes, and it had passed the ID of the older one.
    let now = just_now();
    proc.of_pod(21, now + 1, A, "claimed");
    let sandboxes = scanned(&proc);
    proc.of_pod(20, now, A, "a");
    sandboxes.scan();
    only_the_anchor_holds(&sandboxes);
}

/// A pod's process whose files other than `cgroup` cannot be read.
fn unreadable_but_for_its_pod(proc: &FakeProc, pid: u32, pod: &str) {
    proc.of_pod(pid, 1500, pod, "claimed");
    proc.hide(&format!("{pid}/stat"));
}

#[test]
fn of_a_new_process_of_a_settled_pod_only_the_group_is_read() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = scanned(&proc);
    unreadable_but_for_its_pod(&proc, 21, A);
    assert_eq!(sandboxes.scan(), found(3, 1, 1, 0));
    assert_eq!(sandboxes.scan(), found(3, 0, 1, 0), "it is not read again");
    // Nor does it succeed the anchor, once it can be read.
    proc.show("21/stat", &stat(21, b"sh", 'S', 1500));
    proc.end(20);
    never_succeeds(&proc, &sandboxes, 21);
}

#[test]
fn who_could_not_be_read_at_first_may_be_older_than_a_settled_anchor() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    proc.of_pod(21, 1500, A, "claimed");
    let text = proc.hide("20/cgroup");
    let sandboxes = proc.open();
    for _ in 0..3 {
        assert_eq!(sandboxes.scan().unreadable, 1);
    }
    proc.show("20/cgroup", &text);
    sandboxes.scan();
    only_the_anchor_holds(&sandboxes);
}

#[test]
fn a_pod_with_more_processes_than_a_scan_reads_is_unknown_until_all_are_read() {
    let proc = node();
    proc.network("b", &["10.8.0.6"]);
    let pids = 20..20 + u32::try_from(2 * BUDGET).expect("few");
    for pid in pids.clone() {
        proc.of_pod(pid, 2000 + u64::from(pid), A, "claimed");
    }
    // The oldest is read last, by whatever order the directory has: there is one for each.
    proc.of_pod(9, 1000, A, "a");
    proc.of_pod(10, 1000, B, "b");
    let sandboxes = proc.open();
    for _ in 0..2 {
        assert_eq!(sandboxes.scan().sandboxes, 1);
        assert!(holders(&sandboxes, "10.8.0.99").is_empty(), "a process that is not the oldest claims an address");
        assert_eq!(holders(&sandboxes, "10.8.0.6"), [uid(B)], "another pod pays for it");
    }
    assert_eq!(sandboxes.scan(), found(pids.len() + 3, 0, 2, 0));
    only_the_anchor_holds(&sandboxes);
}

#[test]
fn a_pod_that_is_known_stays_so_however_many_processes_it_starts() {
    let proc = node();
    let now = just_now();
    proc.of_pod(9, now, A, "a");
    let sandboxes = scanned(&proc);
    for pid in 20..20 + u32::try_from(2 * BUDGET).expect("few") {
        proc.of_pod(pid, now + 1, A, "claimed");
    }
    for new in [2 * BUDGET, 0] {
        assert_eq!(sandboxes.scan(), found(2 * BUDGET + 2, new, 1, 0));
        assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(A)]);
    }
    proc.end(9);
    assert_eq!(sandboxes.scan().sandboxes, 0, "none of them succeeds");
}

#[test]
fn a_process_that_nobody_waits_for_is_read_once() {
    let proc = FakeProc::new();
    proc.process(20, 1000, "/system.slice/cron.service", "node");
    fs::write(proc.dir.join("20/stat"), stat(20, b"sh", 'Z', 1000)).expect("a temporary file");
    let sandboxes = proc.open();
    assert_eq!(sandboxes.scan().new, 2);
    assert_eq!(sandboxes.scan().new, 0);
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
fn a_process_that_enters_its_pod_late_is_found() {
    let proc = node();
    proc.process(20, just_now(), "/system.slice/containerd.service", "node");
    let sandboxes = proc.open();
    assert_eq!(sandboxes.scan().sandboxes, 0);
    proc.move_to(20, &format!("/kubepods/pod{A}"));
    assert_eq!(sandboxes.scan().sandboxes, 0, "it is still in the network of the node");
    proc.enter(20, "a");
    assert_eq!(sandboxes.scan(), found(2, 0, 1, 0));
    assert_eq!(holders(&sandboxes, "10.8.0.5"), [uid(A)]);
}

#[test]
fn only_new_and_young_processes_are_read() {
    let proc = node();
    proc.process(20, 1000, "/system.slice/cron.service", "a");
    let sandboxes = scanned(&proc);
    proc.move_to(20, &format!("/kubepods/pod{A}"));
    assert_eq!(sandboxes.scan(), found(2, 0, 0, 0));
    proc.renew(20);
    assert_eq!(sandboxes.scan(), found(2, 1, 1, 0));
}

#[test]
fn what_cannot_be_read_is_counted_and_tried_again() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let text = proc.hide("20/cgroup");
    let sandboxes = proc.open();
    assert_eq!(sandboxes.scan(), found(2, 2, 0, 1));
    proc.show("20/cgroup", &text);
    assert_eq!(sandboxes.scan(), found(2, 1, 1, 0));
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

#[test]
fn what_is_forgotten_takes_no_memory() {
    let proc = node();
    proc.of_pod(20, 1000, A, "a");
    let sandboxes = scanned(&proc);
    proc.end(20);
    sandboxes.scan();
    assert_eq!(sandboxes.scanner.lock().size(), 1);
}

#[test]
fn a_directory_that_is_not_the_nodes_proc_is_refused_with_a_reason() {
    let proc = FakeProc::new();
    let refusal = || Sandboxes::open(&proc.dir).expect_err("not usable").to_string();

    proc.move_to(1, &format!("/kubepods/pod{A}/0123"));
    assert!(refusal().contains("of a container"), "{}", refusal());
    proc.move_to(1, "/");
    fs::remove_file(proc.dir.join("self")).expect("it is there");
    symlink("1", proc.dir.join("self")).expect("a free name");
    assert!(refusal().contains("of a container"), "{}", refusal());

    fs::remove_file(proc.dir.join("1/net")).expect("it is there");
    assert!(refusal().contains("1/net/fib_trie cannot be read"), "{}", refusal());
    proc.end(1);
    assert!(refusal().contains("hidepid"), "{}", refusal());
    fs::remove_file(proc.dir.join("self")).expect("it is there");
    assert!(refusal().contains("is not a /proc"), "{}", refusal());
    fs::remove_dir_all(&proc.dir).expect("it is there");
    assert!(refusal().contains("cannot be read: No such file"), "{}", refusal());
}

/// `/proc` of the machine that runs the test.
#[test]
fn the_real_proc_can_be_scanned() {
    let Ok(sandboxes) = Sandboxes::open(Path::new("/proc")) else {
        return;
    };
    let first = sandboxes.scan();
    assert!(first.processes > 1 && first.new > 0, "{first:?}");
    assert!(sandboxes.scan().new <= first.new);
}
