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

use super::super::connections::{Connections, WaitFor};
use super::super::reset::Reset;
use super::super::socket::LAST;
use super::super::stack::{Payload, Remembering, Stack};
use super::*;
use crate::memory::{OPEN_BYTES, SERVING_BYTES};
use telemetry::Registry;
use telemetry::shedding::Shedding;

mod bodies;
mod by_socket;
mod deadlines;
mod delivery;
mod last;
mod pace;

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
fn answering(delay: Duration) -> impl Stack<Body = Full<Bytes>> {
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

fn connection<I: Socket, S: Stack>(
    io: I,
    stack: S,
    last_call: LastCall,
) -> Connection<I, impl NewStack<Stack = S> + use<I, S>> {
    connection_among(&connections(usize::MAX), io, stack, last_call)
}

fn connections(bytes: usize) -> Arc<Connections> {
    counted_connections(1000, bytes).0
}

/// Connections, and a function that returns how many of them were reset.
fn counted_connections(limit: usize, bytes: usize) -> (Arc<Connections>, impl Fn() -> usize) {
    let registry = Registry::default();
    let shedding = Arc::new(Shedding::new(&registry, Arc::default()));
    let connections = Connections::new(limit, bytes, Arc::default(), shedding, &registry);
    let resets = move || {
        let text = registry.render();
        let line = text.lines().find_map(|line| line.strip_prefix("metadata_proxy_resets_total "));
        line.expect("it is counted").parse().expect("a number")
    };
    (connections, resets)
}

fn connection_among<I: Socket, S: Stack>(
    connections: &Arc<Connections>,
    io: I,
    stack: S,
    last_call: LastCall,
) -> Connection<I, impl NewStack<Stack = S> + use<I, S>> {
    connection_with(connections, io, move |_| stack.clone(), last_call)
}

fn connection_with<I: Socket, N: NewStack>(
    connections: &Arc<Connections>,
    io: I,
    stacks: N,
    last_call: LastCall,
) -> Connection<I, N> {
    connection_from(9, connections, io, stacks, last_call, None)
}

/// A connection of the client with this number, whose bodies may be kept.
fn connection_from<I: Socket, N: NewStack>(
    client: u8,
    connections: &Arc<Connections>,
    io: I,
    stacks: N,
    last_call: LastCall,
    bodies: Option<Arc<Bodies>>,
) -> Connection<I, N> {
    let arrival = Arrival::now(([10, 0, 0, client], 40000).into());
    let activity = Arc::new(Activity::new());
    let Ok(place) = connections.admit(arrival, &activity, WaitFor::Nothing) else { panic!("there is room") };
    let (io, stacks) = (Cuttable::new(io, Arc::clone(&activity)), Arc::new(stacks));
    Connection { io, inbox: Inbox::default(), arrival, stacks, memory: None, last_call, activity, place, bodies }
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
async fn an_invalid_head_gets_the_proxys_own_error_response() {
    let of_http_1_0 = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    for (before, head) in [
        ("", "GET / HTTP/1.1\nHost: metadata\n\n"),
        ("", "GET / HTTP/1.1\r\nHost : metadata\r\n\r\n"),
        ("", "nonsense\r\n\r\n"),
        (of_http_1_0, "nonsense\r\n\r\n"),
    ] {
        let mut client = connect(Duration::ZERO);
        if !before.is_empty() {
            client.send(before.as_bytes()).await;
            assert!(client.read_answer().await.ends_with("answer"));
        }
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

/// Thousands of connections wait for a request, and each has a task.
#[tokio::test]
async fn a_connection_without_a_request_is_small() {
    let (_client, io) = sockets().await;
    let waiting = connection(io, answering(Duration::ZERO), LastCall::default()).serve();
    assert!(size_of_val(&waiting) <= 608, "{}", size_of_val(&waiting));
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
