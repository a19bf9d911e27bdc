//! [`FakeProc`]: a `/proc` for tests.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Sandboxes;

/// A `/proc` made of files. A process that has ended has an empty `stat` file: reads of it fail, as in a real one.
pub struct FakeProc {
    pub(super) dir: PathBuf,
    gone: AtomicU32,
}

impl Default for FakeProc {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeProc {
    /// With process 1 in the network `node`, which has 10.128.0.2 and loopback.
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("metadata-proxy-{}-proc-{number}", std::process::id()));
        let proc = Self { dir, gone: AtomicU32::new(0) };
        fs::create_dir_all(proc.dir.join("networks")).expect("a temporary directory");
        symlink("77", proc.dir.join("self")).expect("a new name");
        proc.network("node", &["10.128.0.2", "fd00:a::2"]);
        proc.process(1, 5, "/init.scope", "node");
        proc
    }

    /// Makes a network, or changes its addresses.
    pub fn network(&self, name: &str, addresses: &[&str]) {
        let (mut v4, mut v6) = (String::from("Main:\nLocal:\n  +-- 0.0.0.0/0 3 0 5\n"), String::new());
        for addr in addresses.iter().chain(&["127.0.0.1", "::1", "fe80::1"]) {
            match addr.parse().expect("an address") {
                IpAddr::V4(addr) => writeln!(v4, "     |-- {addr}\n        /32 host LOCAL"),
                IpAddr::V6(addr) => writeln!(v6, "{:032x} 02 40 00 80     eth0", u128::from(addr)),
            }
            .expect("text");
        }
        let dir = self.network_dir(name);
        fs::create_dir_all(&dir).expect("a temporary directory");
        fs::write(dir.join("fib_trie"), v4).expect("a temporary file");
        fs::write(dir.join("fib_triestat"), triestat(7)).expect("a temporary file");
        fs::write(dir.join("if_inet6"), v6).expect("a temporary file");
    }

    pub(super) fn network_dir(&self, name: &str) -> PathBuf {
        self.dir.join("networks").join(name)
    }

    /// Starts a process, at this tick, in this control group and network.
    pub(super) fn process(&self, pid: u32, start: u64, group: &str, network: &str) {
        let dir = self.dir.join(pid.to_string());
        fs::create_dir(&dir).expect("the ID is free");
        fs::write(dir.join("stat"), stat(pid, b"a) S (b", 'S', start)).expect("a temporary file");
        self.move_to(pid, group);
        self.enter(pid, network);
    }

    /// Starts a process in a pod's group and network.
    pub fn of_pod(&self, pid: u32, start: u64, uid: &str, network: &str) {
        self.process(pid, start, &format!("/kubepods/burstable/pod{uid}/0123"), network);
    }

    pub(super) fn move_to(&self, pid: u32, group: &str) {
        let file = self.dir.join(pid.to_string()).join("cgroup");
        fs::write(file, format!("0::{group}\n")).expect("a temporary file");
    }

    pub(super) fn enter(&self, pid: u32, network: &str) {
        let link = self.dir.join(pid.to_string()).join("net");
        let _ = fs::remove_file(&link);
        symlink(self.network_dir(network), link).expect("a new name");
    }

    /// Ends a process, and frees its ID. The directory stays elsewhere, so that its inode is not reused.
    pub fn end(&self, pid: u32) {
        fs::write(self.dir.join(pid.to_string()).join("stat"), "").expect("a temporary file");
        self.put_aside(pid);
    }

    /// Gives the directory of a process another inode, as the kernel may do at any time.
    #[cfg(test)]
    pub(super) fn renew(&self, pid: u32) {
        let old = self.put_aside(pid);
        let dir = self.dir.join(pid.to_string());
        fs::create_dir(&dir).expect("the ID is free");
        for name in ["stat", "cgroup", "net"] {
            fs::rename(old.join(name), dir.join(name)).expect("it is there");
        }
    }

    /// Puts a directory in the place of a file: nobody can read it, root included. Returns what the file had.
    #[cfg(test)]
    pub(crate) fn hide(&self, file: &str) -> Vec<u8> {
        let file = self.dir.join(file);
        let text = fs::read(&file).expect("it is there");
        fs::remove_file(&file).expect("it is there");
        fs::create_dir(file).expect("a free name");
        text
    }

    /// Puts a hidden file back.
    #[cfg(test)]
    pub(super) fn show(&self, file: &str, text: &[u8]) {
        let file = self.dir.join(file);
        fs::remove_dir(&file).expect("it is empty");
        fs::write(file, text).expect("a temporary file");
    }

    fn put_aside(&self, pid: u32) -> PathBuf {
        let gone = self.dir.join(format!("gone-{}", self.gone.fetch_add(1, Relaxed)));
        fs::rename(self.dir.join(pid.to_string()), &gone).expect("a new name");
        gone
    }

    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Opens it as the node's `/proc`. Each interface leads to one pod.
    pub fn open(&self) -> Sandboxes {
        Sandboxes::with(&self.dir, super::Leads::fake(|_, _| Ok(true))).expect("a /proc")
    }
}

impl Drop for FakeProc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The text of a `fib_triestat` file of a network with this number of routes in each of two tables.
pub(super) fn triestat(routes: u32) -> String {
    let table = |name| format!("{name}:\n\tLeaves:         1\n\tPrefixes:       {routes}\nTotal size: 2  kB\n");
    format!("Basic info: size of leaf: 48 bytes, size of tnode: 40 bytes.\n{}{}", table("Main"), table("Local"))
}

/// The text of a `stat` file.
pub(crate) fn stat(pid: u32, name: &[u8], state: char, start: u64) -> Vec<u8> {
    let mut text = [format!("{pid} (").as_bytes(), name].concat();
    text.extend(format!(") {state} 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1019904 2 0 0\n").bytes());
    text
}
