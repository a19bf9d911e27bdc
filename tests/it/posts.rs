//! Tokens requested by POST with a certificate chain, as google-auth does if the pod has one.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::support::{Answer, Connection, Proxy};

const ACCOUNT: &str = "/computeMetadata/v1/instance/service-accounts/default";
const OPT_OUT: &str = "GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false";

fn post(target: &str, lines: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n{lines}\r\n")
}

fn with_length(target: &str, body: &str) -> String {
    post(target, &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())) + body
}

#[tokio::test]
async fn they_are_not_found_and_the_connection_goes_on() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    let chain = format!(r#"{{"certificate_chain":"{}"}}"#, "-----BEGIN CERTIFICATE-----\n".repeat(500));
    let mut connection = Connection::open(proxy.addr).await;
    for target in ["token", "identity?audience=https://aud.example", "token?transport=mtls"] {
        for body in ["", "{}", &chain] {
            // The second half arrives later, and the next request with it.
            let sent = with_length(&format!("{ACCOUNT}/{target}"), body) + "GET / HTTP/1.1\r\nHost: metadata\r\n\r\n";
            let (first, rest) = sent.split_at(sent.len() - 60);
            connection.send(first).await;
            tokio::task::yield_now().await;
            connection.send(rest).await;
            let refused = connection.answer().await.expect("an answer");
            assert_eq!((refused.status, refused.header("connection")), (404, None), "{target}");
            assert!(refused.body.contains(OPT_OUT) && refused.body.lines().count() == 1, "{}", refused.body);
            assert_eq!(connection.answer().await.map(|ping| ping.body).as_deref(), Some("computeMetadata/\n"));
        }
    }
    let counted = proxy.metric(r#"metadata_proxy_refusals_total{reason="bound_token"}"#).await;
    assert_eq!((counted, mock.requests()), (Some(9.0), 0));
}

#[tokio::test]
async fn other_posts_are_refused_and_the_connection_goes_on() {
    let (_mock, proxy) = Proxy::of_a_mock().await;
    let mut connection = Connection::open(proxy.addr).await;
    for target in ["email", "token/", ""] {
        connection.send(with_length(&format!("{ACCOUNT}/{target}"), "a\nbody")).await;
        assert_eq!(connection.answer().await.map(|answer| answer.status), Some(405), "{target}");
    }
}

/// A POST with a body that its head announces correctly or incorrectly.
fn mutated() -> impl Strategy<Value = String> {
    let target = select(vec!["token", "identity?audience=x", "token?scopes=a"]);
    let piece = select(vec![
        r#"{"certificate_chain":""#,
        "\n",
        "\r\n",
        "\0",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: metadata\r\n\r\n",
        "-----BEGIN CERTIFICATE-----",
    ]);
    let body = (vec(piece, 0..12), select(vec![1_usize, 1, 1, 2_000]));
    let body = body.prop_map(|(pieces, times)| pieces.concat().repeat(times));
    let announced = select(vec![
        "Content-Length: LENGTH",
        "content-length:\tLENGTH",
        "Content-Length: 00LENGTH",
        "Content-Length: LENGTH0",
        "Content-Length: 9999999999",
        "Content-Length: 99999999999999999999999",
        "Content-Length: -1",
        "Content-Length: 1",
        "Content-Length: LENGTH\r\nContent-Length: LENGTH",
        "Content-Length: LENGTH\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Expect: 100-continue\r\nContent-Length: LENGTH",
        "X-No: body",
    ]);
    (target, announced, body).prop_map(|(target, announced, body)| {
        let lines = announced.replace("LENGTH", &body.len().to_string()) + "\r\n";
        post(&format!("{ACCOUNT}/{target}"), &lines) + &body
    })
}

#[tokio::test]
async fn mutated_bodies_are_refused_and_reach_no_upstream() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    let (mutated, mut runner) = (mutated(), TestRunner::deterministic());
    for number in 0..1_000_u16 {
        let sent = mutated.new_tree(&mut runner).expect("a message").current();
        // From many addresses, because a closed connection keeps its port for a minute.
        let [high, low] = (number / 10).to_be_bytes();
        let mut connection = Connection::open_from([127, 77, high, low + 1].into(), proxy.addr).await;
        connection.send(&sent).await;
        connection.finish().await;
        let came = connection.rest().await;
        let came = came.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&came);
        let described = || format!("{:.400}: {}", sent.escape_debug(), String::from_utf8_lossy(came));
        // A body that breaks off may get no answer, because the client has disconnected.
        if let Some((answer, _)) = Answer::parse(came, false) {
            assert!(matches!(answer.status, 400 | 404), "{}", described());
            assert!(answer.status == 400 || answer.body.contains(OPT_OUT), "{}", described());
        } else {
            assert!(came.is_empty(), "{}", described());
        }
        assert!(!String::from_utf8_lossy(came).contains("access_token"), "{}", described());
    }
    assert_eq!(mock.requests(), 0);
    assert!(Connection::open(proxy.addr).await.ask(&format!("{ACCOUNT}/token")).await.is_status(200));
}
