//! What a scan reads, how often, and what it needs.

use std::os::unix::fs::symlink;

use super::*;

#[test]
fn a_process_that_nobody_waits_for_is_read_once() {
    let proc = FakeProc::new();
    proc.process(20, 1000, "/system.slice/cron.service", "node");
    fs::write(proc.dir.join("20/stat"), stat(20, b"sh", 'Z', 1000)).expect("a temporary file");
    let sandboxes = proc.open();
    assert_eq!(sandboxes.scan().new, 2);
    assert_eq!(sandboxes.scan().new, 0);
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

/// More routes than are read of a pod, before its addresses.
fn add_routes(proc: &FakeProc, network: &str) {
    let file = proc.network_dir(network).join("fib_trie");
    let text = fs::read_to_string(&file).expect("it is there");
    let routes = "        /24 link UNICAST\n".repeat(4000);
    fs::write(file, text.replace("Main:\n", &format!("Main:\n     |-- 10.77.0.0\n{routes}")))
        .expect("a temporary file");
}

/// Whether the network is not read any more, also if it is small again.
fn is_closed(proc: &FakeProc, sandboxes: &Sandboxes) -> bool {
    let last_read = || sandboxes.table.lock().sandboxes[&uid(A)].read;
    proc.network("a", &["10.8.0.5", "10.8.0.6"]);
    let before = last_read();
    suspend(REREAD);
    sandboxes.scan();
    let is_read = last_read() > before;
    let (own, of_neighbour) = (holders(sandboxes, "10.8.0.5"), holders(sandboxes, "10.8.0.6"));
    // The API server's report does not count.
    !is_read && own.is_empty() && of_neighbour == [uid(B)] && matches!(sandboxes.anchor(uid(A)), Anchor::Networked(_))
}

#[tokio::test(start_paused = true)]
async fn a_network_with_routes_without_end_is_read_no_more() {
    for sees_it_first in ["a scan", "a connection"] {
        let (proc, sandboxes) = with_pod();
        proc.network("b", &["10.8.0.6"]);
        proc.of_pod(30, 1000, B, "b");
        proc.network("a", &["10.8.0.5", "10.8.0.6"]);
        suspend(REREAD);
        sandboxes.scan();
        assert_eq!(holders(&sandboxes, "10.8.0.6"), [uid(B), uid(A)], "it claims its neighbour's address");
        add_routes(&proc, "a");
        if sees_it_first == "a scan" {
            suspend(REREAD);
            sandboxes.scan();
        }
        assert_eq!(holders(&sandboxes, "10.8.0.6"), [uid(B)], "{sees_it_first}");
        assert_eq!(recent_holders(&sandboxes, "10.8.0.5"), [uid(A)], "its address does not fall back: {sees_it_first}");
        assert!(is_closed(&proc, &sandboxes), "{sees_it_first}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_routes_of_a_network_that_was_not_seen_for_a_while_are_counted_before_it_is_read() {
    let proc = node();
    proc.network("b", &["10.8.0.6"]);
    proc.of_pod(30, 1000, B, "b");
    proc.of_pod(20, 1000, A, "a");
    fs::write(proc.network_dir("a").join("fib_triestat"), fake_proc::triestat(2100)).expect("a temporary file");
    // Reading it would be an end by OOM.
    let text = proc.hide("networks/a/fib_trie");
    let sandboxes = scanned(&proc);
    proc.show("networks/a/fib_trie", &text);
    assert!(is_closed(&proc, &sandboxes));
}

#[test]
fn what_is_forgotten_takes_no_memory() {
    let (proc, sandboxes) = with_pod();
    proc.end(20);
    sandboxes.scan();
    assert_eq!(sandboxes.scanner.lock().size(), 1);
}

#[test]
fn control_groups_are_pods_only_where_the_proxys_own_is() {
    let proc = node();
    proc.network("b", &["10.8.0.6"]);
    proc.process(77, 1000, "/kubelet/kubepods/pod22222222-3333-4444-5555-666666666666/0123", "node");
    proc.process(20, 1000, &format!("/docker/0123/kubepods/pod{A}/0123"), "a");
    proc.process(21, 1000, &format!("/kubelet/kubepods/pod{B}/0123"), "b");
    let sandboxes = scanned(&proc);
    assert_eq!(["10.8.0.5", "10.8.0.6"].map(|addr| holders(&sandboxes, addr)), [vec![], vec![uid(B)]]);
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
