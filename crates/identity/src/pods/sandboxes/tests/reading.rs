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

#[test]
fn what_is_forgotten_takes_no_memory() {
    let (proc, sandboxes) = with_pod();
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
