//! What a connection is given time for, and its end when the process drains.

use super::*;

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
async fn an_idle_connection_is_closed_after_ninety_seconds() {
    for request_first in [false, true] {
        let mut client = connect(Duration::ZERO);
        if request_first {
            client.send(REQUEST).await;
            assert!(client.read_answer().await.ends_with("answer"));
        }
        let began = Instant::now();
        assert_eq!(client.read_to_end().await, "");
        assert_eq!(began.elapsed().as_secs(), 90);
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
    let (connections, resets) = counted_connections(1000, usize::MAX);
    let server = tokio::spawn(connection_among(&connections, other_end, stack, LastCall::default()).serve());
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
    assert_eq!(resets(), 1);
}

/// Its connection does not wake itself meanwhile, although more bytes are there to be read.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_refusal_is_cut_after_thirty_seconds() {
    let (mut io, other_end) = duplex(16);
    let connection = connection(other_end, answering(Duration::ZERO), LastCall::default());
    let activity = Arc::clone(&connection.activity);
    let server = tokio::spawn(connection.serve());
    io.write_all(b"GET / HTTP/1.1\r\nBad Name: x\r\n\r\nGET / HTTP/1.1").await.expect("the server reads");
    for _ in 0..100 {
        yield_now().await;
    }
    assert!(activity.is_blocked());
    let began = Instant::now();
    server.await.expect("no panic");
    assert_eq!(began.elapsed().as_secs(), 30);
}

/// Otherwise one that pipelines requests holds up the drain to its timeout.
#[tokio::test(start_paused = true)]
async fn a_client_whose_next_request_is_there_already_hears_of_the_drain() {
    let mut client = connect(Duration::ZERO);
    client.send(&REQUEST.repeat(1000)).await;
    client.read_answer().await;
    client.last_call.call();
    let answers = client.read_to_end().await;
    assert_eq!(answers.matches("Connection: close").count(), 1);
    assert!(answers.matches("answer").count() < 100);
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
