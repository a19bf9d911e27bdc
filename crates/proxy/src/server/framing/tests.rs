use proptest::prelude::*;

use super::*;

/// Scans all pieces, head by head, and replaces a lone LF as the connection does.
fn scan(pieces: &[&[u8]]) -> (HeadScanner, Vec<u8>) {
    let mut scanner = HeadScanner::default();
    let mut seen = Vec::new();
    for piece in pieces {
        let mut piece = piece.to_vec();
        let mut from = 0;
        while from < piece.len() {
            let found = scanner.scan(&piece[from..]);
            if let Some(at) = found.lone_lf {
                piece[from + at] = 0;
            }
            from += found.taken;
        }
        seen.extend(piece);
    }
    (scanner, seen)
}

#[test]
fn a_scan_stops_after_each_head() {
    let two = [b"\r\n", HEAD, HEAD, b"\r\n"].concat();
    let mut scanner = HeadScanner::default();
    let first = scanner.scan(&two);
    assert_eq!(first, Scanned { taken: 2 + HEAD.len(), lone_lf: None });
    assert_eq!(scanner.scan(&two[first.taken..]).taken, HEAD.len());
    assert_eq!(scanner.scan(b"\r\n").taken, 2, "neither a head nor the end of one");
    assert_eq!((scanner.heads(), scanner.mid_head()), (2, false));
}

const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata\r\n\r\n";

#[test]
fn complete_heads_are_counted_and_unchanged() {
    let (scanner, seen) = scan(&[b"\r\n", HEAD, HEAD]);
    assert_eq!((scanner.heads(), scanner.mid_head()), (2, false));
    assert_eq!(seen, [b"\r\n", HEAD, HEAD].concat());
}

#[test]
fn a_head_is_incomplete_until_its_last_byte() {
    for cut in 1..HEAD.len() {
        let (scanner, _) = scan(&[&HEAD[..cut]]);
        assert_eq!((scanner.heads(), scanner.mid_head()), (0, true), "{cut}");
        let (scanner, _) = scan(&[&HEAD[..cut], &HEAD[cut..]]);
        assert_eq!((scanner.heads(), scanner.mid_head()), (1, false), "{cut}");
    }
    assert!(!scan(&[]).0.mid_head());
    assert!(!scan(&[b"\r\n"]).0.mid_head());
}

#[test]
fn a_bare_line_feed_is_replaced() {
    let (_, seen) = scan(&[b"GET / HTTP/1.1\nHost: metadata\n\n"]);
    assert_eq!(seen, b"GET / HTTP/1.1\0Host: metadata\n\n");
    let (_, seen) = scan(&[b"GET / HTTP/1.1\r", b"\nHost: metadata", b"\n\r\n"]);
    assert_eq!(seen, b"GET / HTTP/1.1\r\nHost: metadata\0\r\n");
}

#[test]
fn a_body_is_announced_by_headers_and_not_scanned() {
    for (header, announced) in [
        ("Content-Length: 5", true),
        ("content-length:5", true),
        ("Content-Length: 0", false),
        ("content-length:  0 ", false),
        ("Content-Length: 00000000000000000000000000005", true),
        ("Transfer-Encoding: chunked", true),
        ("TRANSFER-ENCODING:x", true),
        ("X-Content-Length: 5", false),
    ] {
        let request = format!("GET / HTTP/1.1\r\n{header}\r\n\r\na\nb");
        let (scanner, seen) = scan(&[request.as_bytes()]);
        assert_eq!(scanner.body_announced(), announced, "{header}");
        assert_eq!(seen == request.as_bytes(), announced, "{header}: only a bare LF in a head is replaced");
    }
}

#[test]
fn only_a_short_body_of_a_post_is_skipped() {
    let (long, longer) =
        (format!("Content-Length: {MAX_BODY_BYTES}"), format!("Content-Length: {}", MAX_BODY_BYTES + 1));
    for (method, headers, skipped) in [
        ("POST", "Content-Length: 5", Some(5)),
        ("POST", "content-length:\t0005 ", Some(5)),
        ("POST", &long, Some(MAX_BODY_BYTES)),
        ("POST", &longer, None),
        ("POST", "Content-Length: 5\r\nContent-Length: 5", None),
        ("POST", "Content-Length: 5\r\nTransfer-Encoding: chunked", None),
        ("POST", "Transfer-Encoding: chunked\r\nContent-Length: 5", None),
        ("POST", "Content-Length: +5", None),
        ("POST", "Content-Length: 5, 5", None),
        ("POST", "Content-Length:                   5", None),
        ("GET", "Content-Length: 5", None),
        ("GET", "Content-Length: 0\r\nContent-Length: 5", None),
        ("GET", "Content-Length: 0\r\nTransfer-Encoding: chunked", None),
        ("POSTER", "Content-Length: 5", None),
    ] {
        let head = format!("{method} / HTTP/1.1\r\n{headers}\r\n\r\n");
        let (mut scanner, _) = scan(&[head.as_bytes()]);
        assert_eq!(scanner.is_in_body(), skipped.is_some(), "{method} with {headers}");
        assert_eq!(scanner.body_announced(), skipped.is_none(), "{method} with {headers}");
        let Some(length) = skipped else { continue };
        let body_and_head = [&vec![b'\n'; length], HEAD].concat();
        assert_eq!(scanner.scan(&body_and_head), Scanned { taken: length, lone_lf: None });
        assert_eq!(scanner.scan(HEAD).taken, HEAD.len());
        assert_eq!((scanner.heads(), scanner.is_over()), (2, false));
    }
}

#[test]
fn only_an_empty_chunked_body_is_skipped() {
    for (coding, body, is_skipped) in [
        ("Transfer-Encoding: chunked", "0\r\n\r\n", true),
        ("transfer-encoding:CHUNKED\t", "0\r\n\r\n", true),
        ("Transfer-Encoding: gzip, chunked", "0\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0", "0\r\n\r\n", false),
        ("Transfer-Encoding: chunked", "00\r\n\r\n", false),
        ("Transfer-Encoding: chunked", "0;a\r\n\r\n", false),
        ("Transfer-Encoding: chunked", "0\r\nA: b\r\n\r\n", false),
        ("Transfer-Encoding: chunked", "1\r\na\r\n0\r\n\r\n", false),
        ("Transfer-Encoding: chunked", "\r\n0\r\n\r\n", false),
        ("Transfer-Encoding: chunked", "0\n\n", false),
        ("Transfer-Encoding: chunked", "GET / HTTP/1.1\r\n\r\n", false),
    ] {
        let sent = format!("GET / HTTP/1.1\r\n{coding}\r\n\r\n{body}");
        let sent = [sent.as_bytes(), HEAD].concat();
        for pieces in [vec![&sent[..]], sent.chunks(1).collect()] {
            let (scanner, seen) = scan(&pieces);
            assert_eq!((scanner.heads() == 2, scanner.is_over()), (is_skipped, !is_skipped), "{coding}, {body:?}");
            assert_eq!(scanner.body_announced(), !is_skipped, "{coding}, {body:?}");
            assert!(seen == sent && !scanner.is_in_body(), "{coding}, {body:?}");
        }
    }
}

proptest! {
    /// The result does not depend on how the stream is split.
    #[test]
    fn the_split_does_not_matter(
        text in "(GET|POST |\r\n|\n|\r|:|[cC]ontent-length: [05]|content-length:  0       5|Transfer-encoding: ?|chunked|0|a){0,20}",
        cut in 0usize..60,
    ) {
        let bytes = text.as_bytes();
        let cut = cut.min(bytes.len());
        let (whole, seen_whole) = scan(&[bytes]);
        for pieces in [vec![&bytes[..cut], &bytes[cut..]], bytes.chunks(1).collect()] {
            let (pieced, seen_pieced) = scan(&pieces);
            prop_assert_eq!(&seen_whole, &seen_pieced);
            let state = |scanner: &HeadScanner| {
                let is_over = (scanner.body_announced(), scanner.is_over());
                (scanner.heads(), scanner.mid_head(), scanner.body_left, is_over)
            };
            prop_assert_eq!(state(&whole), state(&pieced));
        }
    }
}
