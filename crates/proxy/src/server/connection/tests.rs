//! One connection with paused time, over an in-memory pipe.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::Full;
use tokio::io::{DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, Sleep, sleep};

use super::super::connections::{Admission, Connections, WaitFor};
use super::super::reset::Reset;
use super::super::socket::{Cuttable, LAST};
use super::super::stack::{Payload, Remembering, Stack};
use super::*;
use crate::memory::{OPEN_BYTES, SERVING_BYTES};
use crate::server::TIMEOUTS;
use telemetry::Registry;

mod bodies;
mod delivery;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata\r\n\r\n";

/// A connection to a stack that takes this long for each response.
struct Client {
    io: DuplexStream,
    last_call: LastCall,
    server: JoinHandle<()>,
}

fn connect(delay: Duration) -> Client {
    let (io, other_end) = duplex(64 * 1024);
    let last_call = LastCall::default();
    let server = tokio::spawn(connection(other_end, answering(delay), last_call.clone()).serve());
    Client { io, last_call, server }
}

/// A stack that takes this long for each response.
fn answering(delay: Duration) -> impl Stack<Body = Full<Bytes>, Future: Send> + Send + Sync {
    tower::service_fn(move |_: Request<Payload>| async move {
        sleep(delay).await;
        Ok::<_, Reset>(Response::new(Full::new(Bytes::from_static(b"answer"))))
    })
}

/// Both ends of a connection: the client's and the server's.
async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
    (client, listener.accept().await.expect("a client").0)
}

fn connection<I, S: Stack>(
    io: I,
    stack: S,
    last_call: LastCall,
) -> Connection<I, impl NewStack<Stack = S> + use<I, S>> {
    connection_among(&connections(usize::MAX), io, stack, last_call)
}

fn connections(bytes: usize) -> Arc<Connections> {
    Connections::new(1000, bytes, Arc::default(), Arc::default(), &Registry::default())
}

fn connection_among<I, S: Stack>(
    connections: &Arc<Connections>,
    io: I,
    stack: S,
    last_call: LastCall,
) -> Connection<I, impl NewStack<Stack = S> + use<I, S>> {
    connection_with(connections, io, move |_| stack.clone(), last_call)
}

fn connection_with<I, N: NewStack>(
    connections: &Arc<Connections>,
    io: I,
    stacks: N,
    last_call: LastCall,
) -> Connection<I, N> {
    connection_from(9, connections, io, stacks, last_call, None)
}

/// A connection of the client with this number, whose bodies may be kept.
fn connection_from<I, N: NewStack>(
    client: u8,
    connections: &Arc<Connections>,
    io: I,
    stacks: N,
    last_call: LastCall,
    bodies: Option<Arc<Bodies>>,
) -> Connection<I, N> {
    let arrival = Arrival::now(([10, 0, 0, client], 40000).into());
    let activity = Arc::new(Activity::new());
    let Admission::Place(place) = connections.admit(arrival, &activity, WaitFor::Nothing) else {
        panic!("there is room")
    };
    let stacks = Arc::new(stacks);
    Connection {
        io,
        inbox: Inbox::default(),
        arrival,
        stacks,
        memory: None,
        timeouts: TIMEOUTS,
        last_call,
        activity,
        place,
        bodies,
    }
}

impl Client {
    async fn send(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the server reads");
    }

    /// Reads until the server closes.
    async fn read_to_end(&mut self) -> String {
        let mut text = String::new();
        self.io.read_to_string(&mut text).await.expect("the server writes text");
        text
    }

    async fn read_answer(&mut self) -> String {
        let mut bytes = vec![0; 1024];
        let read = self.io.read(&mut bytes).await.expect("the server writes");
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_cut_ten_seconds_after_its_first_byte() {
    let mut client = connect(Duration::ZERO);
    sleep(Duration::from_secs(30)).await;
    let began = Instant::now();
    for byte in &REQUEST[..2] {
        client.send(&[*byte]).await;
        sleep(Duration::from_millis(4900)).await;
    }
    assert!(!client.server.is_finished(), "9.8 s are allowed");
    assert_eq!(client.read_to_end().await, "");
    assert_eq!(began.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_75_seconds() {
    for request_first in [false, true] {
        let mut client = connect(Duration::ZERO);
        if request_first {
            client.send(REQUEST).await;
            assert!(client.read_answer().await.ends_with("answer"));
        }
        let began = Instant::now();
        assert_eq!(client.read_to_end().await, "");
        assert!((75..=90).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_used_every_minute_stays_open() {
    let mut client = connect(Duration::ZERO);
    for _ in 0..10 {
        client.send(REQUEST).await;
        assert!(client.read_answer().await.ends_with("answer"));
        sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_may_take_longer_than_the_idle_timeout() {
    let mut client = connect(Duration::from_secs(600));
    client.send(REQUEST).await;
    assert!(client.read_answer().await.ends_with("answer"));
}

#[tokio::test(start_paused = true)]
async fn the_drain_closes_connections_a_second_after_their_last_response() {
    for (idle, lives) in [(5, 0), (0, 1)] {
        let mut client = connect(Duration::ZERO);
        client.send(REQUEST).await;
        client.read_answer().await;
        sleep(Duration::from_secs(idle)).await;
        let began = Instant::now();
        client.last_call.call();
        assert_eq!(client.read_to_end().await, "");
        assert_eq!(began.elapsed().as_secs(), lives);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_during_the_drain_is_answered_with_connection_close() {
    let mut client = connect(Duration::ZERO);
    client.send(REQUEST).await;
    client.read_answer().await;
    client.last_call.call();
    sleep(Duration::from_millis(500)).await;
    client.send(REQUEST).await;
    let answer = client.read_to_end().await;
    assert!(answer.contains("Connection: close") && answer.ends_with("answer"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_response_is_cut_after_thirty_seconds() {
    let (mut io, other_end) = duplex(16);
    let stack = tower::service_fn(|_: Request<Payload>| async {
        Ok::<_, Reset>(Response::new(Full::new(Bytes::from(vec![b'x'; 100_000]))))
    });
    let server = tokio::spawn(connection(other_end, stack, LastCall::default()).serve());
    tokio::spawn(async move {
        io.write_all(REQUEST).await.expect("the server reads");
        sleep(Duration::from_secs(20)).await;
        let mut little = [0; 16];
        io.read_exact(&mut little).await.expect("the beginning");
        sleep(Duration::from_secs(3600)).await;
    });
    let began = Instant::now();
    server.await.expect("no panic");
    assert_eq!(began.elapsed().as_secs(), 50, "30 s after it last read");
}

#[tokio::test(start_paused = true)]
async fn the_drain_lets_a_request_in_flight_finish_and_then_closes() {
    let mut client = connect(Duration::from_secs(2));
    client.send(REQUEST).await;
    sleep(Duration::from_secs(1)).await;
    client.last_call.call();
    let answer = client.read_to_end().await;
    assert!(answer.contains("Connection: close") && answer.ends_with("answer"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_head_gets_the_proxys_own_error_response() {
    for head in ["GET / HTTP/1.1\nHost: metadata\n\n", "GET / HTTP/1.1\r\nHost : metadata\r\n\r\n", "nonsense\r\n\r\n"]
    {
        let mut client = connect(Duration::ZERO);
        client.send(head.as_bytes()).await;
        let answer = client.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("Metadata-Flavor: Google\r\n"), "{answer}");
        assert!(answer.ends_with("Bad request: this is not well-formed HTTP/1.1.\n"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_head_does_not_drop_the_response_before_it() {
    let mut client = connect(Duration::from_secs(1));
    client.send(&[REQUEST, b"GET / HTTP/1.1\nHost: metadata\n\n"].concat()).await;
    let answers = client.read_to_end().await;
    assert!(answers.contains("answer"), "{answers}");
    assert!(answers.contains("HTTP/1.1 400 "), "{answers}");
}

#[tokio::test(start_paused = true)]
async fn only_a_response_before_a_close_is_written_as_last() {
    for (version, options, is_last) in [
        ("1.0", "", true),
        ("1.0", "Connection: close\r\n", true),
        ("1.0", "Connection: keep-alive\r\n", false),
        ("1.1", "", false),
        ("1.1", "Connection: close\r\n", true),
        ("1.1", "Connection: Close\r\n", true),
        ("1.1", "Connection: keep-alive\r\n", false),
        // The connection lingers.
        ("1.1", "Connection: close\r\nContent-Length: 5\r\n", false),
    ] {
        LAST.take();
        let mut client = connect(Duration::ZERO);
        client.send(format!("GET / HTTP/{version}\r\nHost: metadata\r\n{options}\r\n").as_bytes()).await;
        let answer = client.read_answer().await;
        assert!(answer.ends_with("answer"), "{answer}");
        let last = String::from_utf8(LAST.take()).expect("text");
        assert_eq!(last, if is_last { &answer } else { "" }, "HTTP/{version} {options}");
        if is_last {
            assert_eq!(client.read_to_end().await, "");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_response_of_a_drain_is_written_as_last() {
    let mut client = connect(Duration::from_secs(2));
    client.send(REQUEST).await;
    sleep(Duration::from_secs(1)).await;
    client.last_call.call();
    let answer = client.read_to_end().await;
    assert_eq!(String::from_utf8(LAST.take()).expect("text"), answer);
}

/// A body of several chunks, one second apart.
struct Pieces {
    left: u8,
    next: Pin<Box<Sleep>>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        ready!(self.next.as_mut().poll(cx));
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        *self = Self { left, next: Box::pin(sleep(Duration::from_secs(1))) };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
    }
}

/// No chunk of a streamed response is held back.
#[tokio::test(start_paused = true)]
async fn only_the_last_chunk_is_written_as_last() {
    let (mut io, other_end) = duplex(1024);
    let stack = tower::service_fn(|_: Request<Payload>| async {
        Ok::<_, Reset>(Response::new(Pieces { left: 3, next: Box::pin(sleep(Duration::ZERO)) }))
    });
    tokio::spawn(connection(other_end, stack, LastCall::default()).serve());
    io.write_all(b"GET / HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n").await.expect("the server reads");
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.expect("text");
    assert_eq!(answer.matches("piece").count(), 3, "{answer}");
    assert_eq!(String::from_utf8(LAST.take()).expect("text"), "0\r\n\r\n");
}

/// A connection over a real socket to a stack that takes this long for each response.
async fn connect_by_socket(connections: &Arc<Connections>, delay: Duration) -> TcpStream {
    let (client, io) = sockets().await;
    tokio::spawn(connection_among(connections, io, answering(delay), LastCall::default()).serve());
    client
}

async fn read_answers(client: &mut TcpStream, count: usize) {
    let mut text = String::new();
    while text.matches("answer").count() < count {
        let mut bytes = [0; 1024];
        let read = client.read(&mut bytes).await.expect("the server writes");
        assert!(read > 0, "closed behind {text:?}");
        text += &String::from_utf8_lossy(&bytes[..read]);
    }
    assert_eq!(text.matches(" 200 OK").count(), count, "{text}");
}

/// In any split, the bytes gathered and those that hyper reads form the head.
#[tokio::test]
async fn a_head_in_pieces_is_read_completely() {
    let long = format!("GET / HTTP/1.1\r\nHost: metadata\r\nUser-Agent: {}\r\n\r\n", "x".repeat(3000));
    let connections = connections(usize::MAX);
    for (head, cuts) in [(REQUEST, 1..REQUEST.len()), (long.as_bytes(), 2030..2080)] {
        for cut in cuts {
            let mut client = connect_by_socket(&connections, Duration::ZERO).await;
            client.write_all(&head[..cut]).await.expect("the server is there");
            for _ in 0..5 {
                yield_now().await;
            }
            client.write_all(&head[cut..]).await.expect("the server is there");
            read_answers(&mut client, 1).await;
        }
    }
}

/// When crowded, hyper's state is dropped after each response. Requests that were already received, in full or
/// in part, are not lost.
#[tokio::test]
async fn all_pipelined_requests_are_answered_when_crowded() {
    let connections = connections(OPEN_BYTES + SERVING_BYTES);
    let mut client = connect_by_socket(&connections, Duration::ZERO).await;
    for _ in 0..3 {
        client.write_all(REQUEST).await.expect("the server is there");
        read_answers(&mut client, 1).await;
        client.write_all(&REQUEST.repeat(100)).await.expect("the server is there");
        read_answers(&mut client, 100).await;
        client.write_all(&[REQUEST, &REQUEST[..20]].concat()).await.expect("the server is there");
        read_answers(&mut client, 1).await;
        client.write_all(&[&REQUEST[20..], b"\r\n"].concat()).await.expect("the server is there");
        read_answers(&mut client, 1).await;
        while connections.weight().0 > OPEN_BYTES {
            yield_now().await;
        }
    }
}

/// When not crowded, hyper's state is kept for the next request.
#[tokio::test]
async fn a_connection_keeps_hypers_state_when_not_crowded() {
    let connections = connections(usize::MAX);
    let mut client = connect_by_socket(&connections, Duration::ZERO).await;
    client.write_all(REQUEST).await.expect("the server is there");
    read_answers(&mut client, 1).await;
    assert!(connections.weight().0 > OPEN_BYTES);
}

/// Pipelined requests: each is read only when the previous one was answered.
#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let connections = connections(usize::MAX);
    let mut client = connect_by_socket(&connections, Duration::from_millis(2)).await;
    client.write_all(&REQUEST.repeat(30)).await.expect("the server is there");
    read_answers(&mut client, 30).await;
}

/// The kernel discards what was not yet sent if a socket is closed with unread bytes.
#[tokio::test]
async fn a_last_response_arrives_although_the_client_sent_more() {
    for last in ["HTTP/1.0\r\n", "HTTP/1.1\r\nConnection: close\r\n"] {
        let mut client = connect_by_socket(&connections(usize::MAX), Duration::from_millis(20)).await;
        client.write_all(format!("GET / {last}Host: metadata\r\n\r\n").as_bytes()).await.expect("the server is there");
        sleep(Duration::from_millis(5)).await;
        // On a busy machine the server may have closed already.
        let _ = client.write_all(REQUEST).await;
        read_answers(&mut client, 1).await;
    }
}

/// When a client disconnects, its connection ends, and so does its request, even if it sent more bytes after
/// the request.
#[tokio::test]
async fn a_disconnect_after_unread_bytes_is_detected() {
    for rest in [&b""[..], b"\r\n", b"\n", b" ", b"x", REQUEST, &REQUEST[..20], &[b'x'; 5000]] {
        let connections = connections(usize::MAX);
        let mut client = connect_by_socket(&connections, Duration::from_secs(3600)).await;
        client.write_all(REQUEST).await.expect("the server is there");
        while connections.weight().0 == OPEN_BYTES {
            yield_now().await;
        }
        client.write_all(rest).await.expect("the server is there");
        for _ in 0..5 {
            yield_now().await;
        }
        drop(client);
        let gone = async {
            while connections.weight().0 > 0 {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), gone).await.unwrap_or_else(|_| panic!("a ghost, with {} bytes", rest.len()));
    }
}

/// A client that waits for a response gets a reset, so that it retries. Between requests it gets a normal
/// close.
#[tokio::test]
async fn a_connection_that_is_cut_is_reset_unless_between_requests() {
    for (sent, answers, is_reset) in
        [("", 0, true), ("GET / HT", 0, true), ("GET / HTTP/1.1\r\nHost: metadata\r\n\r\n", 1, false)]
    {
        let connections = Connections::new(1, usize::MAX, Arc::default(), Arc::default(), &Registry::default());
        let (mut client, io) = sockets().await;
        let activity = Arc::new(Activity::new());
        let arrival = Arrival::now(([10, 0, 0, 9], 40000).into());
        let Admission::Place(place) = connections.admit(arrival, &activity, WaitFor::Nothing) else {
            panic!("there is room")
        };
        let number = place.number();
        let io = Cuttable::new(io, Arc::clone(&activity));
        let last_call = LastCall::default();
        let inbox = Inbox::default();
        let served = Connection {
            io,
            inbox,
            arrival,
            stacks: Arc::new(|_| answering(Duration::ZERO)),
            memory: None,
            timeouts: TIMEOUTS,
            last_call,
            activity,
            place,
            bodies: None,
        };
        connections.started(number, tokio::spawn(served.serve()).abort_handle());
        client.write_all(sent.as_bytes()).await.expect("the server is there");
        read_answers(&mut client, answers).await;
        for _ in 0..5 {
            yield_now().await;
        }
        let newcomer = connections.admit(arrival, &Arc::new(Activity::new()), WaitFor::Nothing);
        assert!(matches!(newcomer, Admission::Place(_)));
        let ended = client.read(&mut [0; 16]).await.map_err(|error| error.kind());
        let expected = if is_reset { Err(std::io::ErrorKind::ConnectionReset) } else { Ok(0) };
        assert_eq!(ended, expected, "{sent:?}");
    }
}

/// A request waits while there is no memory to serve it.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_memory_until_its_timeout() {
    let connections = connections(2 * (OPEN_BYTES + SERVING_BYTES) - 1);
    let mut first = connect_by_socket(&connections, Duration::from_secs(2)).await;
    first.write_all(REQUEST).await.expect("the server is there");
    while connections.weight().0 == OPEN_BYTES {
        yield_now().await;
    }
    let mut second = connect_by_socket(&connections, Duration::from_secs(10)).await;
    second.write_all(REQUEST).await.expect("the server is there");
    read_answers(&mut first, 1).await;
    drop(first);
    // The second is served now and takes longer than the third may wait.
    sleep(Duration::from_millis(100)).await;
    let mut third = connect_by_socket(&connections, Duration::ZERO).await;
    third.write_all(REQUEST).await.expect("the server is there");
    let ended = third.read(&mut [0; 16]).await.map_err(|error| error.kind());
    assert_eq!(ended, Err(std::io::ErrorKind::ConnectionReset));
    read_answers(&mut second, 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_stacks_share_is_made_once_and_outlives_parking() {
    let (mut client, io) = sockets().await;
    let [shared, stacks] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let (of_shared, of_stacks) = (Arc::clone(&shared), Arc::clone(&stacks));
    let remember = move |_| of_shared.fetch_add(1, Relaxed);
    let new_stack = move |_, number: &usize| {
        of_stacks.fetch_add(1, Relaxed);
        let answer = Bytes::from(format!("answer {number}"));
        tower::service_fn(move |_: Request<Payload>| {
            let answer = answer.clone();
            async move { Ok::<_, Reset>(Response::new(Full::new(answer))) }
        })
    };
    let stack = Remembering(remember, new_stack);
    let serving = connection_with(&connections(usize::MAX), io, stack, LastCall::default()).serve();
    let serving = tokio::spawn(serving);
    assert_eq!(shared.load(Relaxed), 0, "it has sent nothing");
    for number in 1..=3 {
        client.write_all(REQUEST).await.expect("the server reads");
        let mut bytes = [0; 1024];
        let read = client.read(&mut bytes).await.expect("the server writes");
        assert!(bytes[..read].ends_with(b"answer 0"));
        sleep(PARK_TIMEOUT * 2).await;
        assert_eq!((shared.load(Relaxed), stacks.load(Relaxed)), (1, number));
    }
    serving.abort();
}
