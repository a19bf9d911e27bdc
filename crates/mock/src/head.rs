//! [`Request`]: a head as parsed by `httparse`, and the headers that the mock uses.

use http::Method;

use super::refusal::Refusal;

/// Maximum size of a request head, in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Maximum size of a request body, in bytes: the limit for a metadata value.
pub(super) const MAX_BODY_BYTES: usize = 256 * 1024;

/// Maximum number of headers in a request.
pub(super) const MAX_HEADERS: usize = 128;

/// A request. Errors are recorded here and reported by the route.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    target: String,
    pub(super) host: Option<String>,
    /// Whether it has `Metadata-Flavor: Google` or the older `X-Google-Metadata-Request: True`.
    pub(super) has_flavor: bool,
    /// Whether it has `X-Forwarded-For`, with any value or none.
    pub(super) is_forwarded: bool,
    /// Whether the connection stays open after the response: in HTTP/1.1, unless the client says otherwise.
    pub(super) is_kept: bool,
    /// Value of `Content-Length`, in bytes.
    pub(super) body_length: usize,
    pub(super) body: Vec<u8>,
    /// Why it cannot be answered safely, if so.
    pub(super) malformed: Option<&'static str>,
}

impl Request {
    /// Parses a head at the start of `bytes`. Returns it with its length, or `None` while it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Refusal> {
        let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut lines);
        match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => {
                Ok(Some((Self::from_head(&head), length)))
            }
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(Refusal::HeadTooLarge),
            Err(_) => Err(Refusal::Malformed("This is not a request of HTTP/1.")),
        }
    }

    /// The path as sent, without the query.
    pub(super) fn path(&self) -> &str {
        self.split().0
    }

    /// The query without its `?`, or an empty string.
    pub(super) fn query(&self) -> &str {
        self.split().1
    }

    fn split(&self) -> (&str, &str) {
        self.target.split_once('?').unwrap_or((&self.target, ""))
    }

    fn from_head(head: &httparse::Request<'_, '_>) -> Self {
        let target = head.path.unwrap_or("/").to_owned();
        let mut request = Self {
            method: head.method.and_then(|method| method.parse().ok()).unwrap_or_default(),
            host: None,
            has_flavor: false,
            is_forwarded: false,
            is_kept: false,
            body_length: 0,
            body: Vec::new(),
            malformed: (!target.starts_with('/')).then_some("The target is not a path."),
            target,
        };
        request.read_headers(head.headers, head.version == Some(1));
        request
    }

    fn read_headers(&mut self, headers: &[httparse::Header<'_>], is_http11: bool) {
        let values = |name: &'static str| {
            let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
            named.map(|header| header.value.trim_ascii())
        };
        self.has_flavor = match values("metadata-flavor").next() {
            Some(_) => values("metadata-flavor").all(|value| value == b"Google"),
            None => values("x-google-metadata-request").any(|value| value == b"True"),
        };
        self.is_forwarded = values("x-forwarded-for").next().is_some();
        self.host = values("host").next().map(|host| String::from_utf8_lossy(host).into_owned());
        if values("host").nth(1).is_some() || (is_http11 && self.host.is_none()) {
            self.malformed = Some("Exactly one Host header is needed.");
        }
        self.is_kept = is_http11 && !values("connection").any(|value| has_word(value, "close"));
        match body_length(values("content-length")) {
            Some(length) => self.body_length = length,
            None => self.malformed = Some("The Content-Length is not one number."),
        }
        if values("transfer-encoding").next().is_some() {
            self.malformed = Some("A body must have a Content-Length here, not a transfer coding.");
        }
    }
}

fn has_word(list: &[u8], word: &str) -> bool {
    list.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

/// `None` if the values contradict each other or are not numbers.
fn body_length<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let Some(first) = lines.next() else { return Some(0) };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    let agrees = lines.all(|line| line == first);
    let number = std::str::from_utf8(first).ok().filter(|_| is_number && agrees)?;
    number.parse().ok()
}
