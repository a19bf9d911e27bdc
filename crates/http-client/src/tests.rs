//! Tests of [`HttpClient`], with servers that send fixed bytes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tower::service_fn;

use super::*;

const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 8 };

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678";

/// Answers each request on a connection with the same bytes, and returns the requests when the client closes it.
async fn answer(mut io: impl AsyncRead + AsyncWrite + Unpin, reply: &str) -> String {
    let mut received = Vec::new();
    while let Ok(1..) = io.read_buf(&mut received).await {
        if received.ends_with(b"\r\n\r\n") && io.write_all(reply.as_bytes()).await.is_err() {
            break;
        }
    }
    String::from_utf8(received).expect("text")
}

/// A server that gives every request the same answer. Counts its connections.
async fn serve(reply: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(answer(stream, reply));
        }
    });
    (addr, connections)
}

fn get(addr: SocketAddr) -> Request<Bytes> {
    Request::get(format!("http://{addr}/")).body(Bytes::new()).expect("a request")
}

#[tokio::test]
async fn connections_are_kept_alive() {
    let (addr, connections) = serve(OK).await;
    let client = HttpClient::plain(LIMITS);
    for _ in 0..3 {
        let response = client.send(get(addr)).await.expect("a response");
        assert_eq!((response.status(), &response.body()[..]), (StatusCode::OK, &b"12345678"[..]));
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_an_error_with_the_status() {
    for reply in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n",
    ] {
        let error = HttpClient::plain(LIMITS).send(get(serve(reply).await.0)).await.expect_err("too large");
        assert!(matches!(error, ClientError::TooLarge { max_bytes: 8, .. }), "{error}");
        assert_eq!(error.status(), Some(StatusCode::OK));
    }
}

#[tokio::test]
async fn the_deadline_includes_the_body() {
    let limits = Limits { timeout: Duration::from_millis(50), ..LIMITS };
    for reply in ["", "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n1234"] {
        let addr = serve(reply).await.0;
        let ended = timeout(Duration::from_secs(10), HttpClient::plain(limits).send(get(addr))).await;
        let error = ended.expect("the client's own deadline").expect_err("no response");
        assert!(matches!(error, ClientError::TimedOut(_)), "{error}");
        assert_eq!(error.to_string(), "no response within 0.05 s");
    }
}

#[tokio::test]
async fn errors_say_what_failed() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let error = HttpClient::plain(LIMITS).send(get(closed)).await.expect_err("nothing listens");
    assert!(matches!(&error, ClientError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused));
    assert_eq!(error.to_string(), "cannot connect: Connection refused (os error 111)");

    let addr = serve("SSH-2.0-OpenSSH_9.6\r\n").await.0;
    let error = HttpClient::plain(LIMITS).send(get(addr)).await.expect_err("not HTTP");
    assert!(error.to_string().starts_with("no valid HTTP/1.1 response: invalid HTTP"), "{error}");
    assert_eq!(error.status(), None);
}

/// A stream that is not TCP, in place of a TLS session.
struct Session(TokioIo<DuplexStream>);

impl Connection for Session {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Session {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for Session {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn any_connector_will_do() {
    let (requests, mut received) = tokio::sync::mpsc::unbounded_channel();
    let connector = service_fn(move |uri: Uri| {
        let (ours, theirs) = tokio::io::duplex(1024);
        let requests = requests.clone();
        tokio::spawn(async move { requests.send((uri, answer(theirs, OK).await)) });
        std::future::ready(Ok::<_, Infallible>(Session(TokioIo::new(ours))))
    });
    let client = HttpClient::with_connector(connector, LIMITS);
    let request = Request::get("https://sts.example/v1/token").body(Bytes::new()).expect("a request");
    assert_eq!(client.send(request).await.expect("a response").status(), StatusCode::OK);
    drop(client);
    let (uri, request) = received.recv().await.expect("a connection");
    assert_eq!((uri.scheme_str(), uri.host()), (Some("https"), Some("sts.example")));
    assert_eq!(request.to_ascii_lowercase(), "get /v1/token http/1.1\r\nhost: sts.example\r\n\r\n");
}
