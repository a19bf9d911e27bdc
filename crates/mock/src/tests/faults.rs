//! Each fault breaks only what it should, and only for its requests.

use std::io::ErrorKind;

use tokio::time::Instant;

use super::*;
use crate::Fault;

/// The response to a token request with a fault: its bytes, and how the stream ends. The request has
/// `Close` in its `Connection`.
async fn broken(fault: Fault) -> (String, std::io::Result<()>) {
    let (mock, mut client) = started().await;
    mock.fault(fault);
    let close = "Host: h\r\nMetadata-Flavor: Google\r\nConnection: x, Close\r\n\r\n";
    client.send(&format!("GET {ACCOUNT}token HTTP/1.1\r\n{close}")).await;
    client.rest().await
}

fn body(bytes: &str) -> &str {
    bytes.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn a_reset_and_a_close_come_before_any_byte() {
    let (bytes, end) = broken(Fault::Reset).await;
    assert_eq!((bytes.as_str(), end.map_err(|error| error.kind())), ("", Err(ErrorKind::ConnectionReset)));
    let (bytes, end) = broken(Fault::Close).await;
    assert!(bytes.is_empty() && end.is_ok());
}

#[tokio::test]
async fn a_cut_body_has_the_full_length_in_its_head() {
    let (bytes, end) = broken(Fault::CutBody { after: 10 }).await;
    assert_eq!(body(&bytes), "{\"access_t");
    assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    let (bytes, end) = broken(Fault::CutBodyFin { after: 0 }).await;
    assert!(bytes.contains("Content-Length: 2") && body(&bytes).is_empty() && end.is_ok(), "{bytes}");
}

#[tokio::test]
async fn faults_replace_responses_or_remove_one_thing() {
    let (bytes, _) = broken(Fault::Status(503, "wait".into())).await;
    assert!(
        bytes.starts_with("HTTP/1.1 503 Service Unavailable\r\nMetadata-Flavor: Google\r\n") && bytes.ends_with("wait")
    );
    let (bytes, _) = broken(Fault::Garbage).await;
    assert!(!bytes.contains("HTTP/1."));
    let (bytes, _) = broken(Fault::NoFlavor).await;
    assert!(!bytes.contains("Metadata-Flavor") && body(&bytes).starts_with("{\"access_token\""));
    let (bytes, _) = broken(Fault::Html).await;
    assert!(
        bytes.starts_with("HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: text/html; charset=UTF-8\r\n")
    );
    let (bytes, _) = broken(Fault::Body("{\"expires_in\":\"0\"}".into())).await;
    assert!(bytes.contains("Content-Type: application/json\r\n") && body(&bytes) == "{\"expires_in\":\"0\"}");
    let (bytes, _) = broken(Fault::TokenLife(-5)).await;
    assert!(body(&bytes).contains("\"expires_in\":-5,"));
    let (bytes, _) = broken(Fault::HugeBody { bytes: 1_000_000 }).await;
    assert!(bytes.contains("Content-Length: 1000000\r\n") && body(&bytes).len() == 1_000_000);
}

#[tokio::test]
async fn a_chunked_answer_has_no_length_and_all_of_the_body() {
    let (bytes, _) = broken(Fault::Chunked).await;
    assert!(bytes.contains("Transfer-Encoding: chunked") && !bytes.contains("Content-Length"));
    let mut rest = body(&bytes);
    let mut decoded = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        decoded.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").expect("the chunk's end");
    }
    assert!(decoded.ends_with("\"token_type\":\"Bearer\"}"), "{decoded}");
}

#[tokio::test]
async fn a_slow_body_arrives_completely() {
    let begin = Instant::now();
    let (bytes, _) = broken(Fault::SlowBody { chunk: 100, every: Duration::from_millis(20) }).await;
    assert!(begin.elapsed() >= Duration::from_millis(60), "three pieces");
    assert!(body(&bytes).ends_with("\"Bearer\"}"));
}

#[tokio::test]
async fn a_delayed_request_is_in_flight_and_then_answered() {
    let (mock, mut client) = started().await;
    mock.fault_next(1, Fault::Delay(Duration::from_millis(50)));
    let begin = Instant::now();
    assert_eq!(client.get(&format!("{ACCOUNT}token")).await.status, 200);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    eventually("nothing in flight", || mock.in_flight() == 0).await;
    assert_eq!(mock.peak_in_flight(), 1);
}

#[tokio::test]
async fn a_request_hangs_until_healed_or_until_the_client_disconnects() {
    let (mock, mut client) = started().await;
    mock.fault(Fault::Hang);
    let mut leaver = Client::connect(mock.addr()).await;
    for client in [&mut client, &mut leaver] {
        client.send(&request("GET", "/")).await;
    }
    eventually("two hang", || mock.in_flight() == 2).await;
    drop(leaver);
    eventually("one has left", || mock.in_flight() == 1).await;
    mock.heal();
    assert_eq!(client.reply(true).await.status, 200);
}

#[tokio::test]
async fn faults_affect_only_their_requests() {
    let (mock, mut client) = started().await;
    mock.fault_at(ACCOUNT, Fault::Status(500, String::new()));
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(client.get(&format!("{ACCOUNT}token?scopes=a")).await.status, 500);
    mock.fault_next(1, Fault::Status(429, String::new()));
    assert_eq!(client.get("/").await.status, 429);
    mock.heal();
    assert_eq!(client.get(&format!("{ACCOUNT}token")).await.status, 200);
}
