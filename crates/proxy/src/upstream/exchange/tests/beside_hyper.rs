//! The same responses, read by hyper's client and by this one.

use http::{HeaderName, HeaderValue, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::duplex;

use super::*;

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
            settle().await;
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
