//! [`Namespace`]: a network namespace, like that of a pod or a node.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Longer than any successful request, so that a request that hangs fails the test.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a request made with curl.
#[derive(Debug)]
pub struct Curl {
    /// curl's own exit code: 0 for any response, 7 for a refused connection, 28 for a timeout.
    pub code: i32,
    /// 0 without a response.
    pub status: u16,
    /// The response, head and body.
    pub text: String,
}

/// A network namespace. Removed on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new(name: &str) -> Self {
        let namespace = Self { name: name.to_owned() };
        run("ip", &["netns", "add", name]);
        // The content of /etc/hosts in `ip netns exec`: the name that Google's resolver knows.
        fs::create_dir_all(namespace.etc()).expect("root may write to /etc");
        namespace.name_the_server("169.254.169.254");
        namespace.ip("link set lo up");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the metadata server's name this address alone.
    pub fn name_the_server(&self, addr: &str) {
        let hosts = format!("127.0.0.1 localhost\n{addr} metadata.google.internal metadata\n");
        fs::write(self.etc().join("hosts"), hosts).expect("root may write to /etc");
    }

    /// Runs `ip` in this namespace.
    pub fn ip(&self, words: &str) {
        let words: Vec<&str> = ["-n", &self.name].into_iter().chain(words.split(' ')).collect();
        run("ip", &words);
    }

    /// A command that runs in this namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// A command that runs in this network and sees the machine's file systems. `ip netns exec` hides the control
    /// groups, from which a process learns its limits.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn command_with_groups(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
        command
    }

    /// Runs a shell command in this namespace, which must succeed, and returns its output.
    pub fn sh(&self, line: &str) -> String {
        let output = self.command("sh").args(["-c", line]).output().expect("ip is here");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "in {}: {line}: {error}", self.name);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Sends a request with the header that is required for metadata.
    pub fn curl(&self, url: &str) -> Curl {
        let args = ["-s", "-i", "-g", "--max-time", "5", "-H", "Metadata-Flavor: Google", url];
        let output = self.command("curl").args(args).output().expect("ip is here");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Curl { code: output.status.code().expect("not killed"), status, text }
    }

    /// Runs work on a thread in this namespace: the sockets that it opens belong to this namespace wherever they are
    /// used.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = File::open(format!("/run/netns/{}", self.name)).expect("it is there");
        thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter");
            work()
        })
    }

    /// Opens a connection that is kept open.
    pub fn connect(&self, addr: SocketAddr) -> Kept {
        self.spawn(move || Kept::open(addr)).join().expect("no panic").expect("somebody listens")
    }

    /// The folder with files that hide those in `/etc`.
    pub fn etc(&self) -> PathBuf {
        PathBuf::from("/etc/netns").join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let removed = Command::new("ip").args(["netns", "del", &self.name]).status();
        if !removed.is_ok_and(|status| status.success()) || fs::remove_dir_all(self.etc()).is_err() {
            eprintln!("the namespace {} could not be removed whole", self.name);
        }
    }
}

/// A blocking connection that is kept open.
pub struct Kept {
    stream: TcpStream,
}

impl Kept {
    /// `None` if nothing listens there.
    pub fn open(addr: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&addr, REQUEST_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT)).expect("not zero");
        Some(Self { stream })
    }

    /// The head and the body of the response, or the error.
    pub fn ask(&mut self, target: &str) -> Result<String, ErrorKind> {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata-Flavor: Google\r\n\r\n"))
    }

    /// The same, of a POST with a body.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn post(&mut self, target: &str, body: &str) -> Result<String, ErrorKind> {
        self.send(&format!(
            "POST {target} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata-Flavor: Google\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn send(&mut self, request: &str) -> Result<String, ErrorKind> {
        self.stream.write_all(request.as_bytes()).map_err(|error| error.kind())?;
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        loop {
            if let Some(whole) = whole(&answer) {
                return Ok(whole);
            }
            match self.stream.read(&mut part).map_err(|error| error.kind())? {
                0 => return Err(ErrorKind::UnexpectedEof),
                length => answer.extend_from_slice(&part[..length]),
            }
        }
    }
}

fn whole(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    (body.len() == length.unwrap_or(0)).then(|| text.to_owned())
}

/// Runs a program, which must succeed.
pub fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", args.join(" "));
}
