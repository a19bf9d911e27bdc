use std::future::pending;

use base::hook::Hook;
use http::HeaderMap;
use telemetry::latency::EndpointClass;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::*;

/// A client of the server that listens there, and what it says of the server's health.
fn client_of(listener: &TcpListener) -> (UpstreamClient, Arc<Health>) {
    let target = Target::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a target");
    let health = Arc::<Health>::default();
    let room = Room::new(0, Hook::new(Arc::new(|_| false)));
    (UpstreamClient::new(target, Arc::clone(&health), room, Arc::default()), health)
}

fn request(kind: RequestKind) -> Outgoing {
    Outgoing {
        bytes: b"GET".as_slice().into(),
        is_head: false,
        endpoint: EndpointClass::Leaf,
        kind,
        peer: None,
        headers: HeaderMap::new(),
    }
}

/// Asks a server that does not answer, and gives up after this time. Returns how the server's health is described.
async fn given_up_after(millis: u64, kind: RequestKind) -> Option<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (client, health) = client_of(&listener);
    let asked = timeout(Duration::from_millis(millis), client.send(&mut request(kind))).await;
    assert!(asked.is_err(), "the server answers nothing");
    health.failure()
}

#[tokio::test]
async fn a_head_that_a_pod_can_make_too_large_says_nothing_about_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (client, health) = client_of(&listener);
    let server = async {
        let (mut far, _) = listener.accept().await.expect("a connection");
        let head = format!("HTTP/1.1 301 Moved\r\nLocation: /?{}\r\n\r\n", "x".repeat(5000));
        far.write_all(head.as_bytes()).await.expect("it is open");
        far
    };
    let mut outgoing = request(RequestKind::Ordinary);
    let (answer, _far) = tokio::join!(client.send(&mut outgoing), server);
    assert!(matches!(answer, Err(Failure::HeadTooLarge)), "{answer:?}");
    assert_eq!(health.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_clients_give_up_before_it_answers_has_failed() {
    for millis in [800, 2499] {
        let failure = format!("it had not answered after {millis} ms, when the request was given up");
        assert_eq!(given_up_after(millis, RequestKind::Ordinary).await, Some(failure));
    }
}

/// Otherwise each client that gives up before the deadline would find another connection of a server that is gone.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_leaves_no_connection_to_the_next() {
    for (millis, left) in [(799, 1), (800, 0)] {
        let client = client_of(&TcpListener::bind("127.0.0.1:0").await.expect("a port")).0;
        let pool = &client.server.pool;
        let far = [(); 2].map(|()| {
            let (connection, far) = Connection::pair();
            pool.lease(connection).finish();
            far
        });
        let mut outgoing = request(RequestKind::Ordinary);
        let asked = timeout(Duration::from_millis(millis), client.send(&mut outgoing)).await;
        assert!(asked.is_err(), "nobody answers");
        assert_eq!(pool.size(), left, "given up after {millis} ms");
        drop(far);
    }
}

/// As under a flood: requests take turns.
#[tokio::test(start_paused = true)]
async fn a_server_whose_answer_had_no_turn_has_not_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (client, health) = client_of(&listener);
    let mut outgoing = request(RequestKind::Ordinary);
    let mut asked = Box::pin(client.send(&mut outgoing));
    let server = async {
        let (mut far, _) = listener.accept().await.expect("a connection");
        far.read_exact(&mut [0; 3]).await.expect("a request");
        far.write_all(b"HTTP/1.1 200 OK\r\n").await.expect("it is open");
        far
    };
    let _far = tokio::select! {
        biased;
        answer = &mut asked => unreachable!("{answer:?}"),
        far = server => far,
    };
    sleep(Duration::from_secs(1)).await;
    drop(asked);
    assert_eq!(health.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_early_or_waits_for_a_change_says_nothing_about_the_server() {
    for (millis, kind) in [
        (799, RequestKind::Ordinary),
        (60_000, RequestKind::Hanging { timeout_sec: None }),
        (60_000, RequestKind::Hanging { timeout_sec: Some(60) }),
    ] {
        assert_eq!(given_up_after(millis, kind).await, None, "{millis} {kind:?}");
    }
}

/// A hanging GET waits for the change, but not for the rest of a response that has begun.
#[tokio::test(start_paused = true)]
async fn a_server_that_stops_within_a_small_response_has_timed_out() {
    for kind in [RequestKind::Ordinary, RequestKind::Hanging { timeout_sec: None }] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client = client_of(&listener).0;
        let server = async {
            let mut stream = listener.accept().await.expect("a connection").0;
            let begun = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 5\r\n\r\nhalf";
            stream.write_all(begun).await.expect("it is open");
            pending::<()>().await;
        };
        let mut outgoing = request(kind);
        let asked = timeout(2 * UPSTREAM_TIMEOUT, client.send(&mut outgoing));
        tokio::select! {
            () = server => unreachable!("it stays"),
            answer = asked => assert!(matches!(answer, Ok(Err(Failure::TimedOut(UPSTREAM_TIMEOUT)))), "{kind:?}"),
        }
    }
}

/// A connection to this listener.
async fn connected(listener: &TcpListener) -> TcpStream {
    let addr = listener.local_addr().expect("bound");
    connect_to(&Target::parse(&format!("http://{addr}")).expect("a target")).await.expect("a connection")
}

#[tokio::test]
async fn a_closed_connection_does_not_keep_its_port() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let stream = connected(&listener).await;
    let (mut far, _) = listener.accept().await.expect("a connection");
    drop(stream);
    let end = far.read(&mut [0]).await.expect_err("an end without TIME_WAIT");
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_vanished_server_is_noticed_within_a_minute() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let stream = connected(&listener).await;
    let socket = SockRef::from(&stream);
    assert!(socket.keepalive().expect("an option"));
    assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE_IDLE);
    assert_eq!(socket.tcp_keepalive_interval().expect("an option"), KEEPALIVE_INTERVAL);
    assert_eq!(socket.tcp_keepalive_retries().expect("an option"), KEEPALIVE_PROBES);
    assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(USER_TIMEOUT));
    assert!(
        KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES <= Duration::from_secs(60)
            && USER_TIMEOUT <= Duration::from_secs(60)
    );
}
