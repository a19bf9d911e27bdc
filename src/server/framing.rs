//! [`HeadScanner`]: finds the boundaries of request heads in a byte stream, and rejects bare line feeds.
//!
//! hyper's parser accepts a bare LF as the end of a line, as RFC 9112 permits. Other servers do not, and if
//! two parsers disagree about a byte stream, requests can be smuggled. The scanner replaces a bare LF with a
//! NUL, which no parser accepts, so that hyper refuses the head in order, after the responses before it.
//!
//! Requests have no bodies here, so the stream is a sequence of heads. Only a POST may have one, because some clients
//! request tokens by POST: a body with one `Content-Length` of up to [`MAX_BODY_BYTES`] is skipped, and the scan goes on
//! with the next head. Any other head that announces a body ends the scan, and the connection closes after its response.

use std::mem;

use memchr::memchr;

/// Maximum size of a request head, in bytes; hyper refuses larger ones.
pub(super) const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Maximum size of a body that is read to its end, in bytes. A chain of certificates has some 6 KiB.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Length in bytes of the line prefix that is needed to recognise the headers that announce a body and
/// `content-length: 0`, which does not.
const PREFIX_BYTES: usize = 24;

#[derive(Debug, Default)]
pub(super) struct HeadScanner {
    /// The current line, as far as it was in earlier pieces.
    cut: CutLine,
    heads: u64,
    /// A line of the current head has ended.
    mid_head: bool,
    /// The current head is that of a POST.
    is_post: bool,
    /// What the current head announces.
    body: Body,
    /// Bytes of a body that are still to come.
    body_left: usize,
    ended: bool,
}

/// The body that a head announces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Body {
    #[default]
    None,
    /// It has this many bytes, and is skipped.
    Short(usize),
    /// It ends the scan.
    Other,
}

/// Result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scanned {
    /// Number of bytes that belong to the current head: all of them if the head does not end in them.
    pub(super) taken: usize,
    /// Position of a bare LF, to be replaced by a NUL.
    pub(super) lone_lf: Option<usize>,
}

/// The kept prefix of a line that spans several pieces.
#[derive(Debug, Default)]
struct CutLine {
    prefix: [u8; PREFIX_BYTES],
    length: usize,
    last: u8,
}

impl HeadScanner {
    /// Scans received bytes up to the end of the current head or body, and returns how many belong to it. The next
    /// call scans what follows.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Scanned {
        if self.is_in_body() {
            let taken = self.body_left.min(bytes.len());
            self.body_left -= taken;
            return Scanned { taken, lone_lf: None };
        }
        let mut taken = 0;
        while !self.ended {
            let Some(end) = memchr(b'\n', &bytes[taken..]) else {
                self.cut.extend(&bytes[taken..]);
                break;
            };
            let line = &bytes[taken..taken + end];
            taken += end + 1;
            // Most lines are in one piece and need no copy.
            let has_ended_head = if self.cut.length == 0 && line.ends_with(b"\r") {
                self.end_line(&line[..end.min(PREFIX_BYTES)])
            } else {
                self.cut.extend(line);
                if self.cut.last != b'\r' {
                    // Even if nothing precedes it: it becomes a head that hyper refuses.
                    (self.ended, self.mid_head) = (true, true);
                    return Scanned { taken: bytes.len(), lone_lf: Some(taken - 1) };
                }
                let whole = mem::take(&mut self.cut);
                self.end_line(whole.begin())
            };
            if has_ended_head {
                return Scanned { taken, lone_lf: None };
            }
        }
        Scanned { taken: bytes.len(), lone_lf: None }
    }

    /// Number of complete heads.
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether the stream ends in an incomplete head.
    pub(super) fn mid_head(&self) -> bool {
        self.mid_head || self.cut.is_begun()
    }

    /// Whether the stream ends in an incomplete body that is skipped.
    pub(super) fn is_in_body(&self) -> bool {
        self.body_left > 0
    }

    /// Whether the scan has ended, because a body or a bare LF was found.
    pub(super) fn is_over(&self) -> bool {
        self.ended
    }

    /// Whether a head announced a body that is not skipped.
    pub(super) fn body_announced(&self) -> bool {
        self.body == Body::Other
    }

    /// Processes a line that ends with CR LF, given its prefix. Returns whether it ends the head.
    fn end_line(&mut self, begin: &[u8]) -> bool {
        if begin != b"\r" {
            if !mem::replace(&mut self.mid_head, true) {
                self.is_post = begin.starts_with(b"POST ");
            }
            if announces_body(begin) {
                self.announce_body(begin);
            }
            return false;
        }
        // An empty line before a head is skipped, as hyper skips it (RFC 9112, section 2.2).
        let has_ended_head = mem::take(&mut self.mid_head);
        if has_ended_head {
            self.heads += 1;
            match self.body {
                Body::None => {}
                Body::Short(length) => (self.body, self.body_left) = (Body::None, length),
                Body::Other => self.ended = true,
            }
        }
        has_ended_head
    }

    fn announce_body(&mut self, begin: &[u8]) {
        self.body = match bounded_length(begin) {
            Some(length) if self.is_post && self.body == Body::None => Body::Short(length),
            _ => Body::Other,
        };
    }
}

impl CutLine {
    fn extend(&mut self, bytes: &[u8]) {
        let Some(&last) = bytes.last() else { return };
        if self.length < PREFIX_BYTES {
            let more = bytes.len().min(PREFIX_BYTES - self.length);
            self.prefix[self.length..self.length + more].copy_from_slice(&bytes[..more]);
        }
        self.length += bytes.len();
        self.last = last;
    }

    /// Whether the line is certainly not empty.
    fn is_begun(&self) -> bool {
        self.length > 1 || (self.length == 1 && self.last != b'\r')
    }

    fn begin(&self) -> &[u8] {
        &self.prefix[..self.length.min(PREFIX_BYTES)]
    }
}

fn announces_body(begin: &[u8]) -> bool {
    let is = |name: &[u8]| begin.len() >= name.len() && begin[..name.len()].eq_ignore_ascii_case(name);
    let zero_length = || begin[b"content-length:".len()..].trim_ascii() == b"0";
    // Most lines are neither, and the first letter suffices to exclude them.
    match begin {
        [b't' | b'T', ..] => is(b"transfer-encoding:"),
        [b'c' | b'C', ..] => is(b"content-length:") && !zero_length(),
        _ => false,
    }
}

/// The length that a whole `Content-Length` line states, up to the limit. A line that is longer than the prefix, or that
/// a lenient parser might read in another way, has none.
fn bounded_length(begin: &[u8]) -> Option<usize> {
    let value = begin.get(b"content-length:".len()..)?.strip_suffix(b"\r")?.trim_ascii();
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = std::str::from_utf8(value).ok()?.parse().ok()?;
    (length <= MAX_BODY_BYTES).then_some(length)
}

#[cfg(test)]
mod tests {
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
            ("POST", "Content-Length:            5", None),
            ("GET", "Content-Length: 5", None),
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

    proptest! {
        /// The result does not depend on how the stream is split.
        #[test]
        fn the_split_does_not_matter(
            text in "(GET|POST |\r\n|\n|\r|:|[cC]ontent-length: [05]|content-length:  0       5|Transfer-encoding:|a){0,20}",
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
}
