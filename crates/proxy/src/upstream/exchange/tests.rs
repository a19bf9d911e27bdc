use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use super::super::connection::Connection;
use super::super::pool::Pool;
use super::*;
use crate::failure::MAX_HEAD_BYTES;

/// A response: status, headers, body.
type Answer = (u16, HeaderMap, Vec<u8>);

/// A failure with what had arrived of the response before: headers, and data of the body.
type Failed = (Failure, HeaderMap, Vec<u8>);

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// Sends a request to an upstream that sends these pieces one after the other and then closes.
async fn ask(pool: &Arc<Pool>, pieces: &[&[u8]], is_head: bool) -> Result<Answer, Failed> {
    let (connection, far) = Connection::pair();
    let upstream = play(far, pieces);
    let client = async {
        let response = exchange(pool.lease(connection), GET, is_head).await.map_err(failed)?;
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

async fn play(far: std::net::TcpStream, pieces: &[&[u8]]) {
    far.set_nonblocking(true).expect("an option");
    let mut far = TcpStream::from_std(far).expect("a runtime");
    far.set_nodelay(true).expect("an option");
    far.read_exact(&mut [0; GET.len()]).await.expect("a request");
    for piece in pieces {
        // The other side may have closed by now.
        let _ = far.write_all(piece).await;
        // The runtime looks for what has arrived, and then the client reads it.
        for _ in 0..3 {
            yield_now().await;
        }
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
    assert!(is_reused("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", true).await);
    assert!(!is_reused("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true).await, "a body after HEAD");
}

/// hyper asks for no more than was announced, so the end of the stream is never polled.
#[tokio::test]
async fn a_connection_is_used_again_as_soon_as_the_last_byte_was_taken() {
    let pool = Arc::<Pool>::default();
    let (connection, far) = Connection::pair();
    let answered = exchange(pool.lease(connection), GET, false);
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
    let response = exchange(pool.lease(connection), GET, false).await.expect("a response");
    far.read_exact(&mut [0; GET.len()]).expect("the request");
    drop(response);
    assert_eq!((far.read(&mut [0]).expect("the end"), pool.size()), (0, 0));
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
        Trailer: x\r\nUpgrade: x\r\nTE: x\r\nProxy-Connection: x\r\nContent-Length: 2\r\nA: 1\r\na: 2\r\n\r\nok";
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

/// What hyper's client makes of the same pieces.
async fn ask_hyper(pieces: &[&[u8]], is_head: bool) -> Result<Answer, Failed> {
    let (near, mut far) = duplex(64 * 1024);
    let (mut sender, connection) = http1::Builder::new()
        .read_buf_exact_size(Some(MAX_HEAD_BYTES))
        .handshake::<_, Empty<Bytes>>(TokioIo::new(near))
        .await
        .expect("nothing is sent yet");
    tokio::spawn(connection);
    let upstream = async {
        let mut request = [0; 1000];
        let _ = far.read(&mut request).await;
        for piece in pieces {
            let _ = far.write_all(piece).await;
            for _ in 0..3 {
                yield_now().await;
            }
        }
        let _ = far.shutdown().await;
    };
    let client = async {
        let method = if is_head { http::Method::HEAD } else { http::Method::GET };
        let request = Request::builder().method(method).body(Empty::new()).expect("a request");
        let response = sender.send_request(request).await.map_err(|error| {
            let failure = match &error {
                error if error.is_parse_too_large() => Failure::HeadTooLarge,
                error if error.is_parse() => Failure::NotHttp,
                _ => Failure::Closed,
            };
            failed(failure)
        })?;
        let (head, mut incoming) = response.into_parts();
        let mut body = Vec::new();
        while let Some(frame) = incoming.frame().await {
            match frame {
                Ok(frame) => body.extend(frame.into_data().unwrap_or_default()),
                Err(_) => return Err((Failure::CutShort, head.headers, body)),
            }
        }
        Ok((head.status.as_u16(), head.headers, body))
    };
    tokio::join!(client, upstream).0
}

/// The headers that are passed on. A length is written without leading zeros.
fn end_to_end(headers: &HeaderMap, is_head: bool) -> HeaderMap {
    let mut kept = headers.clone();
    let length = kept.remove(header::CONTENT_LENGTH).filter(|_| is_head && has_one_length(headers));
    if let Some(length) = length
        && !headers.contains_key(header::TRANSFER_ENCODING)
    {
        let length: u64 = length.to_str().expect("digits").parse().expect("19 digits at most");
        kept.insert(header::CONTENT_LENGTH, length.into());
    }
    let connection: Vec<_> = headers.get_all("connection").iter().map(HeaderValue::as_bytes).collect();
    let connection = connection.join(&b',');
    let connection = String::from_utf8_lossy(&connection);
    let hop = "connection,keep-alive,proxy-authenticate,proxy-authorization,proxy-connection,te,trailer,transfer-encoding,upgrade";
    for name in hop.split(',').chain(connection.split(',').map(str::trim)) {
        if let Ok(name) = name.parse::<HeaderName>() {
            kept.remove(name);
        }
    }
    kept
}

fn has_one_length(headers: &HeaderMap) -> bool {
    let lengths: Vec<_> = headers.get_all(header::CONTENT_LENGTH).iter().collect();
    matches!(lengths[..], [one] if !one.is_empty() && one.as_bytes().iter().all(u8::is_ascii_digit) && one.len() < 20)
}

/// What we refuse and hyper accepts: an encoding other than `chunked` alone, and a length that is not one number.
fn is_refused_by_us_alone(headers: &HeaderMap) -> bool {
    let codings: Vec<_> = headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    let is_chunked = matches!(codings[..], [one] if one.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if codings.is_empty() {
        headers.contains_key(header::CONTENT_LENGTH) && !has_one_length(headers)
    } else {
        !is_chunked
    }
}

const STATUS_LINES: [&str; 13] = [
    "HTTP/1.1 200 OK",
    "HTTP/1.1 200 OK",
    "HTTP/1.1 404 Not Found",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304",
    "HTTP/1.1 599 \u{e9}",
    "HTTP/1.0 200 OK",
    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK",
    "HTTP/1.1 100 Continue\r\nTransfer-Encoding: x\r\n\r\nHTTP/1.1 200 OK",
    "HTTP/1.1 101 Switching Protocols",
    "HTTP/1.1 099 OK",
    "HTTP/2.0 200 OK",
    "\r\n\r\nHTTP/1.1 200  OK",
];

const LINES: [&str; 27] = [
    "Metadata-Flavor: Google",
    "ETag: 0123456789abcdef",
    "X: \u{e9}",
    "x:y",
    "Empty:",
    "Connection: close",
    "Connection: keep-alive, X",
    "Connection: \u{e9}",
    "Keep-Alive: timeout=5",
    "Trailer: x",
    "Set-Cookie: a=b",
    "Content-Length: 5",
    "Content-Length: 005",
    "Content-Length: 0",
    "Content-Length: 5, 5",
    "Content-Length: +5",
    "Content-Length: x",
    "Content-Length:",
    "Content-Length: 9223372036854775807",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: CHUNKED",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: gzip",
    " folded",
    "Bad Name: x",
    "Space : x",
];

const BODIES: [&str; 12] = [
    "",
    "hello",
    "hell",
    "hello, world",
    "5\r\nhello\r\n0\r\n\r\n",
    "3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n",
    "05 \r\nhello\r\n000;x\r\n\r\n",
    "5\r\nhello\r\n0\r\nX: y\r\nZ: \r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "6\r\nhello\r\n0\r\n\r\n",
    "5;a\nb\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n",
];

#[derive(Debug, Clone)]
enum Mutation {
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Cut(Index),
    Lengthen(Index, usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let (Self::Set(at, _) | Self::Insert(at, _) | Self::Remove(at) | Self::Cut(at) | Self::Lengthen(at, _)) = self;
        let at = at.index(bytes.len());
        match self {
            Self::Set(_, byte) => bytes[at] = *byte,
            Self::Insert(_, byte) => bytes.insert(at, *byte),
            Self::Remove(_) => drop(bytes.remove(at)),
            Self::Cut(_) => bytes.truncate(at),
            Self::Lengthen(_, by) => drop(bytes.splice(at..at, std::iter::repeat_n(b'x', *by))),
        }
    }
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let byte = || prop_oneof![select(b"\r\n\t :;,0aF\0\x7f\xff".to_vec()), any::<u8>()];
    let one = prop_oneof![
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
        any::<Index>().prop_map(Mutation::Cut),
        (any::<Index>(), 3900_usize..4200).prop_map(|(at, by)| Mutation::Lengthen(at, by)),
    ];
    prop_oneof![2 => Just(Vec::new()), 3 => vec(one, 1..4)]
}

proptest! {
    /// The same responses, whole and mutated, in pieces, read by hyper's client and by this one.
    #[test]
    fn a_response_reads_as_hyper_reads_it(
        status in select(&STATUS_LINES[..]),
        lines in vec(select(&LINES[..]), 0..6),
        body in select(&BODIES[..]),
        mutations in mutations(),
        mut cuts in vec(any::<Index>(), 0..4),
        is_head in prop::bool::weighted(0.2),
    ) {
        let mut bytes = [status, "\r\n", &lines.join("\r\n"), if lines.is_empty() { "" } else { "\r\n" }, "\r\n", body].concat().into_bytes();
        for mutation in &mutations {
            mutation.apply(&mut bytes);
        }
        cuts.sort_by_key(|cut| cut.index(bytes.len() + 1));
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for cut in &cuts {
            let at = cut.index(bytes.len() + 1) - (bytes.len() - rest.len());
            pieces.push(&rest[..at]);
            rest = &rest[at..];
        }
        pieces.push(rest);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (ours, hypers) = runtime.block_on(async {
            (ask(&Arc::default(), &pieces, is_head).await, ask_hyper(&pieces, is_head).await)
        });
        match (ours, hypers) {
            (Ok((status, headers, body)), Ok((expected, from, whole))) => {
                prop_assert_eq!((status, headers, body), (expected, end_to_end(&from, is_head), whole));
            }
            (Err((Failure::NotHttp, ..)), Ok((_, from, _)) | Err((Failure::CutShort, from, _))) => {
                prop_assert!(is_refused_by_us_alone(&from), "{from:?}");
            }
            // hyper does not parse what it knows to be incomplete.
            (Err((Failure::NotHttp, ..)), Err(_)) => {}
            // hyper reads more than this where an interim response came first.
            (Err((Failure::HeadTooLarge, ..)), _)
                if bytes.len() > MAX_HEAD_BYTES && bytes.trim_ascii_start().starts_with(b"HTTP/1.1 1") => {}
            (Err((failure, _, begun)), Err((expected, _, data))) => {
                prop_assert_eq!(failure.label(), expected.label());
                prop_assert!(data.starts_with(&begun));
            }
            // A body is complete with its last chunk, whatever its trailers are.
            (Ok((_, _, body)), Err((Failure::CutShort, _, data))) => prop_assert_eq!(body, data),
            (Err((failure, ..)), Ok(_)) => prop_assert!(false, "only ours: {failure}"),
            (Ok(_), Err((failure, ..))) => prop_assert!(false, "only hyper: {failure}"),
        }
    }
}
