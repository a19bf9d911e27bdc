//! A control group for the binary in a test: limits on memory and CPU, and its usage.
//!
//! Supports versions 1 and 2. If neither is writable, there is no group, and the test prints a message and
//! measures less.

mod dirs;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use dirs::Dirs;

const ROOT: &str = "/sys/fs/cgroup";

/// The period of a CPU quota, in microseconds.
const PERIOD: u32 = 100_000;

/// Limits of a group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Memory in bytes, including kernel memory for its processes.
    pub memory: Option<u64>,
    /// Milliseconds of CPU in every 100.
    pub cpu: Option<u32>,
}

/// A group. Removed on drop, which must happen after its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    dirs: Dirs,
    /// The folder of its memory controller.
    memory: Option<(PathBuf, Version)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Usage by the processes of a group.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Peak memory in bytes.
    pub peak: u64,
    /// Number of times that the limit was reached and memory had to be reclaimed (at first from caches).
    pub met: u64,
    /// Number of processes killed for lack of memory.
    pub killed: u64,
    /// Peak memory of socket buffers in bytes, which version 1 counts separately. 0 in version 2, where `peak`
    /// includes it.
    pub sockets: u64,
}

/// Whether this machine uses version 2.
pub fn is_version_2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

impl Cgroup {
    /// Creates a group with these limits. Fails if the machine does not permit it.
    pub fn new(bounds: Bounds) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("metadata-proxy-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut group = Self { dirs: Dirs::default(), memory: None };
        if is_version_2() {
            group.version_2(&name, bounds)?;
        } else {
            group.version_1(&name, bounds)?;
        }
        Ok(group)
    }

    fn version_1(&mut self, name: &str, bounds: Bounds) -> io::Result<()> {
        if let Some(bytes) = bounds.memory {
            let dir = self.dirs.make(&Path::new(ROOT).join("memory").join(name))?;
            fs::write(dir.join("memory.limit_in_bytes"), bytes.to_string())?;
            // Socket buffers are counted only if they have a limit. This limit is too high to be reached.
            let _ = fs::write(dir.join("memory.kmem.tcp.limit_in_bytes"), (4_u64 << 30).to_string());
            self.memory = Some((dir, Version::One));
        }
        if let Some(share) = bounds.cpu {
            let dir = self.dirs.make(&Path::new(ROOT).join("cpu").join(name))?;
            fs::write(dir.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            fs::write(dir.join("cpu.cfs_quota_us"), (share * 1000).to_string())?;
        }
        Ok(())
    }

    fn version_2(&mut self, name: &str, bounds: Bounds) -> io::Result<()> {
        let dir = self.dirs.make(&Path::new(ROOT).join(name))?;
        if let Some(bytes) = bounds.memory {
            fs::write(dir.join("memory.max"), bytes.to_string())?;
            self.memory = Some((dir.clone(), Version::Two));
        }
        bounds.cpu.map_or(Ok(()), |share| self.limit_cpu(share))
    }

    /// Limits the CPU of a group of version 2 to this many milliseconds in every 100.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn limit_cpu(&self, share: u32) -> io::Result<()> {
        let dir = self.dirs.iter().next().ok_or(io::ErrorKind::NotFound)?;
        fs::write(dir.join("cpu.max"), format!("{} {PERIOD}", share * 1000))
    }

    /// The files that a process writes its ID to in order to join the group.
    pub fn doors(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs.doors()
    }

    /// The usage so far. `None` without a memory limit.
    pub fn usage(&self) -> Option<Usage> {
        let (dir, version) = self.memory.as_ref()?;
        let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(dir.join(file)).ok()?;
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
        };
        Some(match version {
            Version::One => Usage {
                peak: number("memory.max_usage_in_bytes")?,
                met: number("memory.failcnt")?,
                killed: field("memory.oom_control", "oom_kill").unwrap_or(0),
                sockets: number("memory.kmem.tcp.max_usage_in_bytes").unwrap_or(0),
            },
            Version::Two => Usage {
                peak: number("memory.peak").or_else(|| number("memory.current"))?,
                met: field("memory.events", "max")?,
                killed: field("memory.events", "oom_kill")?,
                sockets: 0,
            },
        })
    }
}
