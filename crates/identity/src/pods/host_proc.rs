//! [`HostProc`]: the parts of the node's `/proc` that show pods. Needs no capability.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::RawDir;
use rustix::io::Errno;
use thiserror::Error;

use super::stat::Stat;
use super::{PodUid, cgroup, fib_trie, if_inet6};

/// Maximum size of a `cgroup` file, in bytes: a path of 4,096 bytes in each possible hierarchy.
const CGROUP_MAX: u64 = 64 << 10;

/// Size of most `cgroup` files at most, in bytes. In version 1 there are 13 paths, each with a pod's UID and a
/// container's ID.
const CGROUP_USUAL: usize = 4 << 10;

/// Maximum number of bytes read from a network file of a pod: some 500 routes, which take 0.7 ms. A pod that may configure
/// its network can add routes without end. It would slow down every scan, and each new connection from an address that it
/// claims.
const POD_NETWORK_MAX: u64 = 64 << 10;

/// Maximum number of routes of a pod whose network is not known to be small. Most pods with more than 500 are closed by what is read.
const MAX_ROUTES: u64 = 4096;

/// Maximum number of bytes read from a network file of the node, which can have thousands of routes.
const NODE_NETWORK_MAX: u64 = 4 << 20;

/// Longer than any `stat` file: 52 fields of at most 20 digits, and a name of at most 64 bytes.
const STAT_MAX: usize = 1280;

/// Size of the buffer for the list of processes, in bytes: some 1,300 processes are listed with one call.
const LISTED_AT_ONCE: usize = 32 << 10;

/// Longer than any `fdinfo` of a process's descriptor.
const FDINFO_MAX: u64 = 4 << 10;

/// The process whose network is the node's.
const INIT: Pid = Pid(1);

/// Reasons why a directory cannot be used as the node's `/proc`.
#[derive(Debug, Error)]
pub enum ProcError {
    /// The directory cannot be listed.
    #[error("{dir} cannot be read: {error}; mount the node's /proc there, read-only (hostPath)", dir = .dir.display())]
    Directory { dir: PathBuf, error: io::Error },
    /// Not a `/proc`: it has neither a process 1 nor `self`.
    #[error("{} is not a /proc: it has no process 1; mount the node's /proc there, read-only (hostPath)", .0.display())]
    NotProc(PathBuf),
    /// A `/proc` that hides process 1.
    #[error(
        "{} hides the processes of other users (mount option hidepid); remount the node's /proc with hidepid=0, or let the \
         proxy have the group that the option gid names",
        .0.display()
    )]
    Hidden(PathBuf),
    /// A `/proc` that shows a container's own processes.
    #[error(
        "{} shows the processes of a container, not the node's; mount the node's /proc elsewhere, read-only (hostPath), and name \
         that directory",
        .0.display()
    )]
    OfContainer(PathBuf),
    /// A file of process 1 cannot be read.
    #[error("{path} cannot be read: {error}; let the proxy read it (SELinux or AppArmor may forbid it)", path = .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// A process ID of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Pid(pub(super) u32);

/// A network namespace, identified by the inode of its `fib_trie`. Unlike `ns/net`, any process may read its inode. The
/// inode may be reused once the network is gone; the node's network never goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network(u64);

/// An entry in the list of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) pid: Pid,
    /// Inode of its directory. Another process with the same ID has another inode.
    pub(super) inode: u64,
}

/// A process. Its `stat` file is held open: reads fail once the process is gone, even if another process has its ID by then.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// Start, in clock ticks since boot, rounded down.
    pub(super) start: u64,
    stat: File,
}

impl Process {
    /// Its start, and its ID.
    pub(super) fn age(&self) -> (u64, Pid) {
        (self.start, self.pid)
    }

    /// Whether it is running. Takes one read.
    pub(super) fn is_running(&self) -> io::Result<bool> {
        match unless_ended(read_stat(&self.stat)) {
            Ok(stat) => Ok(stat.is_some_and(|stat| stat.is_running && stat.start == self.start)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The node's `/proc`.
#[derive(Debug)]
pub(crate) struct HostProc {
    dir: PathBuf,
    /// The node's network.
    network: Network,
    root: cgroup::Root,
}

impl HostProc {
    /// Checks that a directory is the node's `/proc` and shows what is needed.
    pub(crate) fn open(dir: &Path) -> Result<Self, ProcError> {
        let in_dir = |error| ProcError::Directory { dir: dir.to_owned(), error };
        fs::read_dir(dir).map_err(in_dir)?;
        let init = dir.join("1");
        for file in ["stat", "cgroup", "net/fib_trie"] {
            let path = init.join(file);
            let Err(error) = File::open(&path) else { continue };
            // Every /proc has `self`, whatever it hides.
            let is_proc = fs::symlink_metadata(dir.join("self")).is_ok();
            let is_stat = file == "stat";
            return Err(match error.kind() {
                io::ErrorKind::NotFound if is_stat && !is_proc => ProcError::NotProc(dir.to_owned()),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if is_stat => {
                    ProcError::Hidden(dir.to_owned())
                }
                _ => ProcError::File { path, error },
            });
        }
        let network = network_in(&init).map_err(|error| ProcError::File { path: init.join("net/fib_trie"), error })?;
        // From this `/proc`, because it is compared with the paths of other processes, which are read there.
        let own = fs::read(dir.join("self/cgroup")).unwrap_or_default();
        let proc = Self { dir: dir.to_owned(), network, root: cgroup::Root::of_reader(&own) };
        let is_self = fs::read_link(dir.join("self")).is_ok_and(|own| own == Path::new("1"));
        let pod = proc.pod_of(INIT).map_err(|error| ProcError::File { path: init.join("cgroup"), error })?;
        if is_self || pod.is_some() { Err(ProcError::OfContainer(dir.to_owned())) } else { Ok(proc) }
    }

    /// All processes, by ID. Fails if there are more than `at_most`.
    pub(super) fn list(&self, at_most: usize) -> io::Result<Vec<Listed>> {
        let dir = File::open(&self.dir)?;
        let mut buffer = Vec::with_capacity(LISTED_AT_ONCE);
        // Without an allocation for each name: scans of thousands of processes wait for this.
        let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
        let mut listed = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
                listed.push(Listed { pid: Pid(pid), inode: entry.ino() });
            }
            if listed.len() > at_most {
                return Err(io::Error::other("too many processes"));
            }
        }
        // The kernel already lists them in this order.
        listed.sort_unstable_by_key(|listed| listed.pid);
        Ok(listed)
    }

    /// Opens a process. `None` if it has ended.
    pub(super) fn process(&self, pid: Pid) -> io::Result<Option<Process>> {
        let read = File::open(self.of(pid).join("stat")).and_then(|file| Ok((read_stat(&file)?, file)));
        let found = unless_ended(read)?;
        let running = found.filter(|(stat, _)| stat.is_running);
        Ok(running.map(|(stat, file)| Process { pid, start: stat.start, stat: file }))
    }

    /// The ID of the process that a descriptor stands for (`pidfd_open`). `None` if it has ended and was waited for.
    pub(crate) fn pid_of(&self, pidfd: BorrowedFd<'_>) -> io::Result<Option<Pid>> {
        // Read in the node's /proc, so that the ID is the node's. This process may be in a PID namespace of its own.
        let file = self.dir.join("self/fdinfo").join(pidfd.as_raw_fd().to_string());
        let mut text = String::new();
        File::open(file)?.take(FDINFO_MAX).read_to_string(&mut text)?;
        let number = text.lines().find_map(|line| line.strip_prefix("Pid:")).ok_or(io::ErrorKind::InvalidData)?;
        // -1 after its end, and 0 for one that is not below the node's first process.
        Ok(number.trim().parse().ok().filter(|pid| *pid > 0).map(Pid))
    }

    /// The pod that a process belongs to.
    pub(crate) fn pod_of(&self, pid: Pid) -> io::Result<Option<PodUid>> {
        // Room for nearly every file, so that it is read at once: a scan may read thousands.
        let mut text = Vec::with_capacity(CGROUP_USUAL);
        File::open(self.of(pid).join("cgroup"))?.take(CGROUP_MAX).read_to_end(&mut text)?;
        Ok(self.root.pod_of(&text))
    }

    pub(super) fn network_of(&self, pid: Pid) -> io::Result<Network> {
        network_in(&self.of(pid))
    }

    pub(super) fn is_nodes(&self, network: Network) -> bool {
        network == self.network
    }

    /// Whether the routes of a process's network are few enough to read its addresses.
    ///
    /// The kernel formats all routes to a destination as one record of `fib_trie`, in a buffer that is charged to the reader,
    /// however little of it is read: 27 bytes for each, so a million of them are an end by OOM. `fib_triestat` counts them in
    /// 0.1 µs each. It takes memory for tables, some 155 bytes for each: a hundred thousand of them would be an end by OOM, too.
    /// Unlike routes to one destination they are seen in `fib_trie`, so only a proxy that starts beside them reads their count. The
    /// journal of [`Sandboxes::kept_in`](super::Sandboxes::kept_in) ends that.
    pub(super) fn has_few_routes(&self, pid: Pid) -> io::Result<bool> {
        let mut text = String::new();
        let file = File::open(self.of(pid).join("net/fib_triestat"))?;
        file.take(POD_NETWORK_MAX).read_to_string(&mut text)?;
        let counts = text.lines().filter_map(|line| line.trim().strip_prefix("Prefixes:")?.trim().parse::<u64>().ok());
        Ok((text.len() as u64) < POD_NETWORK_MAX && counts.sum::<u64>() <= MAX_ROUTES)
    }

    /// Up to `at_most` addresses of a process's network that identify it. [`io::ErrorKind::FileTooLarge`] if it has too many
    /// routes.
    pub(super) fn addresses(&self, pid: Pid, at_most: usize) -> io::Result<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        let end = self.each_address(pid, [true, true], POD_NETWORK_MAX, |addr| {
            if is_unique(addr) && !addresses.contains(&addr) {
                addresses.push(addr);
            }
            if addresses.len() < at_most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        end.unless_cut(addresses)
    }

    /// Those of these addresses that a process's network has now. [`io::ErrorKind::FileTooLarge`] if it has too many routes.
    pub(super) fn has(&self, pid: Pid, wanted: &[IpAddr]) -> io::Result<Vec<IpAddr>> {
        let (found, end) = self.finds(pid, wanted, POD_NETWORK_MAX)?;
        end.unless_cut(found)
    }

    /// All addresses of the node's network, sorted.
    pub(super) fn nodes_addresses(&self) -> io::Result<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        self.each_address(INIT, [true, true], NODE_NETWORK_MAX, |addr| {
            addresses.push(addr);
            ControlFlow::Continue(())
        })?;
        addresses.sort_unstable();
        addresses.dedup();
        addresses.shrink_to_fit();
        Ok(addresses)
    }

    /// Whether the node's network has this address now.
    pub(super) fn node_has(&self, addr: IpAddr) -> io::Result<bool> {
        Ok(!self.finds(INIT, &[addr], NODE_NETWORK_MAX)?.0.is_empty())
    }

    fn finds(&self, pid: Pid, wanted: &[IpAddr], at_most: u64) -> io::Result<(Vec<IpAddr>, End)> {
        let mut found = Vec::new();
        let families = [wanted.iter().any(IpAddr::is_ipv4), wanted.iter().any(IpAddr::is_ipv6)];
        let end = self.each_address(pid, families, at_most, |addr| {
            if wanted.contains(&addr) && !found.contains(&addr) {
                found.push(addr);
            }
            if found.len() < wanted.len() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok((found, end))
    }

    /// Reads the addresses of a process's network, in IPv4, IPv6, or both. Returns how the routes of IPv4 ended.
    fn each_address(
        &self,
        pid: Pid,
        [v4, v6]: [bool; 2],
        at_most: u64,
        mut found: impl FnMut(IpAddr) -> ControlFlow<()>,
    ) -> io::Result<End> {
        let net = self.of(pid).join("net");
        let mut parser = fib_trie::Parser::default();
        if v4 {
            let line = |line: &[u8]| parser.line(line).map(IpAddr::V4);
            let end = each_line(&net.join("fib_trie"), at_most, line, &mut found)?;
            if end != End::OfFile {
                return Ok(end);
            }
        }
        if v6 {
            match each_line(&net.join("if_inet6"), at_most, |line| if_inet6::address(line).map(IpAddr::V6), &mut found)
            {
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => drop(read?),
            }
        }
        Ok(End::OfFile)
    }

    fn of(&self, pid: Pid) -> PathBuf {
        self.dir.join(pid.0.to_string())
    }
}

/// Turns the error of a process that has ended into `None`.
pub(super) fn unless_ended<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an address identifies a network. The others may be in every network.
fn is_unique(addr: IpAddr) -> bool {
    let is_link_local = matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    !(addr.is_loopback() || addr.is_unspecified() || addr.is_multicast() || is_link_local)
}

fn network_in(process: &Path) -> io::Result<Network> {
    Ok(Network(fs::metadata(process.join("net/fib_trie"))?.ino()))
}

fn read_stat(file: &File) -> io::Result<Stat> {
    let mut text = [0; STAT_MAX];
    let length = file.read_at(&mut text, 0)?;
    Stat::parse(&text[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How the reading of a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    OfFile,
    /// What was looked for is found.
    Found,
    /// As many bytes as may be read were read.
    Cut,
}

impl End {
    fn unless_cut<T>(self, read: T) -> io::Result<T> {
        if self == Self::Cut { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(read) }
    }
}

/// Reads up to `at_most` bytes of a file, line by line, until `found` breaks.
fn each_line(
    path: &Path,
    at_most: u64,
    mut parse: impl FnMut(&[u8]) -> Option<IpAddr>,
    found: &mut impl FnMut(IpAddr) -> ControlFlow<()>,
) -> io::Result<End> {
    let mut lines = BufReader::with_capacity(4096, File::open(path)?.take(at_most));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        if let Some(addr) = parse(&line)
            && found(addr).is_break()
        {
            return Ok(End::Found);
        }
        line.clear();
    }
    Ok(if lines.get_ref().limit() == 0 { End::Cut } else { End::OfFile })
}
