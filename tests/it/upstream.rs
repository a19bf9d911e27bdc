//! Failures of the metadata server as seen by pods, and disconnects of pods as seen by the metadata server.

use std::time::Duration;

use mock::{Fault, Handle, Mock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::support::{Answer, Connection, Proxy, close_pooled, eventually, get, raw, request};

/// A value that the proxy does not cache.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

fn assert_unavailable(answer: &Answer, fault: &str) {
    assert_eq!(answer.status, 503, "{fault}: {}", answer.body);
    assert_eq!(answer.header("retry-after"), Some("1"), "{fault}");
    assert_eq!(answer.header("metadata-flavor"), Some("Google"), "{fault}");
    assert!(answer.body.starts_with("The metadata server is not available: "), "{fault}: {}", answer.body);
    assert_eq!(answer.body.lines().count(), 1, "{fault}: {}", answer.body);
}

async fn start() -> (Handle, Proxy) {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    (mock, proxy)
}

#[tokio::test]
async fn every_failure_is_a_503_with_its_reason() {
    let (mock, proxy) = start().await;
    let cut = Fault::CutBody { after: 3 };
    for (fault, reason) in [
        (Fault::Reset, "closed"),
        (Fault::Close, "closed"),
        (cut, "cut_short"),
        (Fault::Garbage, "not_http"),
        (Fault::NoFlavor, "no_flavor"),
        (Fault::Status(502, "a gateway's page".to_owned()), "gateway"),
        (Fault::Status(504, String::new()), "gateway"),
    ] {
        let name = format!("{fault:?}");
        mock.fault(fault);
        assert_unavailable(&get(proxy.addr, LEAF).await, &name);
        let counted = proxy.metric(&format!("metadata_proxy_refusals_total{{reason=\"upstream_{reason}\"}}")).await;
        assert!(counted.is_some_and(|count| count >= 1.0), "{name} is counted as {reason}");
        mock.heal();
        assert_eq!(get(proxy.addr, LEAF).await.status, 200, "{name} is over");
    }
}

#[tokio::test]
async fn a_gateways_error_in_place_of_a_token_is_a_503() {
    let (mock, proxy) = start().await;
    for status in [502, 504] {
        mock.fault(Fault::Status(status, "a gateway's page".to_owned()));
        let token = format!("/computeMetadata/v1/instance/service-accounts/{status}@b.c/token");
        let answer = get(proxy.addr, &token).await;
        assert_unavailable(&answer, &token);
        assert!(answer.body.contains(&status.to_string()), "{}", answer.body);
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_connections_is_a_503_and_a_reason_not_to_be_restarted() {
    let (mock, proxy) = start().await;
    mock.stop().await;
    assert_unavailable(&get(proxy.addr, LEAF).await, "refused");
    let ready = get(proxy.metrics_addr, "/readyz?verbose").await;
    assert_eq!(ready.status, 200);
    assert!(ready.body.starts_with(r#"{"status":"degraded","reason":"metadata server: "#), "{}", ready.body);
    assert_eq!(get(proxy.metrics_addr, "/healthz").await.status, 200);

    let mock = Mock::start_on(mock.addr()).await.expect("the address is free again");
    assert_eq!(get(proxy.addr, LEAF).await.status, 200);
    assert_eq!(get(proxy.metrics_addr, "/readyz").await.body, "ready\n");
    mock.stop().await;
}

#[tokio::test]
async fn an_upstream_that_hangs_is_a_503_before_any_client_gives_up() {
    let (mock, proxy) = start().await;
    mock.fault(Fault::Hang);
    let mut fastest = Duration::MAX;
    // A busy computer may be late once, and not each time.
    for _ in 0..3 {
        let asked = Instant::now();
        assert_unavailable(&get(proxy.addr, LEAF).await, "hang");
        fastest = fastest.min(asked.elapsed());
        if fastest < Duration::from_secs(3) {
            break;
        }
    }
    assert!(fastest >= Duration::from_millis(2500) && fastest < Duration::from_secs(3), "{fastest:?}");
}

/// As after a live migration, where nobody resets them.
#[tokio::test]
async fn after_a_request_that_is_not_answered_no_older_connection_is_used() {
    let (mock, proxy) = start().await;
    mock.fault(Fault::Delay(Duration::from_millis(300)));
    let addr = proxy.addr;
    let crowd: Vec<_> = (0..3).map(|_| tokio::spawn(async move { get(addr, LEAF).await.status })).collect();
    for one in crowd {
        assert_eq!(one.await.expect("no panic"), 200);
    }
    assert!(mock.open_connections() >= 3);
    mock.heal();
    mock.fault_next(1, Fault::Hang);
    assert_unavailable(&get(addr, LEAF).await, "hang");
    eventually("all are closed", || mock.open_connections() == 0).await;
    assert_eq!(get(addr, LEAF).await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_not_called_something_else() {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let upstream = server.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            let large = format!("HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nX: {}\r\n\r\n", "x".repeat(8000));
            let _ = stream.write_all(large.as_bytes()).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let proxy = Proxy::start(upstream).await;
    let answer = get(proxy.addr, LEAF).await;
    assert_unavailable(&answer, "a large head");
    assert!(answer.body.contains("more than 4096 bytes of headers"), "{}", answer.body);
}

#[tokio::test]
async fn a_pooled_connection_that_died_is_replaced_without_the_client_noticing() {
    let (mock, proxy) = start().await;
    assert_eq!(get(proxy.addr, LEAF).await.status, 200);
    mock.fault_next(1, Fault::Reset);
    assert_eq!(get(proxy.addr, LEAF).await.status, 200);
    assert_eq!((mock.requests(), mock.connections()), (3, 1), "asked again, once, on a fresh connection");

    mock.fault_next(2, Fault::Reset);
    assert_unavailable(&get(proxy.addr, LEAF).await, "the fresh connection fails as well");
    assert_eq!(mock.requests(), 5);
}

#[tokio::test]
async fn a_fresh_connection_that_fails_is_not_tried_again() {
    let (mock, proxy) = start().await;
    close_pooled(&mock, &proxy).await;
    mock.fault_next(1, Fault::Reset);
    assert_unavailable(&get(proxy.addr, LEAF).await, "reset");
    assert_eq!(mock.requests(), 1);
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let (mock, proxy) = start().await;
    let mut client = Connection::open(proxy.addr).await;
    for _ in 0..20 {
        client.send(format!("GET {LEAF} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n")).await;
        assert_eq!(client.answer().await.map(|answer| answer.status), Some(200));
    }
    assert_eq!((mock.requests(), mock.connections()), (20, 0), "the connection of the warm start is used again");
}

#[tokio::test]
async fn the_connection_of_a_large_answer_is_used_again() {
    let (mock, proxy) = start().await;
    let value = "x".repeat(100 * 1024);
    mock.set("instance/attributes/large", &value);
    for _ in 0..40 {
        assert!(get(proxy.addr, "/computeMetadata/v1/instance/attributes/large").await.body == value);
    }
    assert_eq!((mock.requests(), mock.connections()), (40, 0), "a connection of the warm start is used again");
    let abandoned = "metadata_proxy_upstream_duration_seconds_count{endpoint=\"leaf\",outcome=\"abandoned\"}";
    assert!(proxy.metric(abandoned).await.is_none_or(|count| count < 1.0), "each was read to its end");
}

#[tokio::test]
async fn a_hanging_get_outlives_the_ordinary_deadline() {
    let (mock, proxy) = start().await;
    mock.set("instance/attributes/watched", "old");
    let target = "/computeMetadata/v1/instance/attributes/watched?wait_for_change=true&timeout_sec=60";
    let addr = proxy.addr;
    let watcher = tokio::spawn(async move { get(addr, target).await });
    eventually("the request is held upstream", || mock.in_flight() == 1).await;
    // It was sent earlier, so its deadline would expire earlier.
    mock.fault_at(LEAF, Fault::Hang);
    assert_unavailable(&get(addr, LEAF).await, "hang");
    assert!(!watcher.is_finished());
    mock.set("instance/attributes/watched", "new");
    assert_eq!(watcher.await.expect("no panic").body, "new");
}

#[tokio::test]
async fn a_hanging_get_has_the_time_that_it_asked_for_and_a_margin() {
    let (mock, proxy) = start().await;
    mock.fault(Fault::Delay(Duration::from_millis(2700)));
    let target = format!("{LEAF}?wait_for_change=true&last_etag=0&timeout_sec=1");
    assert_eq!(get(proxy.addr, &target).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_upstream_request() {
    let (mock, proxy) = start().await;
    for beginning_of_another in ["", "G"] {
        let mut client = Connection::open(proxy.addr).await;
        client.send(request(&format!("{LEAF}?wait_for_change=true")) + beginning_of_another).await;
        eventually("the request is held upstream", || mock.in_flight() == 1).await;
        drop(client);
        eventually("the upstream is left too", || mock.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn a_large_answer_streams_and_is_never_cut_silently() {
    let (mock, proxy) = start().await;
    let value = "0123456789abcdef".repeat(16 * 1024);
    mock.set("instance/attributes/large", &value);
    let target = "/computeMetadata/v1/instance/attributes/large";
    assert_eq!(get(proxy.addr, target).await.body, value);

    let request = format!("GET {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n");
    mock.fault(Fault::CutBodyFin { after: 200 * 1024 });
    let came = raw(proxy.addr, request.clone()).await;
    assert!(came.starts_with(b"HTTP/1.1 200"));
    assert!(Answer::parse(&came, false).is_none(), "the client must see that the answer is not whole");

    // A reset takes with it what was not read, so the response may end before it was begun.
    mock.fault(Fault::CutBody { after: 200 * 1024 });
    let came = raw(proxy.addr, request).await;
    assert!(came.is_empty() || came.starts_with(b"HTTP/1.1 200"));
    assert!(Answer::parse(&came, false).is_none(), "the client must see that the answer is not whole");
}

/// Otherwise its client would wait forever, holding a seat.
#[tokio::test]
async fn a_large_answer_that_stands_still_is_cut() {
    let (mock, proxy) = start().await;
    mock.set("instance/attributes/large", &"x".repeat(100 * 1024));
    mock.fault(Fault::SlowBody { chunk: 64 * 1024, every: Duration::from_secs(30) });
    let target = "/computeMetadata/v1/instance/attributes/large";
    let asked = Instant::now();
    let came =
        raw(proxy.addr, format!("GET {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n")).await;
    assert!(
        came.starts_with(b"HTTP/1.1 200") && Answer::parse(&came, false).is_none(),
        "not whole, and not passed off as whole"
    );
    let took = asked.elapsed().as_secs();
    assert!((10..25).contains(&took), "10 s without a byte, not {took}");
}

/// A window larger than its buffer costs each large response 200 ms, the kernel's timeout for dropped data.
#[tokio::test]
async fn large_answers_do_not_stand_still() {
    const LARGE: &str = "/computeMetadata/v1/instance/attributes/large";
    let (mock, proxy) = start().await;
    let value = "0123456789abcdef".repeat(16 * 1024 - 1);
    mock.set("instance/attributes/large", &value);
    let mut fastest = Duration::MAX;
    for _ in 0..25 {
        let began = Instant::now();
        assert!(get(proxy.addr, LARGE).await.body == value);
        fastest = fastest.min(began.elapsed());
    }
    // With that fault each response stalled for 200 ms. On a busy computer most may be slow, but not all.
    assert!(fastest < Duration::from_millis(80), "the fastest of 25 answers of 256 KiB took {fastest:?}");
}

#[tokio::test]
async fn a_chunked_answer_arrives_with_its_length() {
    let (mock, proxy) = start().await;
    mock.fault(Fault::Chunked);
    let answer = get(proxy.addr, LEAF).await;
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, None));
    assert!(answer.body == "Intel Broadwell", "{}", answer.body);
}

/// The connection is kept alive: a client that trusted the wrong length would misread the next response.
#[tokio::test]
async fn a_length_beside_a_chunked_answer_is_never_passed_on() {
    let (mock, proxy) = start().await;
    let large = "0123456789abcdef".repeat(8 * 1024);
    mock.set("instance/attributes/large", &large);
    for target in [LEAF, "/computeMetadata/v1/instance/attributes/large"] {
        let right = get(proxy.addr, target).await.body;
        for length in [0, 3, right.len(), right.len() + 5, 1_000_000] {
            mock.fault(Fault::ChunkedAndLength { length });
            let came = raw(proxy.addr, last_request("GET", target)).await;
            assert_eq!(body_by_its_own_framing(&came), right.as_bytes(), "{target} with a length of {length}");
            let head = raw(proxy.addr, last_request("HEAD", target)).await;
            let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
            let told = format!("content-length: {length}\r\n");
            assert!(!head.contains(&told) && !head.contains("transfer-encoding"), "{told} {head}");
            mock.heal();
        }
    }
}

fn last_request(method: &str, target: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n")
}

/// The body of the only response in these bytes, which must have exactly one kind of framing.
fn body_by_its_own_framing(bytes: &[u8]) -> Vec<u8> {
    let ends = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head");
    let (head, mut rest) = (String::from_utf8_lossy(&bytes[..ends]).to_ascii_lowercase(), &bytes[ends + 4..]);
    let length: Vec<&str> = head.lines().filter_map(|line| line.strip_prefix("content-length: ")).collect();
    if !head.contains("transfer-encoding: chunked") {
        assert_eq!(length, [rest.len().to_string()], "{head}");
        return rest.to_vec();
    }
    assert!(length.is_empty(), "two framings: {head}");
    let mut body = Vec::new();
    loop {
        let ends = rest.windows(2).position(|window| window == b"\r\n").expect("a whole size");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..ends]).expect("text"), 16).expect("a size");
        body.extend_from_slice(&rest[ends + 2..ends + 2 + size]);
        rest = &rest[ends + 2 + size + 2..];
        if size == 0 {
            assert!(rest.is_empty(), "bytes behind the answer");
            return body;
        }
    }
}

#[tokio::test]
async fn bytes_behind_an_answer_are_nobody_s_answer() {
    let (mock, proxy) = start().await;
    let mut client = Connection::open(proxy.addr).await;
    mock.fault(Fault::Stray);
    for _ in 0..20 {
        let answer = client.ask(LEAF).await.answer();
        assert!(answer.status == 200 && answer.body == "Intel Broadwell", "{}", answer.body);
    }
}

#[tokio::test]
async fn what_is_sent_is_what_was_judged_and_no_more() {
    let (mock, proxy) = start().await;
    let request = "GET http://metadata/computeMetadata//v1/x/../instance/%40zone?alt=%74ext&foo=1 HTTP/1.1\r\n\
                   Host: 169.254.169.254\r\nMetadata-Flavor: Google\r\nUser-Agent: test/1\r\nX-Goog-Api-Client: gl/1\r\n\
                   Range: bytes=0-1\r\nIf-None-Match: x\r\nAccept-Encoding: gzip\r\nVia: 1.1 x\r\nX-Real-IP: 1.2.3.4\r\n\
                   X-HTTP-Method-Override: PUT\r\nCookie: a\r\nConnection: close\r\n\r\n";
    let answer = Answer::parse(&raw(proxy.addr, request.replace("&foo=1", "")).await, false).expect("an answer").0;
    assert_eq!(answer.status, 404);
    let seen = mock.log();
    assert_eq!(seen[0].target, "/computeMetadata/v1/instance/@zone?alt=text");
    let mut names: Vec<String> = seen[0].headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort_unstable();
    assert_eq!(names, ["host", "metadata-flavor", "user-agent", "x-goog-api-client"]);
    assert_eq!(seen[0].header("host"), Some("metadata"));
}
