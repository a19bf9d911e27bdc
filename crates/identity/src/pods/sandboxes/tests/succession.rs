//! Which process of a pod is its anchor, and which is not, even after the anchor has ended.

use super::super::super::scanner::BUDGET;
use super::*;

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

#[test]
fn of_a_new_process_of_a_settled_pod_only_the_group_is_read() {
    let (proc, sandboxes) = with_pod();
    proc.of_pod(21, 1500, A, "claimed");
    proc.hide("21/stat");
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
