//! [`Head`]: the head of a response.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use httparse::{ParserConfig, Status};

use super::framing::{Chunks, Framing, Rest};
use crate::failure::{Failure, MAX_HEAD_BYTES};

/// Maximum number of headers.
const MAX_HEADERS: usize = 100;

/// The head of a response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    /// Without hop-by-hop headers (RFC 9110, section 7.6.1), including those named by `Connection`, and without those that
    /// frame the body: it is framed by its actual length, and a client that trusted another would read part of the
    /// next response. A response to HEAD has no body, so its length is kept if it is a single number without contradiction.
    ///
    /// The values share the memory of the head.
    pub(super) headers: HeaderMap,
    pub(super) rest: Rest,
}

impl Head {
    /// Adds a piece, which is empty if the upstream has closed the connection, to the bytes that were read, and takes them if the
    /// head of the final response is complete. `space`: an empty map, which the headers are added to.
    pub(super) fn read(
        read: &mut Bytes,
        piece: Bytes,
        is_head: bool,
        space: &mut HeaderMap,
    ) -> Result<Option<Self>, Failure> {
        if piece.is_empty() {
            return Err(Failure::Closed);
        }
        *read = if read.is_empty() { piece } else { [&read[..], &piece].concat().into() };
        while let Some(head) = Self::parse(read, is_head, space)? {
            if !head.is_interim() {
                return Ok(Some(head));
            }
            *read = head.rest.read;
        }
        Ok(None)
    }

    /// Whether another response follows. None follows one that switches protocols.
    fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }

    fn parse(bytes: &mut Bytes, is_head: bool, space: &mut HeaderMap) -> Result<Option<Self>, Failure> {
        let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let parser = ParserConfig::default();
        let seen = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
        let length = match parser.parse_response_with_uninit_headers(&mut parsed, seen, &mut lines) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if seen.len() < MAX_HEAD_BYTES => return Ok(None),
            Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(Failure::HeadTooLarge),
            Err(_) => return Err(Failure::NotHttp),
        };
        let code = parsed.code.expect("the head is complete");
        let status = StatusCode::from_u16(code).map_err(|_| Failure::NotHttp)?;
        let mut hop = Hop { is_http_11: parsed.version == Some(1), ..Hop::default() };
        let mut headers = std::mem::take(space);
        headers.reserve(parsed.headers.len());
        for line in &*parsed.headers {
            let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| Failure::NotHttp)?;
            if !hop.takes(name.as_str(), line.value) {
                let value = HeaderValue::from_maybe_shared(bytes.slice_ref(line.value));
                headers.append(name, value.map_err(|_| Failure::NotHttp)?);
            }
        }
        bytes.advance(length);
        if is_head && let (Once::Absent, Once::Valid(length)) = (&hop.coding, &hop.length) {
            headers.insert(header::CONTENT_LENGTH, (*length).into());
        }
        for name in &hop.named {
            headers.remove(name);
        }
        let has_body = !is_head && !status.is_informational() && !matches!(status.as_u16(), 204 | 304);
        let framing = if has_body { hop.framing()? } else { Framing::Length(0) };
        // Some servers send a body after HEAD. It may arrive later, and would be the next response.
        let is_kept = !is_head && hop.is_kept(&framing);
        let rest = Rest { framing, is_kept, read: std::mem::take(bytes) };
        Ok(Some(Self { status, headers, rest }))
    }
}

/// What the headers of one hop say.
#[derive(Default)]
struct Hop {
    is_http_11: bool,
    /// `Content-Length`
    length: Once<u64>,
    /// `Transfer-Encoding`, which may only be `chunked`.
    coding: Once<()>,
    /// `Connection: close`
    closes: bool,
    /// `Connection: keep-alive`
    stays: bool,
    /// Other names in `Connection`.
    named: Vec<HeaderName>,
}

/// A header that may appear once.
#[derive(Default)]
enum Once<T> {
    #[default]
    Absent,
    Valid(T),
    Invalid,
}

impl<T> Once<T> {
    fn add(&mut self, value: Option<T>) {
        *self = match (&self, value) {
            (Self::Absent, Some(value)) => Self::Valid(value),
            _ => Self::Invalid,
        };
    }
}

impl Hop {
    /// Whether this is a header of the hop, which is not passed on. The name is lower-case. Some of the names are not in the
    /// RFC, but in common use.
    fn takes(&mut self, name: &str, value: &[u8]) -> bool {
        match name {
            "content-length" => self.length.add(number(value)),
            "transfer-encoding" => self.coding.add(value.eq_ignore_ascii_case(b"chunked").then_some(())),
            "connection" => self.read_connection(value),
            "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "upgrade" => {}
            _ => return false,
        }
        true
    }

    fn read_connection(&mut self, value: &[u8]) {
        for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if token.eq_ignore_ascii_case(b"close") {
                self.closes = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.stays = true;
            } else {
                self.named.extend(HeaderName::from_bytes(token));
            }
        }
    }

    /// How the body ends (RFC 9112, section 6.3). The encoding overrides a length.
    fn framing(&self) -> Result<Framing, Failure> {
        match (&self.coding, &self.length) {
            (Once::Valid(()), _) if self.is_http_11 => Ok(Framing::Chunked(Chunks::default())),
            (Once::Absent, Once::Valid(length)) => Ok(Framing::Length(*length)),
            (Once::Absent, Once::Absent) => Ok(Framing::ToEnd),
            _ => Err(Failure::NotHttp),
        }
    }

    /// An encoding with a length may be an attempt to smuggle a response, so that connection is closed.
    fn is_kept(&self, framing: &Framing) -> bool {
        let is_plain = matches!(self.coding, Once::Absent) || matches!(self.length, Once::Absent);
        let is_persistent = !self.closes && (self.is_http_11 || self.stays);
        is_plain && is_persistent && !matches!(framing, Framing::ToEnd)
    }
}

/// Digits only: `parse` would accept a sign.
fn number(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}
