//! The real binary, as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

use super::cgroup::Cgroup;

/// Timeout for the binary's output. A debug build on a busy machine is slow.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(20);

/// A running binary. Killed on drop.
pub struct Binary {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Binary {
    /// Starts the binary with these arguments.
    pub fn start(args: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy")).args(args))
    }

    /// Starts a program with these arguments, in a control group if given.
    fn start_in(program: &Path, group: Option<&Cgroup>, args: &[&str]) -> Self {
        let Some(group) = group else { return Self::spawn(Command::new(program).args(args)) };
        // The shell enters the group and becomes the binary, so its whole life is inside the group.
        let enter = r#"binary=$1; shift
            while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done
            shift; exec "$binary" "$@""#;
        let mut shell = Command::new("sh");
        // The image's allocator gives back what is freed: it rests at 5 MiB after a flood, where glibc keeps 13 MiB, and more if
        // it may learn from large blocks. 14.3 MiB are pressure.
        shell.env("MALLOC_TRIM_THRESHOLD_", "131072").args(["-c", enter, "sh"]).arg(program);
        Self::spawn(shell.args(group.doors()).arg("--").args(args))
    }

    /// Starts the binary, or a program that executes it.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary was built for this test");
        let stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
        let stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        Self { child, stdout, stderr }
    }

    pub fn id(&self) -> u32 {
        self.child.id().expect("it has not ended")
    }

    /// Starts a proxy on ports picked by the system, and waits until it serves.
    pub async fn proxy(upstream: SocketAddr) -> (Self, SocketAddr) {
        let upstream = format!("http://{upstream}");
        let mut binary =
            Self::start(&["-addr=127.0.0.1:0", "-metrics-addr=127.0.0.1:0", "--upstream", &upstream, "--log", "info"]);
        let line = binary.stderr_line("serving pods").await;
        (binary, Self::addr_in(&line))
    }

    /// Starts a proxy with these additional arguments, in a control group if given, and waits until it is
    /// ready. Also returns its addresses for pods and for operators.
    pub async fn ready(group: Option<&Cgroup>, upstream: SocketAddr, args: &[&str]) -> (Self, SocketAddr, SocketAddr) {
        Self::ready_of(Path::new(env!("CARGO_BIN_EXE_gce-metadata-proxy")), group, upstream, args).await
    }

    /// Like [`ready`](Self::ready), for another build of the binary. An address among the arguments is the one for pods.
    pub async fn ready_of(
        program: &Path,
        group: Option<&Cgroup>,
        upstream: SocketAddr,
        args: &[&str],
    ) -> (Self, SocketAddr, SocketAddr) {
        let upstream = format!("http://{upstream}");
        let ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream", &upstream, "--log=info"];
        let mut binary = Self::start_in(program, group, &[args, &ports].concat());
        let metrics_addr = Self::addr_in(&binary.stderr_line("serving operators").await);
        let addr = Self::addr_in(&binary.stderr_line("serving pods").await);
        binary.stderr_line("cache warmed up: the default token and common values are cached").await;
        (binary, addr, metrics_addr)
    }

    /// Its peak resident memory in bytes, without kernel memory. `None` once it has exited.
    pub fn peak_memory(&self) -> Option<u64> {
        let id = self.child.id()?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    }

    /// The address at the end of a log line.
    pub fn addr_in(line: &str) -> SocketAddr {
        line.rsplit_once("addr=").expect("the line names the address").1.trim().parse().expect("an address")
    }

    /// Waits until it exits, and returns the rest of its standard error.
    pub async fn stderr_to_end(&mut self) -> String {
        let mut text = String::new();
        while let Some(line) =
            timeout(OUTPUT_TIMEOUT, self.stderr.next_line()).await.expect("it ends in time").expect("text")
        {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// The next line of standard error that contains this text.
    pub async fn stderr_line(&mut self, wanted: &str) -> String {
        next_line(&mut self.stderr, wanted).await
    }

    /// The next line of standard output that contains this text.
    pub async fn stdout_line(&mut self, wanted: &str) -> String {
        next_line(&mut self.stdout, wanted).await
    }

    /// Sends SIGTERM, as a kubelet does.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("still running");
        kill_process(id, signal).expect("it is ours");
    }

    /// Waits until it exits.
    pub async fn ended(&mut self) -> ExitStatus {
        timeout(OUTPUT_TIMEOUT, self.child.wait()).await.expect("it ends in time").expect("it can be waited for")
    }

    /// Runs it until it exits. Returns the exit code and standard error.
    pub async fn run(args: &[&str]) -> (Option<i32>, String) {
        let (code, _, stderr) = Self::output(args).await;
        (code, stderr)
    }

    /// Runs it until it exits. Returns the exit code, standard output and standard error. It would warn of the tests' own variables.
    pub async fn output(args: &[&str]) -> (Option<i32>, String, String) {
        let mut binary = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
        let output = binary.args(args).env_clear().kill_on_drop(true).output();
        let output = timeout(OUTPUT_TIMEOUT, output).await.expect("it ends in time").expect("it can be run");
        let text = |bytes| String::from_utf8(bytes).expect("messages are text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

async fn next_line<R: tokio::io::AsyncBufRead + Unpin>(lines: &mut Lines<R>, wanted: &str) -> String {
    let found = async {
        let mut seen = Vec::new();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains(wanted) {
                return line;
            }
            seen.push(line);
        }
        panic!("the binary ended without a line with {wanted:?}; it wrote {seen:?}")
    };
    timeout(OUTPUT_TIMEOUT, found).await.unwrap_or_else(|_| panic!("no line with {wanted:?} in time"))
}
