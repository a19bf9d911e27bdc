//! A running demo, whose output and answers are compared with those in the documentation.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The demo's usual addresses, which the documentation shows. It uses others if these are taken.
const ADDR: &str = "127.0.0.1:8988";
const METRICS_ADDR: &str = "127.0.0.1:8989";

/// The last line of what the demo prints.
const LAST_LINE: &str = "Ctrl-C ends both.";

/// Maximum time for an answer. A debug build on a busy machine is slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The process; it ends when this is dropped.
pub(crate) struct Demo {
    child: Child,
    addr: SocketAddr,
    /// What it printed, with its usual addresses.
    pub(crate) tour: String,
}

impl Demo {
    pub(crate) fn start(args: &[String]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
        let mut child = command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary was built for this test");
        let mut tour = String::new();
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            tour.extend([&*line, "\n"]);
            if line == LAST_LINE {
                break;
            }
        }
        let address = |path: &str| {
            let before = tour.split(path).next().expect("a URL");
            before.rsplit("http://").next().expect("a URL").to_owned()
        };
        let (addr, metrics_addr) = (address("/computeMetadata"), address("/metrics"));
        let tour = tour.replace(&addr, ADDR).replace(&metrics_addr, METRICS_ADDR);
        Self { child, addr: addr.parse().expect("an address"), tour }
    }

    /// The body of the answer to a request for this URL.
    pub(crate) fn get(&self, uri: &http::Uri) -> Result<String, String> {
        if uri.authority().is_none_or(|authority| authority.as_str() != ADDR) {
            return Err(format!("the output of requests to {ADDR} alone can be compared"));
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        self.ask(target).map_err(|error| error.to_string())
    }

    fn ask(&self, target: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.addr)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let host = self.addr;
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
