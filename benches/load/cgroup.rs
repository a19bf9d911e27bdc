//! A control group for one server: limits on memory and CPU, and its usage of both. Supports versions 1 and 2.

#[path = "../../tests/support/cgroup/dirs.rs"]
mod dirs;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dirs::Dirs;
use serde::Serialize;

const ROOT: &str = "/sys/fs/cgroup";

/// The period of a CPU quota, in microseconds: the default of the kernel and Kubernetes.
const QUOTA_PERIOD_MICROS: u64 = 100_000;

/// Limits of a server, in Kubernetes' units.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Bounds {
    /// Thousandths of a core.
    pub millicores: Option<u64>,
    /// Mebibytes.
    pub memory: Option<u64>,
}

impl Bounds {
    pub fn are_any(self) -> bool {
        self.millicores.is_some() || self.memory.is_some()
    }
}

/// A group. Removed on drop, which must happen after its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    dirs: Dirs,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// CPU time used so far.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// With nanosecond resolution.
    pub all: Duration,
    /// Version 1 counts these in ticks, so they only show the proportion of user and system time.
    pub user: Duration,
    pub system: Duration,
}

impl Cpu {
    /// The time used since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

impl Cgroup {
    /// Creates a group with these limits. Fails if the machine does not permit it.
    pub fn new(bounds: Bounds) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("metadata-proxy-load-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let root = Path::new(ROOT);
        let is_two = root.join("cgroup.controllers").exists();
        let mut group = Self { dirs: Dirs::default(), version: if is_two { Version::Two } else { Version::One } };
        match group.version {
            Version::Two => {
                // Without this the group lacks the files, and the writes below fail with a clear error.
                let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu +memory");
                group.dirs.make(&root.join(&name))?;
            }
            Version::One => {
                for controller in ["memory", "cpu", "cpuacct"] {
                    group.dirs.make(&root.join(controller).join(&name))?;
                }
            }
        }
        group.bound(bounds)?;
        Ok(group)
    }

    fn bound(&self, bounds: Bounds) -> io::Result<()> {
        let bytes = bounds.memory.map(|mebibytes| (mebibytes << 20).to_string());
        let quota = bounds.millicores.map(|millicores| millicores * QUOTA_PERIOD_MICROS / 1000);
        match self.version {
            Version::Two => {
                bytes.map_or(Ok(()), |bytes| self.write("memory.max", bytes))?;
                quota.map_or(Ok(()), |quota| self.write("cpu.max", format!("{quota} {QUOTA_PERIOD_MICROS}")))
            }
            Version::One => {
                bytes.map_or(Ok(()), |bytes| self.write("memory.limit_in_bytes", bytes))?;
                let Some(quota) = quota else { return Ok(()) };
                self.write("cpu.cfs_period_us", QUOTA_PERIOD_MICROS.to_string())?;
                self.write("cpu.cfs_quota_us", quota.to_string())
            }
        }
    }

    /// The files that a process writes its ID to in order to join the group.
    pub fn doors(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs.doors()
    }

    /// CPU time used by its processes so far.
    pub fn cpu(&self) -> Option<Cpu> {
        let [all, user, system] = match self.version {
            Version::One => ["usage", "usage_user", "usage_sys"]
                .map(|kind| Some(Duration::from_nanos(self.read(&format!("cpuacct.{kind}"))?.trim().parse().ok()?))),
            Version::Two => ["usage_usec", "user_usec", "system_usec"]
                .map(|name| Some(Duration::from_micros(self.field("cpu.stat", name)?))),
        };
        Some(Cpu { all: all?, user: user?, system: system? })
    }

    /// Peak memory usage in bytes. Includes socket buffers in version 2, but not in version 1.
    pub fn peak(&self) -> Option<u64> {
        let file = if self.version == Version::One { "memory.max_usage_in_bytes" } else { "memory.peak" };
        self.read(file)?.trim().parse().ok()
    }

    /// Number of processes killed for lack of memory.
    pub fn killed(&self) -> Option<u64> {
        let file = if self.version == Version::One { "memory.oom_control" } else { "memory.events" };
        self.field(file, "oom_kill")
    }

    fn field(&self, file: &str, name: &str) -> Option<u64> {
        field(&self.read(file)?, name)
    }

    fn read(&self, file: &str) -> Option<String> {
        self.dirs.iter().find_map(|dir| fs::read_to_string(dir.join(file)).ok())
    }

    fn write(&self, file: &str, text: String) -> io::Result<()> {
        let dir = self.dirs.iter().find(|dir| dir.join(file).exists());
        fs::write(dir.ok_or(io::ErrorKind::NotFound)?.join(file), text)
    }
}

/// Reads a value from a file with one name and number per line.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
