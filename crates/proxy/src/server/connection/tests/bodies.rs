//! Bodies of requests: those that are read and skipped, and those that end the connection.

use std::sync::Mutex;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::runtime::Builder;

use super::*;

/// The chunked body that is read.
const EMPTY: &[u8] = b"0\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_request_body_is_closed_after_the_response() {
    let mut client = connect(Duration::ZERO);
    client.send(b"GET / HTTP/1.1\r\nHost: metadata\r\nContent-Length: 5\r\n\r\nGET /").await;
    client.send(REQUEST).await;
    let answers = client.read_to_end().await;
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
    assert!(answers.contains("Connection: close"), "{answers}");
}

#[tokio::test(start_paused = true)]
async fn a_short_body_of_a_post_is_read_before_the_response_and_the_connection_goes_on() {
    let mut client = connect(Duration::ZERO);
    client.send(b"POST / HTTP/1.1\r\nHost: metadata\r\nContent-Length: 5\r\n\r\n\n\n").await;
    sleep(Duration::from_secs(9)).await;
    client.send(b"\n\n\n").await;
    assert!(client.read_answer().await.ends_with("answer"));
    client.send(REQUEST).await;
    assert!(client.read_answer().await.ends_with("answer"));
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_is_cut_ten_seconds_after_its_head() {
    let mut client = connect(Duration::ZERO);
    let began = Instant::now();
    client.send(b"POST / HTTP/1.1\r\nHost: metadata\r\nContent-Length: 50\r\n\r\n").await;
    for _ in 0..5 {
        client.send(b"\n").await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(client.read_to_end().await, "");
    assert_eq!(began.elapsed().as_secs(), 10);
}

/// A connection to a stack that answers with what follows the head.
fn connect_to_payloads() -> Client {
    let (io, other_end) = duplex(64 * 1024);
    let stack = tower::service_fn(|request: Request<Payload>| async move {
        Ok::<_, Reset>(Response::new(Full::new(Bytes::from(format!("{:?}", request.body())))))
    });
    let last_call = LastCall::default();
    let server = tokio::spawn(connection(other_end, stack, last_call.clone()).serve());
    Client { io, last_call, server }
}

const CHUNKED: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata\r\nTransfer-Encoding: chunked\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn an_empty_chunked_body_is_read_before_the_response_and_the_connection_goes_on() {
    for cut in 0..=EMPTY.len() {
        let mut client = connect_to_payloads();
        client.send(&[CHUNKED, &EMPTY[..cut]].concat()).await;
        sleep(Duration::from_secs(9)).await;
        client.send(&[&EMPTY[cut..], REQUEST].concat()).await;
        let mut answers = String::new();
        while answers.matches("Empty").count() < 2 {
            answers += &client.read_answer().await;
        }
        assert!(!answers.contains("Connection: close"), "{answers}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_chunked_body_is_not_read_and_the_connection_closes() {
    for body in ["1\r\na\r\n0\r\n\r\n", "0\r\nA: b\r\n\r\n", "00\r\n\r\n", "0;", "x"] {
        for pieces in [vec![body.as_bytes()], body.as_bytes().chunks(1).collect()] {
            let mut client = connect_to_payloads();
            client.send(CHUNKED).await;
            for piece in pieces {
                yield_now().await;
                // The server may have closed already.
                let _ = client.io.write_all(piece).await;
            }
            let _ = client.io.write_all(REQUEST).await;
            let answers = client.read_to_end().await;
            assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{body:?}: {answers}");
            assert!(answers.contains("Connection: close") && answers.ends_with("Some"), "{body:?}: {answers}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_chunked_body_that_does_not_end_is_cut_ten_seconds_after_its_head() {
    let mut client = connect_to_payloads();
    let began = Instant::now();
    client.send(&[CHUNKED, b"0\r\n"].concat()).await;
    assert_eq!(client.read_to_end().await, "");
    assert_eq!(began.elapsed().as_secs(), 10);
}

/// A request's target, and whether a body follows it that is not empty.
type Seen = (String, Payload);

/// What a strict reader finds in a stream: the requests, up to the one after which the connection ends, and whether the body of
/// each is whole.
fn read_strictly(mut stream: &[u8]) -> Vec<(Seen, bool)> {
    let mut found = Vec::new();
    loop {
        while let Some(rest) = stream.strip_prefix(b"\r\n") {
            stream = rest;
        }
        let Some(end) = stream.windows(4).position(|window| window == b"\r\n\r\n") else { return found };
        let Some((target, body)) = read_head(&stream[..end]) else { return found };
        stream = &stream[end + 4..];
        let length = match body {
            Announced::Length(length) => length,
            Announced::Chunked if EMPTY.starts_with(stream) || stream.starts_with(EMPTY) => EMPTY.len(),
            Announced::Chunked | Announced::Other => {
                found.push(((target, Payload::Some), true));
                return found;
            }
        };
        let is_whole = stream.len() >= length;
        let is_empty = length == 0 || is_whole && body == Announced::Chunked;
        found.push(((target, if is_empty { Payload::Empty } else { Payload::Some }), is_whole));
        if !is_whole {
            return found;
        }
        stream = &stream[length..];
    }
}

/// What a head announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announced {
    /// A body of this length, which is skipped, or none.
    Length(usize),
    /// One that is skipped if it is empty.
    Chunked,
    /// One after which the connection ends.
    Other,
}

/// The target of a head, and what it announces. `None` if it is malformed.
fn read_head(head: &[u8]) -> Option<(String, Announced)> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let line: Vec<&str> = lines.next()?.split(' ').collect();
    let [method, target, "HTTP/1.1"] = line[..] else { return None };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte == b'-' || byte.is_ascii_uppercase());
    if !is_method || !target.starts_with('/') {
        return None;
    }
    let (mut lengths, mut codings) = (Vec::new(), Vec::new());
    for line in lines {
        let (name, value) = line.split_once(": ").filter(|(_, value)| !value.contains(['\n', '\r', '\0']))?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value.trim().parse::<u64>().ok().filter(|_| !value.contains(['+', '-']))?),
            "transfer-encoding" => codings.push(value.to_ascii_lowercase()),
            _ => {}
        }
    }
    if codings.last().is_some_and(|coding| coding != "chunked") || lengths.iter().any(|length| *length != lengths[0]) {
        return None;
    }
    let announced = match (&lengths[..], &codings[..]) {
        ([] | [0, ..], []) => Announced::Length(0),
        ([length], []) if method == "POST" && *length <= 64 * 1024 => {
            Announced::Length(usize::try_from(*length).expect("small"))
        }
        ([], [_]) => Announced::Chunked,
        _ => Announced::Other,
    };
    Some((target.to_owned(), announced))
}

/// The requests that the stack gets of a stream, in pieces that come a moment apart. The answers are read to the end.
async fn seen_of(stream: &[u8], cuts: &[usize]) -> Vec<Seen> {
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    let record = Arc::clone(&seen);
    let stack = tower::service_fn(move |request: Request<Payload>| {
        record.lock().expect("no panic").push((request.uri().path().to_owned(), request.body().clone()));
        async { Ok::<_, Reset>(Response::new(Full::new(Bytes::from_static(b"answer")))) }
    });
    let (io, other_end) = duplex(256 * 1024);
    let server = tokio::spawn(connection(other_end, stack, LastCall::default()).serve());
    let (mut answers, mut io) = tokio::io::split(io);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).chain([0, stream.len()]).collect();
    cuts.sort_unstable();
    for range in cuts.windows(2) {
        // The server may have closed already.
        let _ = io.write_all(&stream[range[0]..range[1]]).await;
        sleep(Duration::from_millis(1)).await;
    }
    let _ = io.shutdown().await;
    answers.read_to_end(&mut Vec::new()).await.expect("the server writes");
    server.await.expect("no panic");
    Arc::try_unwrap(seen).expect("the stack is gone").into_inner().expect("no panic")
}

/// A request whose body its head announces well or badly.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let piece = select(vec![
        &br#"{"certificate_chain":""#[..],
        b"-----BEGIN CERTIFICATE-----",
        b"\n",
        b"\r\n",
        b"\r",
        b"\0",
        b"\xff",
        b" ",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"00\r\n\r\n",
        b"0\r\nTrailer: a\r\n\r\n",
        b"GET /hidden HTTP/1.1\r\nHost: metadata\r\n\r\n",
        b"POST /hidden HTTP/1.1\r\nHost: metadata\r\nContent-Length: 9\r\n\r\n",
    ]);
    let body = (vec(piece, 0..8), select(vec![1_usize, 1, 1, 1, 1, 1, 1, 500]));
    let announced = select(vec![
        "Content-Length: LENGTH",
        "Content-Length: LENGTH",
        "content-length: 00LENGTH",
        "Content-Length: LENGTH0",
        "Content-Length: 1",
        "Content-Length: 0",
        "Content-Length: 9999999999",
        "Content-Length: 99999999999999999999",
        "Content-Length: -1",
        "Content-Length: +1",
        "Content-Length: LENGTH\r\nContent-Length: LENGTH",
        "Content-Length: LENGTH\r\nContent-Length: 1",
        "Content-Length: LENGTH\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 0",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: Chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Expect: 100-continue\r\nContent-Length: LENGTH",
        "X-No: body",
    ]);
    (select(vec!["POST", "POST", "POST", "GET", "HEAD"]), announced, body).prop_map(|(method, announced, body)| {
        let body = body.0.concat().repeat(body.1);
        let announced = announced.replace("LENGTH", &body.len().to_string());
        let head = format!("{method} /shown HTTP/1.1\r\nHost: metadata\r\n{announced}\r\n\r\n");
        [head.into_bytes(), body].concat()
    })
}

proptest! {
    /// No part of a body is taken for a request, and no request for a part of a body.
    #[test]
    fn the_stack_gets_the_requests_that_a_strict_reader_finds(
        messages in vec(message(), 1..4),
        cuts in vec(any::<usize>(), 0..4),
    ) {
        let stream = [&messages.concat()[..], REQUEST].concat();
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("it needs nothing");
        let seen = runtime.block_on(seen_of(&stream, &cuts));
        let found = read_strictly(&stream);
        // A client that leaves within a body may get no answer.
        let is_last_certain = found.last().is_none_or(|(_, is_whole)| *is_whole);
        let mut found: Vec<Seen> = found.into_iter().map(|(request, _)| request).collect();
        if !is_last_certain && seen.len() < found.len() {
            found.pop();
        }
        prop_assert_eq!(seen, found, "{}", stream.escape_ascii());
    }
}

/// A connection of this client to a stack that answers with the body that was kept.
fn post(client: u8, bodies: &Arc<Bodies>) -> Client {
    let (io, other_end) = duplex(64 * 1024);
    let stacks = |_| {
        tower::service_fn(|request: Request<Payload>| async move {
            Ok::<_, Reset>(Response::new(Full::new(Bytes::from(format!("{:?}", request.body())))))
        })
    };
    let last_call = LastCall::default();
    let bodies = Some(Arc::clone(bodies));
    let connection = connection_from(client, &connections(usize::MAX), other_end, stacks, last_call.clone(), bodies);
    Client { io, last_call, server: tokio::spawn(connection.serve()) }
}

const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: metadata\r\nContent-Length: 2\r\n\r\n";

/// What the stack was given for a body that is sent at once.
async fn posted(client: u8, bodies: &Arc<Bodies>) -> Option<String> {
    let mut client = post(client, bodies);
    client.send(&[POST, b"ab"].concat()).await;
    timeout(Duration::from_secs(1), client.read_answer()).await.ok()
}

const KEPT: &str = "Posted([97, 98])";

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_its_bodies_slowly_waits_for_itself() {
    let bodies = Arc::default();
    let mut slow: Vec<_> = std::iter::repeat_with(|| post(1, &bodies)).take(4).collect();
    for client in &mut slow {
        client.send(&[POST, b"a"].concat()).await;
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(posted(1, &bodies).await, None);
    // What has no body, or one that is not read, does not wait.
    for length in [0, 100_000] {
        let mut client = post(1, &bodies);
        client.send(format!("POST / HTTP/1.1\r\nHost: metadata\r\nContent-Length: {length}\r\n\r\n").as_bytes()).await;
        assert!(client.read_answer().await.ends_with("Posted([])"), "{length}");
    }
    assert!(posted(2, &bodies).await.is_some_and(|answer| answer.ends_with(KEPT)));
    slow[0].send(b"b").await;
    assert!(slow[0].read_answer().await.ends_with(KEPT));
    assert!(posted(1, &bodies).await.is_some_and(|answer| answer.ends_with(KEPT)));
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_of_those_who_hold_most_make_place_for_another_client() {
    let bodies = Arc::default();
    let mut slow: Vec<_> = (0..32).map(|number| post(1 + number / 4, &bodies)).collect();
    for client in &mut slow {
        client.send(&[POST, b"a"].concat()).await;
    }
    sleep(Duration::from_millis(1)).await;
    assert!(posted(9, &bodies).await.is_some_and(|answer| answer.ends_with(KEPT)));
    let mut answers = Vec::new();
    for client in &mut slow {
        client.send(&[b"b", REQUEST].concat()).await;
        answers.push(client.read_answer().await);
    }
    let kept = answers.iter().filter(|answer| answer.contains(KEPT)).count();
    assert_eq!(kept, 31, "{answers:#?}");
    assert!(answers.iter().all(|answer| !answer.contains("Connection: close")), "{answers:#?}");
}
