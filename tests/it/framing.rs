//! Messages that are not valid requests, or ambiguous ones. None may return metadata or reach the upstream.

use crate::support::{Answer, Connection, Proxy, raw};

/// A value that the proxy does not cache.
const TARGET: &str = "/computeMetadata/v1/instance/cpu-platform";
const VALUE: &str = "Intel Broadwell";

fn head(lines: &[&str]) -> Vec<u8> {
    let common = ["Host: 169.254.169.254", "Metadata-Flavor: Google"];
    let lines: Vec<&str> = common.iter().chain(lines).copied().collect();
    format!("GET {TARGET} HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}

fn smuggled(lines: &[&str]) -> Vec<u8> {
    [head(lines), head(&[])].concat()
}

/// Each row: a description, the bytes, and the status of the response, if one is required.
fn abuses() -> Vec<(&'static str, Vec<u8>, Option<u16>)> {
    let text = |text: &str| text.replace('\n', "\r\n").into_bytes();
    let good_lines = "Host: metadata\nMetadata-Flavor: Google\n";
    let lines = "Host: metadata\r\nMetadata-Flavor: Google\r\n";
    vec![
        ("two Content-Lengths that differ", smuggled(&["Content-Length: 5", "Content-Length: 6"]), Some(400)),
        ("two Content-Lengths that agree", smuggled(&["Content-Length: 5", "Content-Length: 5"]), Some(400)),
        ("a list of Content-Lengths", smuggled(&["Content-Length: 5, 6"]), Some(400)),
        ("a signed Content-Length", smuggled(&["Content-Length: +5"]), Some(400)),
        ("a hexadecimal Content-Length", smuggled(&["Content-Length: 0x5"]), Some(400)),
        (
            "Content-Length with Transfer-Encoding",
            smuggled(&["Content-Length: 5", "Transfer-Encoding: chunked"]),
            Some(400),
        ),
        ("a GET hidden in a body", smuggled(&["Content-Length: 105"]), Some(400)),
        ("chunked, identity", smuggled(&["Transfer-Encoding: chunked, identity"]), Some(400)),
        ("an unknown coding", smuggled(&["Transfer-Encoding: xchunked"]), Some(400)),
        ("two Transfer-Encodings", smuggled(&["Transfer-Encoding: chunked", "Transfer-Encoding: x"]), Some(400)),
        (
            "a bad chunk size",
            [head(&["Transfer-Encoding: chunked"]), b"zz\r\nhello\r\n0\r\n\r\n".to_vec()].concat(),
            Some(400),
        ),
        (
            "a chunk size that overflows",
            [head(&["Transfer-Encoding: chunked"]), b"ffffffffffffffff1\r\nx".to_vec()].concat(),
            Some(400),
        ),
        (
            "Transfer-Encoding in HTTP/1.0",
            text(&format!("GET {TARGET} HTTP/1.0\n{good_lines}Transfer-Encoding: chunked\n\n0\n\n")),
            Some(400),
        ),
        ("a folded header", head(&["X-Folded: one\r\n two"]), Some(400)),
        ("a blank before the colon", head(&["X-Blank : 1"]), Some(400)),
        ("a NUL in a header", head(&["X-Nul: a\0b"]), Some(400)),
        ("a lone CR in a header", head(&["X-Cr: a\rX-Forwarded-For: b"]), Some(400)),
        (
            "lone LFs",
            format!("GET {TARGET} HTTP/1.1\nHost: metadata\nMetadata-Flavor: Google\n\n").into_bytes(),
            Some(400),
        ),
        (
            "one lone LF",
            format!("GET {TARGET} HTTP/1.1\r\nHost: metadata\nMetadata-Flavor: Google\r\n\r\n").into_bytes(),
            Some(400),
        ),
        ("a lone LF before the head", format!("\nGET {TARGET} HTTP/1.1\r\n{lines}\r\n").into_bytes(), Some(400)),
        ("64 KiB of target", text(&format!("GET /{} HTTP/1.1\n{good_lines}\n", "a".repeat(64 * 1024))), Some(431)),
        ("9 KiB of target", text(&format!("GET /{} HTTP/1.1\n{good_lines}\n", "a".repeat(9 * 1024))), Some(414)),
        ("200 headers", head(&["X-Many: 1"; 200]), Some(431)),
        ("1 MiB of one header", head(&[&format!("X-Large: {}", "a".repeat(1024 * 1024))]), Some(431)),
        ("HTTP/0.9", text(&format!("GET {TARGET}\n")), Some(400)),
        ("HTTP/0.9 in so many words", text(&format!("GET {TARGET} HTTP/0.9\n{good_lines}\n")), Some(400)),
        ("HTTP/2.0", text(&format!("GET {TARGET} HTTP/2.0\n{good_lines}\n")), Some(400)),
        ("the HTTP/2 preface", text("PRI * HTTP/2.0\n\nSM\n\n"), Some(400)),
        ("no Host", text(&format!("GET {TARGET} HTTP/1.1\nMetadata-Flavor: Google\n\n")), Some(400)),
        ("two Hosts", head(&["Host: metadata"]), Some(400)),
        (
            "a Host with user information",
            text(&format!("GET {TARGET} HTTP/1.1\nHost: 169.254.169.254:80@evil\nMetadata-Flavor: Google\n\n")),
            Some(400),
        ),
        (
            "an absolute target of another host",
            text(&format!("GET http://evil{TARGET} HTTP/1.1\n{good_lines}\n")),
            Some(403),
        ),
        ("CONNECT", text(&format!("CONNECT 169.254.169.254:80 HTTP/1.1\n{good_lines}\n")), Some(405)),
        ("OPTIONS *", text(&format!("OPTIONS * HTTP/1.1\n{good_lines}\n")), Some(405)),
        ("TRACE", text(&format!("TRACE {TARGET} HTTP/1.1\n{good_lines}\n")), Some(405)),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), Some(400)),
    ]
}

#[tokio::test]
async fn abuse_yields_no_metadata_and_reaches_no_upstream() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    for (name, bytes, status) in abuses() {
        let mut connection = Connection::open(proxy.addr).await;
        connection.send(&bytes).await;
        // Closes the connection if it is still open, so that all responses are read.
        connection.send("GET / HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n").await;
        let came = connection.rest().await;
        let text = String::from_utf8_lossy(&came);
        assert!(!text.contains(VALUE), "{name}: {text}");
        let first = Answer::parse(&came, false).map(|(answer, _)| answer);
        assert_eq!(first.as_ref().map(|answer| answer.status), status, "{name}: {text}");
        if let Some(answer) = first {
            assert_eq!(answer.header("metadata-flavor"), Some("Google"), "{name}");
            assert!(answer.body.ends_with(".\n") && answer.body.lines().count() == 1, "{name}: {}", answer.body);
        }
        assert_eq!(mock.requests(), 0, "{name}: it reached the upstream");
    }
    // The mock counts requests, and the proxy still serves.
    let answer = Answer::parse(&raw(proxy.addr, head(&["Connection: close"])).await, false).expect("an answer").0;
    assert_eq!((answer.status, answer.body.as_str(), mock.requests()), (200, VALUE, 1));
}

/// Java's HTTP clients and `curl --http2` offer an upgrade by default.
#[tokio::test]
async fn an_upgrade_is_ignored() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    let mut connection = Connection::open(proxy.addr).await;
    for lines in [
        &["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"][..],
        &["Connection: Upgrade", "Upgrade: TLS/1.2"],
        &[
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        ],
        &[],
    ] {
        connection.send(head(lines)).await;
        let answer = connection.answer().await.expect("the connection stays open");
        assert_eq!((answer.status, answer.body.as_str()), (200, VALUE), "{lines:?}");
        assert_eq!((answer.header("upgrade"), answer.header("connection")), (None, None), "{lines:?}");
    }
    let seen = mock.log();
    assert_eq!(seen.len(), 4);
    let is_of_the_upgrade = |name: &str| ["upgrade", "http2-settings", "sec-websocket-key"].contains(&name);
    let names = seen.iter().flat_map(|seen| &seen.headers).map(|(name, _)| name.to_ascii_lowercase());
    assert!(!names.clone().any(|name| is_of_the_upgrade(&name)), "{:?}", names.collect::<Vec<_>>());
}

#[tokio::test]
async fn requests_that_arrive_together_are_answered_in_turn() {
    let (_mock, proxy) = Proxy::of_a_mock().await;
    let mut connection = Connection::open(proxy.addr).await;
    connection.send([head(&[]), b"GET / HTTP/1.1\r\nHost: metadata\r\n\r\n".to_vec(), head(&[])].concat()).await;
    for body in [VALUE, "computeMetadata/\n", VALUE] {
        assert_eq!(connection.answer().await.map(|answer| answer.body).as_deref(), Some(body));
    }
}
