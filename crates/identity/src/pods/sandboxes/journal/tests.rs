use std::fs::{self, OpenOptions};
use std::io::Write;
use std::mem;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::super::fake_proc::{FakeProc, triestat};
use super::super::tests::{A, B, uid};
use super::super::{Anchor, Sandboxes};
use super::*;
use base::clock::suspend;

/// A node with two pods. Its directory also keeps the journal.
fn node() -> FakeProc {
    let proc = FakeProc::new();
    for (pid, pod, network, addr) in [(20, A, "a", "10.8.0.5"), (30, B, "b", "10.8.0.6")] {
        proc.network(network, &[addr]);
        proc.of_pod(pid, 1000, pod, network);
    }
    proc
}

/// A process that starts on this node, after its first scan.
fn started(proc: &FakeProc) -> Sandboxes {
    let sandboxes = proc.open().kept_in(Some(proc.dir()));
    sandboxes.scan();
    sandboxes
}

/// A process starts, and ends while it reads the network of this pod.
fn ends_reading(proc: &FakeProc, pod: PodUid) {
    mem::forget(Journal::open(proc.dir()).reading(pod));
}

fn is_closed(journal: &Journal, pod: PodUid) -> bool {
    journal.why_closed(pod).is_some()
}

/// The pods that have the addresses of the two pods.
fn known(sandboxes: &Sandboxes) -> [Vec<PodUid>; 2] {
    [5, 6].map(|last| {
        let holders = sandboxes.holders(IpAddr::from([10, 8, 0, last])).expect("all can be read");
        holders.iter().map(|holder| holder.uid).collect()
    })
}

const BOTH: [&[&str]; 2] = [&[A], &[B]];

fn uids(texts: [&[&str]; 2]) -> [Vec<PodUid>; 2] {
    texts.map(|texts| texts.iter().map(|text| uid(text)).collect())
}

/// Scans, and calls `seen` while the scan reads this file of the network `a`.
fn while_read<T>(proc: &FakeProc, sandboxes: &Sandboxes, file: &str, seen: impl FnOnce() -> T) -> T {
    let path = proc.network_dir("a").join(file);
    let text = fs::read(&path).expect("it is there");
    fs::remove_file(&path).expect("it is there");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a free name");
    let seen = thread::scope(|scope| {
        scope.spawn(|| sandboxes.scan());
        // Waits for the reader, which waits for the text.
        let mut pipe = OpenOptions::new().write(true).open(&path).expect("a pipe");
        let seen = seen();
        pipe.write_all(&text).expect("the scan reads it");
        seen
    });
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, text).expect("a free name");
    seen
}

#[test]
fn a_network_that_ended_two_processes_is_closed_and_the_others_are_served() {
    let proc = node();
    for _ in 0..3 {
        ends_reading(&proc, uid(A));
        assert_eq!(known(&started(&proc)), uids(BOTH), "it was chance, since all are read now");
    }
    ends_reading(&proc, uid(A));
    ends_reading(&proc, uid(A));
    // Reading it would be an end by OOM: neither file is opened.
    for file in ["fib_triestat", "fib_trie"] {
        proc.hide(&format!("networks/a/{file}"));
    }
    for start in 0..3 {
        let sandboxes = started(&proc);
        assert_eq!(known(&sandboxes), uids([&[], &[B]]), "start {start}");
        assert!(sandboxes.table.lock().sandboxes[&uid(A)].is_closed);
        // The API server's report does not count, either.
        assert!(matches!(sandboxes.anchor(uid(A)), Anchor::Networked(_)));
    }
}

#[test]
fn marks_of_two_pods_close_neither() {
    let proc = node();
    ends_reading(&proc, uid(A));
    ends_reading(&proc, uid(B));
    assert_eq!(known(&started(&proc)), uids(BOTH));
}

#[test]
fn a_pod_is_marked_while_its_routes_are_counted_and_its_addresses_read() {
    for file in ["fib_triestat", "fib_trie"] {
        let proc = node();
        for ends in 1..=CLOSED_AFTER {
            let sandboxes = proc.open().kept_in(Some(proc.dir()));
            let next = while_read(&proc, &sandboxes, file, || Journal::open(proc.dir()));
            assert_eq!(next.left, vec![uid(A); ends], "{file}");
        }
        assert!(is_closed(&Journal::open(proc.dir()), uid(A)), "{file}");
    }
}

#[test]
fn a_scan_that_ends_leaves_no_mark_whatever_it_found() {
    let proc = node();
    for routes in [7, 7, 7, 9000, 9000, 9000] {
        fs::write(proc.network_dir("a").join("fib_triestat"), triestat(routes)).expect("a temporary file");
        started(&proc);
    }
    proc.hide("networks/a/fib_triestat");
    started(&proc);
    assert!(Journal::open(proc.dir()).left.is_empty());
}

#[test]
fn a_network_that_was_small_a_short_time_ago_is_read_without_a_mark() {
    let proc = node();
    let sandboxes = started(&proc);
    suspend(Duration::from_secs(2));
    let next = while_read(&proc, &sandboxes, "fib_trie", || Journal::open(proc.dir()));
    assert!(next.left.is_empty());
}

#[test]
fn a_file_of_no_use_closes_nothing_and_is_replaced() {
    let proc = node();
    ends_reading(&proc, uid(A));
    ends_reading(&proc, uid(A));
    let file = Journal::open(proc.dir()).path;
    let good = fs::read_to_string(&file).expect("it was written");
    for bad in [
        Vec::new(),
        b"\xff garbage \0".to_vec(),
        good.as_bytes()[..20].to_vec(),
        good.as_bytes()[..good.len() - 3].to_vec(),
        good.replace('6', "g").into_bytes(),
        format!("{good}\nmore").into_bytes(),
        format!("{good}{}", good[NO_MARK.len()..].repeat(1 << 15)).into_bytes(),
    ] {
        fs::write(&file, &bad).expect("it is there");
        assert_eq!(known(&started(&proc)), uids(BOTH), "{:?}", String::from_utf8_lossy(&bad[..bad.len().min(100)]));
        assert_eq!(fs::read_to_string(&file).expect("it is there"), NO_MARK);
    }
    fs::write(&file, &good).expect("it is there");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o620)).expect("it is its own");
    assert!(!is_closed(&Journal::open(proc.dir()), uid(A)), "others may write it");
    let mode = fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::write(&file, &good).expect("it is there");
    assert!(is_closed(&Journal::open(proc.dir()), uid(A)));
}

#[test]
fn without_a_file_that_can_be_written_scans_go_on() {
    let proc = node();
    let file = Journal::open(proc.dir()).path;
    fs::remove_file(&file).expect("it is there");
    fs::create_dir(&file).expect("a free name");
    assert_eq!(known(&started(&proc)), uids(BOTH));
    let mut sandboxes = proc.open();
    let file = OpenOptions::new().write(true).open("/dev/full").ok();
    sandboxes.journal = Some(Journal { file, has_failed: AtomicBool::new(false), ..Journal::open(proc.dir()) });
    sandboxes.scan();
    assert_eq!(known(&sandboxes), uids(BOTH));
    assert!(sandboxes.journal.is_some_and(|journal| journal.has_failed.into_inner()), "it is logged");
}

#[test]
fn the_number_of_marks_that_are_kept_is_bounded_and_the_latest_stay() {
    let proc = node();
    let pod = |number: usize| uid(&format!("{number:032x}"));
    // Each end alone would take seconds.
    let left = (0..MAX_ENDS).map(|number| pod(number / CLOSED_AFTER).to_string());
    let lines: Vec<String> = iter::once(NO_MARK.to_owned()).chain(left).collect();
    replace(&proc.dir().join(NAME), lines.join("\n").as_bytes()).expect("it can be written");
    ends_reading(&proc, uid(A));
    ends_reading(&proc, uid(A));
    let journal = Journal::open(proc.dir());
    assert_eq!(journal.left.len(), MAX_ENDS);
    let closed = [pod(0), pod(1), pod(MAX_ENDS / CLOSED_AFTER - 1), uid(A)].map(|uid| is_closed(&journal, uid));
    assert_eq!(closed, [false, true, true, true]);
}
