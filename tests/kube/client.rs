//! [`Client`]: asks the API server and blocks. Its TLS is that of `openssl s_client`, so tests depend on no library for it.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Place, pause};

/// How long [`Client::patiently`] waits for a server that is being started again.
const PATIENCE: Duration = Duration::from_secs(90);

/// An answer of the API server.
#[derive(Debug)]
pub struct ApiAnswer {
    pub status: u16,
    /// `Null` if it is not JSON.
    pub body: Value,
    /// If it is not.
    pub text: String,
}

impl ApiAnswer {
    /// Whether the server's admission has not read what it decides by, after a start.
    fn is_too_early(&self) -> bool {
        self.status == 403
            && self.body["message"].as_str().is_some_and(|text| text.ends_with("not yet ready to handle request"))
    }
}

/// Who a client is.
#[derive(Debug, Clone)]
pub(super) enum User {
    /// The one of this certificate.
    Certificate(&'static str),
    /// The one that these lines of a request's head name.
    Head(String),
}

/// A client. It keeps one connection, and opens another when that one has ended.
pub struct Client {
    place: Place,
    addr: SocketAddr,
    dir: PathBuf,
    user: User,
    connection: Option<Connection>,
}

impl Client {
    pub(super) fn new(place: Place, addr: SocketAddr, dir: &Path, user: User) -> Self {
        Self { place, addr, dir: dir.to_owned(), user, connection: None }
    }

    /// Sends a request on the connection that is open, or on a new one.
    pub fn ask(&mut self, method: &str, target: &str, body: Option<&Value>) -> io::Result<ApiAnswer> {
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => self.connect()?,
        };
        let head = if let User::Head(lines) = &self.user { lines } else { "" };
        let answer = connection.ask(method, target, head, body)?;
        // Without a length, the answer ended with its connection.
        self.connection = connection.is_kept.then_some(connection);
        Ok(answer)
    }

    /// The text of a page.
    pub fn text(&mut self, target: &str) -> String {
        let answer = self.ask("GET", target, None).expect("the server lives");
        assert_eq!(answer.status, 200, "{target}");
        answer.text
    }

    /// Asks until there is an answer that does not speak of the server's own trouble.
    pub fn patiently(&mut self, method: &str, target: &str, body: Option<&Value>) -> ApiAnswer {
        let began = Instant::now();
        loop {
            let asked = self.ask(method, target, body);
            match asked {
                Ok(answer) if answer.status < 500 && answer.status != 429 && !answer.is_too_early() => return answer,
                trouble => assert!(began.elapsed() < PATIENCE, "{method} {target}: {trouble:?}"),
            }
            pause(Duration::from_millis(100));
        }
    }

    fn connect(&self) -> io::Result<Connection> {
        let mut openssl = match &self.place {
            Some(namespace) => namespace.command("openssl"),
            None => Command::new("openssl"),
        };
        openssl.args(["s_client", "-quiet", "-verify_return_error", "-CAfile", "ca.crt"]);
        openssl.args(["-connect", &self.addr.to_string()]);
        if let User::Certificate(name) = self.user {
            openssl.args(["-cert", &format!("{name}.crt"), "-key", &format!("{name}.key")]);
        }
        openssl.current_dir(&self.dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = openssl.spawn()?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let (Some(requests), Some(answers)) = (requests, answers) else { return Err(ErrorKind::BrokenPipe.into()) };
        Ok(Connection { child, requests, answers, is_kept: true })
    }
}

struct Connection {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    is_kept: bool,
}

impl Connection {
    /// In HTTP/1.0, so that no answer comes in chunks.
    fn ask(&mut self, method: &str, target: &str, head: &str, body: Option<&Value>) -> io::Result<ApiAnswer> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let head = format!(
            "{method} {target} HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nAccept: application/json, application/jwk-set+json\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n{head}\r\n",
            body.len()
        );
        self.requests.write_all(format!("{head}{body}").as_bytes())?;
        self.requests.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<ApiAnswer> {
        let (mut status, mut length) = (None, None);
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
            length = length.or_else(|| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        }
        let mut body = Vec::new();
        if let Some(length) = length {
            body.resize(length, 0);
            self.answers.read_exact(&mut body)?;
        } else {
            self.is_kept = false;
            self.answers.read_to_end(&mut body)?;
        }
        let status = status.ok_or(ErrorKind::InvalidData)?;
        Ok(match serde_json::from_slice(&body) {
            Ok(body) => ApiAnswer { status, body, text: String::new() },
            Err(_) => ApiAnswer { status, body: Value::Null, text: String::from_utf8_lossy(&body).into_owned() },
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It ends by itself when the server has closed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
