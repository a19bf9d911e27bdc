//! Requests with `wait_for_change`.

use tokio::time::Instant;

use super::*;

const LEAF: &str = "instance/attributes/foo";

#[tokio::test]
async fn a_change_of_the_value_is_answered() {
    let (mock, mut client) = started().await;
    mock.set(LEAF, "old");
    let old = client.get(&format!("{V1}{LEAF}")).await;
    client.send(&request("GET", &format!("{V1}{LEAF}?wait_for_change=true&last_etag={}", old.etag()))).await;
    eventually("it waits", || mock.in_flight() == 1).await;
    mock.set("instance/attributes/bar", "another's change");
    mock.set(LEAF, "old");
    let early = tokio::time::timeout(Duration::from_millis(50), client.0.peek(&mut [0])).await;
    assert!(early.is_err(), "its value has not changed");
    mock.set(LEAF, "new");
    let new = client.reply(true).await;
    assert_eq!((new.status, new.body.as_str()), (200, "new"));
    assert_ne!(new.etag(), old.etag());
}

#[tokio::test]
async fn the_end_of_the_timeout_is_a_plain_200() {
    let (_mock, mut client) = started().await;
    let begin = Instant::now();
    let reply = client.get(&format!("{V1}instance/?recursive=true&wait_for_change=true&timeout_sec=1")).await;
    assert_eq!((reply.status, reply.content_type()), (200, "application/json"));
    assert!(begin.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_waiting_request_ends_when_the_client_disconnects() {
    let (mock, mut client) = started().await;
    client.send(&request("GET", &format!("{V1}instance/id?wait_for_change=true"))).await;
    eventually("it waits", || mock.in_flight() == 1).await;
    drop(client);
    eventually("it is gone", || mock.in_flight() == 0 && mock.open_connections() == 0).await;
}

#[tokio::test]
async fn a_value_that_goes_away_is_a_404() {
    let (mock, mut client) = started().await;
    client.send(&request("GET", &format!("{V1}instance/id?wait_for_change=true"))).await;
    eventually("it waits", || mock.in_flight() == 1).await;
    mock.remove("instance/id");
    assert_eq!(client.reply(true).await.status, 404);
}
