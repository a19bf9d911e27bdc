//! Requests and answers as bytes, so that nothing between a test and the proxy mends or breaks them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything that a test waits for; a proxy that hangs fails the test instead of stopping it.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer, taken apart.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// A header's value; its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Takes apart one whole answer, and returns what follows it.
    pub fn parse(bytes: &[u8], is_head: bool) -> Option<(Self, &[u8])> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).expect("heads are text");
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status is a number");
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap_or((line, "")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value);
        let length = length.unwrap_or_else(|| panic!("no Content-Length in {head}")).parse().expect("a number");
        let length = if is_head { 0 } else { length };
        let body = bytes[end + 4..].get(..length)?;
        let body = String::from_utf8_lossy(body).into_owned();
        Some((Self { status, headers, body }, &bytes[end + 4 + length..]))
    }
}

/// A connection that is kept.
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub async fn open(addr: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(addr).await.expect("the proxy listens"), unread: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A peer that has already refused may have closed; what it answered is judged, not this.
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// The next answer; nothing when the connection ends before one is whole.
    pub async fn answer(&mut self) -> Option<Answer> {
        loop {
            if let Some((answer, rest)) = Answer::parse(&self.unread, false) {
                self.unread = rest.to_vec();
                return Some(answer);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await.expect("an answer in time");
            if matches!(read, Ok(0) | Err(_)) {
                return None;
            }
        }
    }

    /// Everything until the connection ends, by FIN or RST.
    pub async fn rest(&mut self) -> Vec<u8> {
        while let Ok(1..) = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await.expect("an end in time") {}
        std::mem::take(&mut self.unread)
    }
}

/// Sends bytes and returns all that comes back until the other side closes.
pub async fn raw(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut connection = Connection::open(addr).await;
    connection.send(bytes).await;
    connection.rest().await
}

/// A well-formed GET, with the header that metadata wants.
pub async fn get(addr: SocketAddr, target: &str) -> Answer {
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: {addr}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n");
    let bytes = raw(addr, request).await;
    let (answer, rest) = Answer::parse(&bytes, false).expect("a whole answer");
    assert_eq!(rest, b"", "one request, one answer");
    answer
}
