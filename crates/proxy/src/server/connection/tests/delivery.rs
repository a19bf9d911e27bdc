//! What a client has not read when its connection ends or is idle.

use std::io::ErrorKind;

use socket2::SockRef;
use tokio::net::TcpSocket;

use super::*;

/// Bytes of a response: several fit into the kernel's buffer for sending, and hardly one into the client's for receiving.
const BYTES: usize = 1000;

const REQUESTS: usize = 3;

const CLOSING: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n";

/// A client that reads nothing sends requests, the last of which is given, and all are answered. Returns once some of what was
/// written cannot be sent.
async fn answered(connections: &Arc<Connections>, last: &[u8]) -> (TcpStream, JoinHandle<()>) {
    answered_with(connections, Bytes::from_static(&[b'x'; BYTES]), last).await
}

/// The same with this body.
async fn answered_with(connections: &Arc<Connections>, body: Bytes, last: &[u8]) -> (TcpStream, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let client = TcpSocket::new_v4().expect("a socket");
    // The kernel's minimum.
    client.set_recv_buffer_size(1).expect("it is open");
    let mut client = client.connect(listener.local_addr().expect("bound")).await.expect("it listens");
    let server = listener.accept().await.expect("a client").0;
    // As the listeners' connections have it.
    SockRef::from(&server).set_send_buffer_size(4096).expect("it is open");
    let stack = tower::service_fn(move |_: Request<Payload>| {
        let body = body.clone();
        async { Ok::<_, Reset>(Response::new(Full::new(body))) }
    });
    let connection = connection_among(connections, server, stack, LastCall::default());
    let activity = Arc::clone(&connection.activity);
    let server = tokio::spawn(connection.serve());
    client.write_all(&[&REQUEST.repeat(REQUESTS - 1), last].concat()).await.expect("the server reads");
    let began = Instant::now();
    while !activity.is_blocked() {
        assert!(began.elapsed() < Duration::from_secs(20), "all was sent, or nobody waits until it is");
        sleep(DELIVERY_INTERVAL / 10).await;
    }
    (client, server)
}

/// Otherwise the kernel keeps the responses for minutes, and they are charged to nobody.
#[tokio::test]
async fn a_connection_keeps_its_place_until_all_is_sent() {
    let connections = connections(usize::MAX);
    let (mut client, server) = answered(&connections, CLOSING).await;
    assert_eq!((connections.count(), server.is_finished()), (1, false));
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.expect("a normal close");
    let answers = String::from_utf8(answers).expect("text");
    assert_eq!(answers.matches('x').count(), REQUESTS * BYTES);
    server.await.expect("no panic");
    assert_eq!(connections.count(), 0);
}

/// Otherwise a client that closes its side could leave a large piece unread on each of its connections.
#[tokio::test]
async fn a_large_write_lasts_as_long_as_the_kernel_has_it() {
    let connections = connections(usize::MAX);
    let client = Some([10, 0, 0, 9].into());
    let _other = connections.large_writes.begin(client).expect("there are two for each client");
    let is_free = || connections.large_writes.begin(client).is_some();
    let (mut reader, server) = answered_with(&connections, vec![b'x'; 64 * 1024].into(), REQUEST).await;
    assert!(!is_free(), "no large write");
    reader.shutdown().await.expect("it is open");
    sleep(DELIVERY_INTERVAL * 2).await;
    assert!(!is_free() && !server.is_finished(), "hyper has ended, and the kernel has it still");
    reader.read_to_end(&mut Vec::new()).await.expect_err("it was closed before its response was written");
    server.await.expect("no panic");
    assert!(is_free());
}

#[tokio::test]
async fn what_is_not_sent_when_a_connection_gives_way_is_discarded() {
    let connections = connections(usize::MAX);
    let (mut client, server) = answered(&connections, CLOSING).await;
    server.abort();
    assert!(server.await.is_err());
    let read = client.read_to_end(&mut Vec::new()).await;
    assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
}

/// Otherwise a client could leave unread what is charged to nobody on each connection that it keeps.
#[tokio::test]
async fn an_idle_connection_is_charged_for_what_is_not_sent() {
    // Crowded, so that a connection is parked as soon as it is idle.
    let connections = connections(OPEN_BYTES + SERVING_BYTES);
    let (mut client, _server) = answered(&connections, REQUEST).await;
    assert!(connections.weight().0 > OPEN_BYTES, "it is not parked");
    let (mut answers, began) = ([0; 4096], Instant::now());
    while connections.weight().0 > OPEN_BYTES {
        assert!(began.elapsed() < Duration::from_secs(20), "it is not parked although all is sent");
        let _ = timeout(DELIVERY_INTERVAL, client.read(&mut answers)).await;
    }
    assert_eq!((connections.count(), connections.weight().0), (1, OPEN_BYTES));
}

/// Otherwise it would get its time twice, and count as one that has just read.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_had_its_time_gets_no_more() {
    let connections = connections(usize::MAX);
    let (_client, io) = duplex(1);
    let mut connection = connection_among(&connections, io, answering(Duration::ZERO), LastCall::default());
    let activity = Arc::clone(&connection.activity);
    sleep(Duration::from_secs(1)).await;
    let (moved, mut serving) = (activity.moved_at(), connection.place.serve(Reclaim::Yes).expect("there is room"));
    assert!(!deliver(|| Outstanding::Unsent(1), &activity, &mut serving).await);
    assert_eq!(activity.moved_at(), moved);
    assert!(activity.is_blocked());
    assert!(!close(&mut *connection.io, connection.arrival.peer, &activity, Ended::Due(Due::Close)).await);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_has_its_time_anew() {
    let connections = connections(usize::MAX);
    let (_client, io) = duplex(1);
    let connection = connection_among(&connections, io, answering(Duration::ZERO), LastCall::default());
    let mut serving = connection.place.serve(Reclaim::Yes).expect("there is room");
    for (a_byte_each, is_delivered) in [(20, true), (40, false)] {
        let began = Instant::now();
        let left = || 5_u64.saturating_sub(began.elapsed().as_secs() / a_byte_each);
        let outstanding = || match left() {
            0 => Outstanding::Unacknowledged,
            bytes => Outstanding::Unsent(bytes.try_into().expect("few")),
        };
        let delivered = deliver(outstanding, &connection.activity, &mut serving).await;
        assert_eq!(delivered, is_delivered, "a byte each {a_byte_each} s");
    }
}

/// A body that cannot be read to its end.
struct CutShort;

impl http_body::Body for CutShort {
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        Poll::Ready(Some(Err(Reset)))
    }
}

/// The number of connections that were reset after a request to this stack.
async fn resets_by(stack: impl Stack) -> usize {
    let (connections, resets) = counted_connections(1000, usize::MAX);
    let (mut client, io) = duplex(1024);
    let served = connection_among(&connections, io, stack, LastCall::default()).serve();
    let asked = async {
        client.write_all(REQUEST).await.expect("the server reads");
        drop(client.read_to_end(&mut Vec::new()).await);
    };
    tokio::join!(served, asked);
    resets()
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_refused_or_cut_short_is_a_reset() {
    let shed = tower::service_fn(|_: Request<Payload>| async { Err::<Response<Full<Bytes>>, _>(Reset) });
    let cut_short = tower::service_fn(|_: Request<Payload>| async { Ok::<_, Reset>(Response::new(CutShort)) });
    let whole = answering(Duration::ZERO);
    assert_eq!([resets_by(shed).await, resets_by(cut_short).await, resets_by(whole).await], [1, 1, 0]);
}
