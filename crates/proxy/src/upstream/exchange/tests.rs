mod beside_hyper;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderMap;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use base::hook::Hook;
use socket2::SockRef;

use super::super::body::{UpstreamBody, buffered};
use super::super::connection::{Connection, READ_BYTES};
use super::super::outgoing::RequestKind;
use super::super::pool::Pool;
use super::*;
use crate::failure::MAX_HEAD_BYTES;
use crate::room::{Room, SMALL_BYTES};
use telemetry::latency::EndpointClass;

/// A response: status, headers, body.
type Answer = (u16, HeaderMap, Vec<u8>);

/// A failure with what had arrived of the response before: headers, and data of the body.
type Failed = (Failure, HeaderMap, Vec<u8>);

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

fn get() -> Outgoing {
    Outgoing {
        bytes: GET.into(),
        is_head: false,
        endpoint: EndpointClass::Leaf,
        kind: RequestKind::Ordinary,
        peer: None,
        headers: HeaderMap::new(),
    }
}

fn timer() -> ExchangeTimer {
    ExchangeTimer::start(Arc::default(), EndpointClass::Leaf, None)
}

/// Sends a request to an upstream that sends these pieces one after the other and then closes.
async fn ask(pool: &Arc<Pool>, pieces: &[&[u8]], is_head: bool) -> Result<Answer, Failed> {
    let (connection, far) = Connection::pair();
    ask_of(play(far, pieces), pool.lease(connection), is_head).await
}

async fn ask_of(upstream: impl Future<Output = ()>, lease: Lease, is_head: bool) -> Result<Answer, Failed> {
    let client = async {
        let response = exchange(lease, &mut Outgoing { is_head, ..get() }, &mut timer()).await.map_err(failed)?;
        let (head, mut incoming) = response.into_parts();
        let mut body = Vec::new();
        loop {
            match poll_fn(|cx| incoming.poll_data(cx)).await {
                Ok(Some(data)) => body.extend_from_slice(&data),
                Ok(None) => return Ok((head.status.as_u16(), head.headers, body)),
                Err(failure) => return Err((failure, head.headers, body)),
            }
        }
    };
    tokio::join!(client, upstream).0
}

fn failed(failure: Failure) -> Failed {
    (failure, HeaderMap::new(), Vec::new())
}

/// The runtime looks for what has arrived, and then the client reads it.
async fn settle() {
    for _ in 0..3 {
        yield_now().await;
    }
}

async fn play(far: std::net::TcpStream, pieces: &[&[u8]]) {
    far.set_nonblocking(true).expect("an option");
    let mut far = TcpStream::from_std(far).expect("a runtime");
    far.set_nodelay(true).expect("an option");
    far.read_exact(&mut [0; GET.len()]).await.expect("a request");
    for piece in pieces {
        // The other side may have closed by now.
        let _ = far.write_all(piece).await;
        settle().await;
    }
    let _ = far.shutdown().await;
}

async fn is_reused(answer: &str, is_head: bool) -> bool {
    let pool = Arc::<Pool>::default();
    let (status, ..) = ask(&pool, &[answer.as_bytes()], is_head).await.expect("an answer");
    assert!(status >= 200);
    pool.size() == 1
}

#[tokio::test]
async fn a_connection_is_used_again_only_after_the_exact_end_of_a_response() {
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 204 No Content\r\n\r\n", true),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", true),
        ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop\r\n\r\nok", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nok", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\nConnection: close\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop, Close\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n", false),
        ("HTTP/1.1 204 No Content\r\n\r\nok", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK", false),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n", false),
    ] {
        assert_eq!(is_reused(answer, false).await, expected, "{answer:?}");
    }
    assert!(!is_reused("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", true).await, "HEAD: a body may follow");
}

/// hyper asks for no more than was announced, so the end of the stream is never polled.
#[tokio::test]
async fn a_connection_is_used_again_as_soon_as_the_last_byte_was_taken() {
    let pool = Arc::<Pool>::default();
    let (connection, far) = Connection::pair();
    let (mut request, mut timer) = (get(), timer());
    let answered = exchange(pool.lease(connection), &mut request, &mut timer);
    let (response, ()) = tokio::join!(answered, play(far, &[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", b"k"]));
    let mut incoming = response.expect("a response").into_body();
    for (data, left, size) in [("o", 1, 0), ("k", 0, 1)] {
        let taken = poll_fn(|cx| incoming.poll_data(cx)).await.expect("it is whole");
        assert_eq!(taken.as_deref(), Some(data.as_bytes()));
        assert_eq!((incoming.announced(), pool.size()), (Some(left), size));
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_or_spoke_out_of_turn_is_not_used_again() {
    for behind in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"] {
        let pool = Arc::<Pool>::default();
        let (connection, mut far) = Connection::pair();
        far.write_all(behind).expect("it is open");
        far.shutdown(if behind.is_empty() { Shutdown::Both } else { Shutdown::Read }).expect("it is open");
        connection.stirred().await;
        pool.lease(connection).finish();
        assert!(pool.take().is_none());
        assert_eq!(pool.size(), 0);
    }
}

#[tokio::test]
async fn an_unread_body_closes_the_connection() {
    let pool = Arc::<Pool>::default();
    let (connection, mut far) = Connection::pair();
    let mut peer = far.try_clone().expect("a second handle");
    peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok").expect("it is open");
    let response = exchange(pool.lease(connection), &mut get(), &mut timer()).await.expect("a response");
    far.read_exact(&mut [0; GET.len()]).expect("the request");
    drop(response);
    assert_eq!((far.read(&mut [0]).expect("the end"), pool.size()), (0, 0));
}

#[tokio::test]
async fn a_body_that_has_arrived_with_its_head_is_at_hand() {
    for (answer, body) in [
        ("Content-Length: 2\r\n\r\nok", Some("ok")),
        ("Content-Length: 0\r\n\r\n", Some("")),
        ("Content-Length: 3\r\n\r\nok", None),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", None),
        ("Connection: close\r\n\r\nok", None),
    ] {
        let (pool, (connection, far)) = (Arc::<Pool>::default(), Connection::pair());
        let (mut request, mut timer, answer) = (get(), timer(), format!("HTTP/1.1 200 OK\r\n{answer}"));
        let answered = exchange(pool.lease(connection), &mut request, &mut timer);
        let pieces = [answer.as_bytes()];
        let (response, ()) = tokio::join!(answered, play(far, &pieces));
        let at_hand = response.expect("a response").into_body().at_hand().expect("it is HTTP");
        let is_free_again = body.is_some();
        assert_eq!((at_hand.as_deref(), pool.size() == 1), (body.map(str::as_bytes), is_free_again), "{answer:?}");
    }
}

/// What has been read of it is at nobody's charge.
#[tokio::test]
async fn a_large_body_without_a_length_is_streamed_before_much_of_it_is_read() {
    let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
    for bytes in [SMALL_BYTES, SMALL_BYTES + 1, 64 * 1024] {
        let (connection, far) = Connection::pair();
        let chunk = format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(bytes));
        let pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk.as_bytes()];
        let client = async {
            let response = exchange(Arc::<Pool>::default().lease(connection), &mut get(), &mut timer()).await?;
            match buffered(response, Some(room.account(None))).await?.into_body() {
                UpstreamBody::Whole(whole) => Ok((true, whole.len(), whole.len())),
                UpstreamBody::Streamed(mut streamed) => {
                    let mut pieces = Vec::new();
                    while let Some(frame) = streamed.frame().await {
                        pieces.push(frame?.into_data().expect("data").len());
                    }
                    Ok((false, pieces[0], pieces.iter().sum()))
                }
            }
        };
        let (read, ()) = tokio::join!(client, play(far, &pieces));
        let (is_whole, first, all) = read.map_err(|failure: Failure| failure.to_string()).expect("a body");
        assert_eq!((is_whole, all, room.used()), (bytes <= SMALL_BYTES, bytes, 0));
        assert!(first <= SMALL_BYTES + READ_BYTES, "{first} bytes are kept of {bytes}");
    }
}

#[tokio::test]
async fn a_buffered_body_is_read_to_its_exact_end() {
    let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
    let body: Vec<u8> = (0..251).cycle().take(SMALL_BYTES + 3 * READ_BYTES).collect();
    for (sent, behind, label) in [
        (body.len(), "", None),
        (body.len(), "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", None),
        (body.len() - 1, "", Some("upstream_cut_short")),
        (0, "", Some("upstream_cut_short")),
    ] {
        let pool = Arc::<Pool>::default();
        let (connection, mut far) = Connection::pair();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        far.write_all(&[head.as_bytes(), &body[..sent], behind.as_bytes()].concat()).expect("it is open");
        if label.is_some() {
            far.shutdown(Shutdown::Write).expect("it is open");
        }
        let response = exchange(pool.lease(connection), &mut get(), &mut timer()).await.expect("a response");
        let read = buffered(response, Some(room.account(None))).await.map(http::Response::into_body);
        match read {
            Ok(UpstreamBody::Whole(whole)) => assert_eq!((&whole[..], room.used()), (&body[..], body.len())),
            Ok(UpstreamBody::Streamed(_)) => panic!("there is room"),
            Err(failure) => assert_eq!(Some(failure.label()), label),
        }
        assert_eq!(
            (pool.take().is_some(), room.used()),
            (label.is_none() && behind.is_empty(), 0),
            "{sent} {behind:?}"
        );
    }
}

/// As by a server that is killed, or behind a firewall that forgets the connection.
#[tokio::test]
async fn a_reset_is_not_the_end_of_a_response() {
    let pair = || {
        let (connection, far) = Connection::pair();
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).expect("an option");
        (Arc::<Pool>::default().lease(connection), far)
    };
    let label = |got: Result<Answer, Failed>| got.expect_err("it was reset").0.label();
    let (lease, far) = pair();
    drop(far);
    lease.connection.stirred().await;
    assert_eq!(label(ask_of(async {}, lease, false).await), "upstream_closed", "before the request");
    for (begun, expected) in [
        ("", "upstream_closed"),
        ("HTTP/1.1 200 OK\r\nConte", "upstream_closed"),
        ("HTTP/1.1 200 OK\r\n\r\nhalf", "upstream_cut_short"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf", "upstream_cut_short"),
    ] {
        let (lease, mut far) = pair();
        let upstream = async move {
            far.write_all(begun.as_bytes()).expect("it is open");
            settle().await;
        };
        assert_eq!(label(ask_of(upstream, lease, false).await), expected, "{begun:?}");
    }
}

#[tokio::test]
async fn each_failure_has_its_name() {
    let long = |length| format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(length));
    let fits = MAX_HEAD_BYTES - long(0).len();
    let many = |lines| format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(lines));
    for (answer, expected) in [
        (String::new(), "upstream_closed"),
        ("HTTP/1.1 200 OK\r\nConte".to_owned(), "upstream_closed"),
        ("SSH-2.0-OpenSSH\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nA: \0\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), "upstream_not_http"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok".to_owned(), "upstream_cut_short"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok".to_owned(), "upstream_cut_short"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n".to_owned(), "upstream_cut_short"),
        (long(fits), "200"),
        (long(fits + 1), "upstream_too_large"),
        (long(10_000), "upstream_too_large"),
        (many(100), "200"),
        (many(101), "upstream_too_large"),
    ] {
        for pieces in [vec![answer.as_bytes()], answer.as_bytes().chunks(1000).collect()] {
            let outcome = ask(&Arc::default(), &pieces, false).await;
            let name =
                outcome.map_or_else(|(failure, ..)| failure.label().to_owned(), |(status, ..)| status.to_string());
            assert_eq!(name, expected, "{:?}", &answer[..answer.len().min(100)]);
        }
    }
}

#[tokio::test]
async fn headers_of_the_hop_end_here_and_others_are_passed_on() {
    let answer = "HTTP/1.0 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nETag: \u{e9}\r\n\
        Trailer: x\r\nUpgrade: x\r\nTE: x\r\nProxy-Connection: x\r\nProxy-Authenticate: x\r\nProxy-Authorization: x\r\n\
        Content-Length: 2\r\nA: 1\r\na: 2\r\n\r\nok";
    let (_, headers, body) = ask(&Arc::default(), &[answer.as_bytes()], false).await.expect("an answer");
    let mut lines: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    lines.sort_unstable();
    assert_eq!(lines, [("a", &b"1"[..]), ("a", b"2"), ("etag", "\u{e9}".as_bytes())]);
    assert_eq!(body, b"ok");
}

#[tokio::test]
async fn a_length_is_kept_only_for_head_and_only_if_it_is_one_number() {
    for (lines, is_head, expected) in [
        ("Content-Length: 30\r\n", true, Some("30")),
        ("Content-Length: 0\r\n", false, None),
        ("Content-Length: 30\r\nTransfer-Encoding: chunked\r\n", true, None),
        ("Content-Length: 30\r\nContent-Length: 31\r\n", true, None),
        ("Content-Length: +30\r\n", true, None),
        ("Content-Length: 30, 30\r\n", true, None),
        ("Content-Length: \r\n", true, None),
        ("Content-Length: 99999999999999999999\r\n", true, None),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        let (_, headers, _) = ask(&Arc::default(), &[answer.as_bytes()], is_head).await.expect("an answer");
        let length = headers.get("content-length").map(|value| value.to_str().expect("digits"));
        assert_eq!((length, headers.contains_key("transfer-encoding")), (expected, false), "{lines}");
    }
}
