//! Requests and responses as bytes, so that no library between a test and the proxy repairs or breaks them.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longer than any wait in a test, so that a proxy that hangs fails the test instead of blocking it.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A parsed response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Parses one complete response. Returns it with the bytes after it.
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

/// The outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    /// A complete response.
    Answered(Answer),
    /// A reset before any byte.
    Reset,
    /// A normal close before any byte.
    Closed,
    /// A reset or close within a response, or another error.
    Cut(#[expect(dead_code, reason = "for whoever reads why a test failed")] String),
}

impl Outcome {
    /// The response. Panics if there is none.
    #[track_caller]
    pub fn answer(self) -> Answer {
        match self {
            Self::Answered(answer) => answer,
            other => panic!("no answer, but {other:?}"),
        }
    }

    /// Panics unless the outcome is a reset.
    #[track_caller]
    pub fn assert_reset(self) {
        assert!(self.is_reset(), "no reset, but {self:?}");
    }

    /// Whether the outcome is a response with this status.
    pub fn is_status(&self, status: u16) -> bool {
        matches!(self, Self::Answered(answer) if answer.status == status)
    }

    /// Whether the outcome is a reset.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Reset)
    }
}

/// A kept-alive connection.
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub async fn open(addr: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(addr).await.expect("the proxy listens"), unread: Vec::new() }
    }

    /// Opens a connection with a window of a few KiB, so that little of an unread response leaves the proxy.
    pub async fn open_narrow(addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer is always granted");
        Self { stream: socket.connect(addr).await.expect("the proxy listens"), unread: Vec::new() }
    }

    /// Opens a connection from this loopback address, like another pod.
    pub async fn open_from(source: Ipv4Addr, addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((source, 0).into()).expect("all of 127.0.0.0/8 is this machine");
        Self { stream: socket.connect(addr).await.expect("the proxy listens"), unread: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A peer that refuses may have closed already; its response is judged, not this error.
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Closes the sending side.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Reads the next response. `None` if the connection ends before it is complete.
    pub async fn answer(&mut self) -> Option<Answer> {
        loop {
            if let Some((answer, rest)) = Answer::parse(&self.unread, false) {
                self.unread = rest.to_vec();
                return Some(answer);
            }
            let read = timeout(READ_TIMEOUT, self.stream.read_buf(&mut self.unread)).await.expect("an answer in time");
            if matches!(read, Ok(0) | Err(_)) {
                return None;
            }
        }
    }

    /// Sends a request and returns its outcome.
    pub async fn ask(&mut self, target: &str) -> Outcome {
        self.send(request(target)).await;
        self.outcome().await
    }

    /// The outcome of the request that was sent.
    pub async fn outcome(&mut self) -> Outcome {
        loop {
            if let Some((answer, rest)) = Answer::parse(&self.unread, false) {
                self.unread = rest.to_vec();
                return Outcome::Answered(answer);
            }
            let read = timeout(READ_TIMEOUT, self.stream.read_buf(&mut self.unread)).await.expect("an answer in time");
            match read {
                Ok(1..) => {}
                Ok(0) if self.unread.is_empty() => return Outcome::Closed,
                Err(error) if self.unread.is_empty() && error.kind() == ErrorKind::ConnectionReset => {
                    return Outcome::Reset;
                }
                other => return Outcome::Cut(format!("{other:?} after {} bytes", self.unread.len())),
            }
        }
    }

    /// Whether the other side has closed, checked without waiting.
    pub fn is_closed(&mut self) -> bool {
        !matches!(self.stream.try_read_buf(&mut self.unread), Ok(1..) | Err(_))
    }

    /// Reads the head of the next response, leaving its body unread.
    pub async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(READ_TIMEOUT, self.stream.read_u8()).await.expect("a head in time");
            head.push(byte.expect("a whole head"));
        }
        String::from_utf8(head).expect("heads are text")
    }

    /// Reads this many bytes.
    pub async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let read = timeout(READ_TIMEOUT, self.stream.read_exact(&mut bytes)).await.expect("bytes in time");
        read.expect("all of them");
        bytes
    }

    /// Reads until the connection ends, by FIN or RST.
    pub async fn rest(&mut self) -> Vec<u8> {
        while let Ok(1..) = timeout(READ_TIMEOUT, self.stream.read_buf(&mut self.unread)).await.expect("an end in time")
        {
        }
        std::mem::take(&mut self.unread)
    }
}

/// Sends bytes and returns all bytes received until the other side closes.
pub async fn raw(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut connection = Connection::open(addr).await;
    connection.send(bytes).await;
    connection.rest().await
}

/// Sends a request on a new connection and returns its outcome, which may be a refused connection.
#[allow(dead_code, reason = "used by the clients' tests, which share this file")]
pub async fn ask(addr: SocketAddr, target: &str) -> Outcome {
    match TcpStream::connect(addr).await {
        Ok(stream) => Connection { stream, unread: Vec::new() }.ask(target).await,
        Err(error) => Outcome::Cut(error.to_string()),
    }
}

/// A well-formed GET request with keep-alive.
pub fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata-Flavor: Google\r\n\r\n")
}

/// Sends a well-formed GET request with the required header.
pub async fn get(addr: SocketAddr, target: &str) -> Answer {
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: {addr}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n");
    let bytes = raw(addr, request).await;
    let (answer, rest) = Answer::parse(&bytes, false).expect("a whole answer");
    assert_eq!(rest, b"", "one request, one answer");
    answer
}
