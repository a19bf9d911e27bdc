//! Connections over real sockets, which split, discard and reset.

use super::*;

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
    // hyper reads it as no body. The scanner does not read so long a line, and ends with this head.
    let long_length = format!("GET / HTTP/1.1\r\nHost: metadata\r\nContent-Length: {:>30}\r\n\r\n", 0);
    let rests = [&b""[..], b"\r\n", b"\n", b" ", b"x", REQUEST, &REQUEST[..20], &[b'x'; 5000]];
    for (head, rest) in [REQUEST, long_length.as_bytes()].into_iter().flat_map(|head| rests.map(|rest| (head, rest))) {
        let connections = connections(usize::MAX);
        let mut client = connect_by_socket(&connections, Duration::from_secs(3600)).await;
        client.write_all(head).await.expect("the server is there");
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
        let (connections, resets) = counted_connections(1, usize::MAX);
        let (mut client, io) = sockets().await;
        let served = connection_among(&connections, io, answering(Duration::ZERO), LastCall::default());
        let (number, arrival) = (served.place.number, served.arrival);
        connections.started(number, tokio::spawn(served.serve()).abort_handle());
        client.write_all(sent.as_bytes()).await.expect("the server is there");
        read_answers(&mut client, answers).await;
        for _ in 0..5 {
            yield_now().await;
        }
        let newcomer = connections.admit(arrival, &Arc::new(Activity::new()), WaitFor::Nothing);
        assert!(newcomer.is_ok());
        let ended = client.read(&mut [0; 16]).await.map_err(|error| error.kind());
        let expected = if is_reset { Err(std::io::ErrorKind::ConnectionReset) } else { Ok(0) };
        assert_eq!(ended, expected, "{sent:?}");
        assert_eq!(resets(), usize::from(is_reset), "{sent:?}");
    }
}

/// The kernel keeps a FIN for minutes that a client does not acknowledge, and no client is charged for it.
#[tokio::test]
async fn a_client_that_has_closed_its_side_gets_no_fin() {
    for answers in [0, 1] {
        // Crowded, so that an idle connection is parked at once.
        let connections = connections(OPEN_BYTES + SERVING_BYTES);
        let mut client = connect_by_socket(&connections, Duration::ZERO).await;
        client.write_all(&REQUEST.repeat(answers)).await.expect("the server is there");
        read_answers(&mut client, answers).await;
        while connections.weight().0 > OPEN_BYTES {
            yield_now().await;
        }
        client.shutdown().await.expect("it is open");
        let ended = client.read(&mut [0; 16]).await.map_err(|error| error.kind());
        assert_eq!(ended, Err(std::io::ErrorKind::ConnectionReset), "{answers}");
    }
}
