//! [`Response`]: status, headers and body, and the serialisation of the head.
//!
//! The headers are in the order of the trace of 2019 in opencensus-java#1855.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use http::StatusCode;

use super::render::Etag;

/// Plain values and listings.
pub(super) const TEXT: &str = "application/text";
/// JSON, without a charset: older Python libraries compare the whole value.
pub(super) const JSON: &str = "application/json";
/// Identity tokens and redirects.
pub(super) const HTML: &str = "text/html";
/// Error pages.
pub(super) const HTML_UTF8: &str = "text/html; charset=UTF-8";

/// A response before faults are applied.
#[derive(Debug, Clone)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) location: Option<String>,
    pub(super) etag: Option<Etag>,
    /// Whether it has `Metadata-Flavor: Google`. Only false for a fault.
    pub(super) flavor: bool,
    pub(super) body: String,
}

/// How the length of the body is indicated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Length {
    /// `Content-Length` with this many bytes.
    Known(usize),
    /// Chunked coding.
    Chunked,
    /// Chunked coding, together with a `Content-Length` of this many bytes.
    Both(usize),
}

impl Response {
    /// A response without etag and location.
    pub(super) fn new(status: StatusCode, content_type: &'static str, body: String) -> Self {
        Self { status, content_type, location: None, etag: None, flavor: true, body }
    }

    /// A 200.
    pub(super) fn ok(content_type: &'static str, body: String) -> Self {
        Self::new(StatusCode::OK, content_type, body)
    }

    /// A 200 with a value that supports `wait_for_change`.
    pub(super) fn value(content_type: &'static str, body: String, etag: Etag) -> Self {
        Self { etag: Some(etag), ..Self::ok(content_type, body) }
    }

    /// Writes the status line and the headers. They say whether the connection is kept.
    pub(super) fn write_head(&self, length: Length, is_kept: bool, out: &mut Vec<u8>) {
        let reason = self.status.canonical_reason().unwrap_or("Unknown");
        line(out, format_args!("HTTP/1.1 {} {reason}", self.status.as_u16()));
        if self.flavor {
            line(out, format_args!("Metadata-Flavor: Google"));
        }
        line(out, format_args!("Content-Type: {}", self.content_type));
        if let Some(location) = &self.location {
            line(out, format_args!("Location: {location}"));
        }
        if let Some(etag) = self.etag {
            line(out, format_args!("ETag: {etag}"));
        }
        line(out, format_args!("Date: {}", httpdate::fmt_http_date(SystemTime::now())));
        line(out, format_args!("Server: Metadata Server for VM"));
        match length {
            Length::Known(bytes) => line(out, format_args!("Content-Length: {bytes}")),
            Length::Chunked => line(out, format_args!("Transfer-Encoding: chunked")),
            Length::Both(bytes) => line(out, format_args!("Content-Length: {bytes}\r\nTransfer-Encoding: chunked")),
        }
        line(out, format_args!("X-XSS-Protection: 0"));
        line(out, format_args!("X-Frame-Options: SAMEORIGIN"));
        if !is_kept {
            line(out, format_args!("Connection: close"));
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The current time in seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    write!(out, "{text}\r\n").expect("writing into memory cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_in_the_order_of_the_trace() {
        let mut head = Vec::new();
        Response::value(TEXT, "x".into(), Etag::new("x")).write_head(Length::Known(1), true, &mut head);
        let head = String::from_utf8(head).expect("ASCII");
        let names: Vec<_> =
            head.lines().skip(1).filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
        let order = ["Metadata-Flavor", "Content-Type", "ETag", "Date", "Server", "Content-Length"];
        assert_eq!(names, [&order[..], &["X-XSS-Protection", "X-Frame-Options"]].concat());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
    }
}
