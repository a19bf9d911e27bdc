//! [`Process`]: the real binary in a namespace.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::namespace::Namespace;

pub const BINARY: &str = env!("CARGO_BIN_EXE_gce-metadata-proxy");

/// Rules are checked every 30 s, and a debug build on a busy machine is slow.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);

/// A running binary. Killed on drop.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
}

/// Exit code and output of a binary that ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Process {
    /// Starts the binary in a namespace.
    pub fn start(namespace: &Namespace, args: &[&str]) -> Self {
        Self::spawn(namespace.command(BINARY).args(args))
    }

    /// Starts a command that becomes the binary.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built for this test");
        let (send, lines) = channel();
        let readers: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
        for reader in readers {
            let send = send.clone();
            thread::spawn(move || {
                BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
            });
        }
        Self { child, lines }
    }

    /// Waits for a line with this text. Returns the lines before it.
    pub fn line(&self, wanted: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(LINE_TIMEOUT) {
                Ok(line) if line.contains(wanted) => return seen,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with {wanted:?} ({error}); it wrote {seen:#?}"),
            }
        }
    }

    /// The output since the last line that was waited for.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn written(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// The process ID. `ip` becomes the command that it runs.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its own memory, in KiB: without memory shared with its file.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn anonymous_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a process has memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Sends SIGHUP, which it should ignore.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).expect("it has not been waited for");
        self.line("received SIGHUP; ignored");
    }

    /// Kills the process without warning.
    pub fn kill(mut self) {
        self.child.kill().expect("still running");
        self.child.wait().expect("it can be waited for");
    }

    /// Ends the process as a kubelet does.
    pub fn terminate(mut self) -> ExitStatus {
        self.end()
    }

    /// Like [`terminate`](Self::terminate), for a process that is part of another value.
    pub fn end(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it has not been waited for");
        self.child.wait().expect("it can be waited for")
    }

    /// The exit code, if the process has ended.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn has_ended(&mut self) -> Option<i32> {
        let status = self.child.try_wait().expect("it can be waited for")?;
        Some(status.code().expect("it was not killed"))
    }

    /// Runs the binary until it ends.
    pub fn run(namespace: &Namespace, args: &[&str]) -> Ended {
        Ended::of(namespace.command(BINARY).args(args))
    }
}

impl Ended {
    /// Runs a command until it ends.
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().expect("it can be run");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already, if a test waited for its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
