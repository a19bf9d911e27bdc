//! Pods as the kernel reports them: processes in real control groups and network namespaces.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use identity::pods::{PodUid, Sandboxes};

use crate::namespace::Namespace;
use crate::support::needs::{Test, tests};
use crate::world::eventually;

/// The tests of this module.
pub const TESTS: &[Test] =
    tests![a_sandbox_lives_as_long_as_its_oldest_process, a_network_and_a_group_of_its_own_give_a_process_nothing,];

/// Number of objects made by tests so far.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A number that no other test on the machine has at this time.
fn unique() -> u64 {
    u64::from(std::process::id()) << 16 | u64::from(NUMBER.fetch_add(1, Relaxed))
}

/// A UID that no other test has: `/proc` shows the processes of all tests.
fn uid() -> PodUid {
    PodUid::parse(&format!("6f0a9d3e5b1c4c7e{:016x}", unique())).expect("32 digits")
}

/// The control group of a pod, with others above and below it. Removed on drop.
struct Group {
    /// In the order of their creation.
    dirs: Vec<PathBuf>,
}

impl Group {
    /// `kubepods/pod<uid>`, with these groups below it.
    fn of_pod(uid: PodUid, below: &[&str]) -> Self {
        let top = format!("metadata-proxy-test-{}", unique());
        let root = Path::new("/sys/fs/cgroup");
        let is_version_2 = root.join("cgroup.controllers").exists();
        let roots = if is_version_2 { vec![root.to_owned()] } else { vec![root.join("memory"), root.join("cpu")] };
        let mut group = Self { dirs: Vec::new() };
        for root in roots {
            let mut dir = root;
            for name in [&top, "kubepods", &format!("pod{uid}")].into_iter().chain(below.iter().copied()) {
                dir.push(name);
                fs::create_dir(&dir).expect("root may make groups");
                group.dirs.push(dir.clone());
            }
        }
        group
    }

    /// A shell command that enters the group this many levels above the innermost one.
    fn enter(&self, above: usize) -> String {
        let is_innermost = |dir: &&PathBuf| !self.dirs.iter().any(|other| other.parent() == Some(dir.as_path()));
        let innermost = self.dirs.iter().filter(is_innermost);
        let doors = innermost.map(|dir| dir.ancestors().nth(above).expect("a group").join("cgroup.procs"));
        doors.map(|door| format!("echo $$ > {}; ", door.display())).collect::<Vec<_>>().concat()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for dir in self.dirs.iter().rev() {
            eventually("the group is empty", || fs::remove_dir(dir).is_ok());
        }
    }
}

/// A process of a pod. Killed on drop.
struct Running(Child);

impl Running {
    fn start(line: &str) -> Self {
        Self(Command::new("sh").args(["-c", line]).spawn().expect("a shell"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn namespace() -> Namespace {
    let namespace = Namespace::new(&format!("metadata-sandbox-{}", unique()));
    namespace.ip("addr add 10.8.7.5/32 dev lo");
    namespace.ip("-6 addr add fd00:b:7::5/128 dev lo nodad");
    namespace
}

/// Whether a pod has this address.
fn is_held(sandboxes: &Sandboxes, uid: PodUid, addr: &str) -> bool {
    let addr: IpAddr = addr.parse().expect("an address");
    sandboxes.holders(addr).is_some_and(|holders| holders.iter().any(|holder| holder.uid == uid))
}

fn a_sandbox_lives_as_long_as_its_oldest_process() {
    let pod = uid();
    let (group, namespace) = (Group::of_pod(pod, &[]), namespace());
    let sandboxes = Sandboxes::open(Path::new("/proc")).expect("a /proc");
    let pause = format!("{}exec ip netns exec {} sleep 1000", group.enter(0), namespace.name());
    let mut pause = Running::start(&pause);
    eventually("the sandbox is found", || {
        sandboxes.scan();
        is_held(&sandboxes, pod, "10.8.7.5")
    });
    assert!(is_held(&sandboxes, pod, "fd00:b:7::5") && sandboxes.is_alive(pod));
    assert!(!is_held(&sandboxes, pod, "127.0.0.1") && !is_held(&sandboxes, pod, "::1"));
    namespace.ip("addr add 10.8.7.6/32 dev lo");
    sandboxes.scan();
    assert!(is_held(&sandboxes, pod, "10.8.7.6"), "a new address");
    namespace.ip("addr del 10.8.7.6/32 dev lo");
    assert!(!is_held(&sandboxes, pod, "10.8.7.6"), "an address that was taken away");

    pause.0.kill().expect("it runs");
    // It has not been waited for yet, so it still has its ID.
    eventually("a process that was killed is dead", || !is_held(&sandboxes, pod, "10.8.7.5"));
    pause.0.wait().expect("it was killed");
    assert!(!sandboxes.is_alive(pod));
    sandboxes.scan();
    assert!(!sandboxes.is_alive(pod));
}

fn a_network_and_a_group_of_its_own_give_a_process_nothing() {
    let (pod, other) = (uid(), uid());
    let (group, namespace) = (Group::of_pod(pod, &["kubepods", &format!("pod{other}")]), namespace());
    let sandboxes = Sandboxes::open(Path::new("/proc")).expect("a /proc");
    let _pause = Running::start(&format!("{}exec ip netns exec {} sleep 1000", group.enter(2), namespace.name()));
    eventually("the sandbox is found", || {
        sandboxes.scan();
        is_held(&sandboxes, pod, "10.8.7.5")
    });
    let claim = "ip link set lo up; ip addr add 10.8.7.99/32 dev lo; exec sleep 1000";
    let attacker = Running::start(&format!("{}exec unshare --net sh -c '{claim}'", group.enter(0)));
    let trie = format!("/proc/{}/net/fib_trie", attacker.0.id());
    eventually("the address is claimed", || fs::read_to_string(&trie).is_ok_and(|text| text.contains("10.8.7.99")));
    // Also for an observer that finds all processes at once.
    for sandboxes in [sandboxes, Sandboxes::open(Path::new("/proc")).expect("a /proc")] {
        sandboxes.scan();
        assert!(!is_held(&sandboxes, pod, "10.8.7.99"), "a claim is believed");
        assert!(!sandboxes.is_alive(other), "the name of a group that the pod made is believed");
        assert!(is_held(&sandboxes, pod, "10.8.7.5"));
    }
}
