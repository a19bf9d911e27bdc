//! [`HeadScanner`]: finds the boundaries of request heads in a byte stream, and rejects bare line feeds.
//!
//! hyper's parser accepts a bare LF as the end of a line, as RFC 9112 permits. Other servers do not, and if
//! two parsers disagree about a byte stream, requests can be smuggled. The scanner replaces a bare LF with a
//! NUL, which no parser accepts, so that hyper refuses the head in order, after the responses before it.
//!
//! Requests have no bodies here, so the stream is a sequence of heads. Two kinds of bodies are skipped, and the scan
//! continues with the next head: the body of a POST with one `Content-Length` of up to [`MAX_BODY_BYTES`], because some
//! clients request tokens by POST; and an empty chunked body, which some clients send with each request. Any other
//! announced body ends the scan, and the connection closes after its response.

use std::mem;

use memchr::memchr;

/// Maximum size of a request head, in bytes; hyper refuses larger ones.
pub(super) const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Maximum size of a body that is read to its end, in bytes. A certificate chain has about 6 KiB.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The only chunked body that is skipped. Other chunked bodies may also be empty, but parsers disagree about them.
const EMPTY_CHUNKED: &[u8] = b"0\r\n\r\n";

/// Length, in bytes, of the line prefix needed to recognise the headers that announce a body, with their values.
const PREFIX_BYTES: usize = 32;

#[derive(Debug, Default)]
pub(super) struct HeadScanner {
    /// The part of the current line that was in earlier pieces.
    cut: CutLine,
    heads: u64,
    /// A line of the current head has ended.
    mid_head: bool,
    /// The current head belongs to a POST.
    is_post: bool,
    /// The body announced by the current or last head.
    body: Body,
    /// Number of bytes of a body not yet received.
    body_left: usize,
    ended: bool,
}

/// The body announced by a head, or by a line of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Body {
    #[default]
    None,
    /// Has this many bytes. Skipped if it is short and belongs to a POST, or empty.
    Length(usize),
    /// Chunked. Skipped if it is [`EMPTY_CHUNKED`].
    Chunked,
    /// Something that this scanner does not interpret, or does not skip. Ends the scan.
    Other,
}

/// Result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scanned {
    /// Number of bytes that belong to the current head. All of them if the head does not end in them.
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
    /// Scans received bytes up to the end of the current head or body, and returns the number of bytes that belong to
    /// it. The next call scans the bytes after them.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Scanned {
        if self.is_in_body() {
            return Scanned { taken: self.skip(bytes), lone_lf: None };
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

    /// Whether the scan has ended because a body or a bare LF was found.
    pub(super) fn is_over(&self) -> bool {
        self.ended
    }

    /// Whether a head announced a body that is not skipped.
    pub(super) fn body_announced(&self) -> bool {
        self.body == Body::Other
    }

    /// Skips bytes of a body. Returns their number.
    fn skip(&mut self, bytes: &[u8]) -> usize {
        let taken = self.body_left.min(bytes.len());
        let is_chunked = self.body == Body::Chunked;
        if is_chunked && !EMPTY_CHUNKED[EMPTY_CHUNKED.len() - self.body_left..].starts_with(&bytes[..taken]) {
            (self.body, self.body_left, self.ended) = (Body::Other, 0, true);
            return bytes.len();
        }
        self.body_left -= taken;
        taken
    }

    /// Processes a line that ends with CR LF, given its prefix. Returns whether it ends the head.
    fn end_line(&mut self, begin: &[u8]) -> bool {
        if begin != b"\r" {
            if !mem::replace(&mut self.mid_head, true) {
                (self.is_post, self.body) = (begin.starts_with(b"POST "), Body::None);
            }
            let announced = announced(begin);
            if announced != Body::None {
                self.announce_body(announced);
            }
            return false;
        }
        // An empty line before a head is skipped, as hyper skips it (RFC 9112, section 2.2).
        let has_ended_head = mem::take(&mut self.mid_head);
        if has_ended_head {
            self.heads += 1;
            match self.body {
                Body::None => {}
                Body::Length(length) => self.body_left = length,
                Body::Chunked => self.body_left = EMPTY_CHUNKED.len(),
                Body::Other => self.ended = true,
            }
        }
        has_ended_head
    }

    fn announce_body(&mut self, announced: Body) {
        let is_skipped = match (self.body, announced) {
            (Body::None | Body::Length(0), Body::Length(0)) | (Body::None, Body::Chunked) => true,
            (Body::None, Body::Length(length)) => self.is_post && length <= MAX_BODY_BYTES,
            _ => false,
        };
        self.body = if is_skipped { announced } else { Body::Other };
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

/// The body that a line announces.
fn announced(begin: &[u8]) -> Body {
    let value = |name: &[u8]| {
        let (own_name, value) = begin.split_at_checked(name.len())?;
        own_name.eq_ignore_ascii_case(name).then_some(value)
    };
    // Most lines are neither, and the first letter is enough to exclude them.
    match begin {
        [b't' | b'T', ..] => value(b"transfer-encoding:").map_or(Body::None, coding),
        [b'c' | b'C', ..] => value(b"content-length:").map_or(Body::None, length),
        _ => Body::None,
    }
}

fn coding(value: &[u8]) -> Body {
    let is_chunked = whole(value).eq_ignore_ascii_case(b"chunked");
    if is_chunked { Body::Chunked } else { Body::Other }
}

fn length(value: &[u8]) -> Body {
    let digits = whole(value);
    if !digits.iter().all(u8::is_ascii_digit) {
        return Body::Other;
    }
    let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    length.map_or(Body::Other, Body::Length)
}

/// A value without surrounding whitespace. Empty if the line is longer than the prefix.
fn whole(value: &[u8]) -> &[u8] {
    value.strip_suffix(b"\r").unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests;
