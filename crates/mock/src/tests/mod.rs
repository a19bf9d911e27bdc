//! Tests of the mock over real sockets with raw bytes.

mod answers;
mod faults;
mod hanging;
mod life;
mod tokens;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Handle, Mock};

/// The tree of v1, with a trailing slash.
const V1: &str = "/computeMetadata/v1/";
/// The default account's directory.
const ACCOUNT: &str = "/computeMetadata/v1/instance/service-accounts/default/";

/// A keep-alive connection.
struct Client(TcpStream);

/// A response, read to the end that its head announces.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Client {
    async fn connect(addr: SocketAddr) -> Self {
        Self(TcpStream::connect(addr).await.expect("the mock accepts"))
    }

    async fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.expect("the mock reads");
    }

    /// Sends a request with the headers that every client sends.
    async fn get(&mut self, target: &str) -> Reply {
        self.ask("GET", target).await
    }

    async fn ask(&mut self, method: &str, target: &str) -> Reply {
        self.send(&request(method, target)).await;
        self.reply(method != "HEAD").await
    }

    async fn reply(&mut self, has_body: bool) -> Reply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("a whole head"));
        }
        let head = String::from_utf8(head).expect("ASCII");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut reply = Reply { status, head, body: String::new() };
        let length = reply.header("Content-Length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; if has_body { length } else { 0 }];
        self.0.read_exact(&mut body).await.expect("a whole body");
        reply.body = String::from_utf8(body).expect("UTF-8");
        reply
    }

    /// Reads until the stream ends. Returns how it ended.
    async fn rest(&mut self) -> (String, std::io::Result<()>) {
        let mut bytes = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(10), self.0.read_to_end(&mut bytes)).await;
        (String::from_utf8_lossy(&bytes).into_owned(), end.expect("the stream ends").map(|_| ()))
    }
}

impl Reply {
    /// A header's value, by its exact name.
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(header, _)| *header == name).map(|(_, value)| value)
    }

    fn content_type(&self) -> &str {
        self.header("Content-Type").unwrap_or_default()
    }

    fn etag(&self) -> &str {
        self.header("ETag").expect("an etag")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

fn request(method: &str, target: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: metadata.google.internal\r\nMetadata-Flavor: Google\r\n\r\n")
}

async fn started() -> (Handle, Client) {
    let mock = Mock::start().await;
    let client = Client::connect(mock.addr()).await;
    (mock, client)
}

/// Waits until something holds, which a socket's other end brings about soon but not at once.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} within five seconds");
}
