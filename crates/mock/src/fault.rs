//! [`Fault`]: ways in which a metadata server fails.

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::answer::{HTML_UTF8, JSON, Response};

/// A fault in a response. Each breaks one thing and leaves the rest unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Delays the usual response.
    Delay(Duration),
    /// Responds with this status and body, as `text/html; charset=UTF-8`. An invalid status becomes 500.
    Status(u16, String),
    /// Resets the connection before any byte.
    Reset,
    /// Closes the connection before any byte.
    Close,
    /// Sends the usual head and this many bytes of the body, then resets the connection.
    CutBody {
        /// Bytes of the body that are sent.
        after: usize,
    },
    /// Like [`Fault::CutBody`], but closes the connection normally.
    CutBodyFin {
        /// Bytes of the body that are sent.
        after: usize,
    },
    /// Does not respond until the client disconnects, or until [`Handle::heal`](super::Handle::heal).
    Hang,
    /// Sends bytes that are not HTTP, then closes the connection.
    Garbage,
    /// Omits `Metadata-Flavor`.
    NoFlavor,
    /// Responds with an HTML page, status 200 and `Metadata-Flavor`.
    Html,
    /// Sends the usual head immediately, then the body in pieces.
    SlowBody {
        /// Size of a piece, in bytes, at least 1.
        chunk: usize,
        /// Pause before each piece.
        every: Duration,
    },
    /// Responds with 200, `application/json` and a body of this size.
    HugeBody {
        /// Size of the body, in bytes.
        bytes: usize,
    },
    /// Uses chunked coding instead of `Content-Length`.
    Chunked,
    /// Like [`Fault::Chunked`], with an additional `Content-Length` of this many bytes.
    ChunkedAndLength {
        /// Value of the header, in bytes.
        length: usize,
    },
    /// Sends another whole response after the usual one, without a request. Its body is `MOCK-STRAY`.
    Stray,
    /// Responds with 200, `application/json` and this body: for tokens whose `expires_in` is 0, negative, or a
    /// string.
    Body(String),
    /// Changes `expires_in` of tokens. Other responses are not affected.
    TokenLife(i64),
}

/// Sent after a response with [`Fault::Stray`].
pub(super) const STRAY: &[u8] =
    b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\nContent-Length: 10\r\n\r\nMOCK-STRAY";

/// Not HTTP, nor a prefix of it: the first bytes of a TLS handshake.
pub(super) const GARBAGE: &[u8] = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 this is not HTTP\r\n\r\n";

const HTML_PAGE: &str = "<!DOCTYPE html>\n<html><title>Sign in</title><p>Sign in to use this network.</html>\n";

impl Fault {
    /// The response that replaces the usual one, if any.
    pub(super) fn instead(&self) -> Option<Response> {
        match self {
            Self::Status(status, body) => {
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Some(Response::new(status, HTML_UTF8, body.clone()))
            }
            Self::Html => Some(Response::ok(HTML_UTF8, HTML_PAGE.to_owned())),
            Self::Body(body) => Some(Response::ok(JSON, body.clone())),
            Self::HugeBody { .. } => Some(Response::ok(JSON, String::new())),
            _ => None,
        }
    }

    /// Changes the usual response.
    pub(super) fn alter(&self, answer: &mut Response) {
        match self {
            Self::NoFlavor => answer.flavor = false,
            Self::TokenLife(seconds) => {
                if let Some(body) = with_life(&answer.body, *seconds) {
                    answer.body = body;
                }
            }
            _ => {}
        }
    }
}

/// A token's body with another `expires_in`. `None` if the body is not a token.
fn with_life(body: &str, seconds: i64) -> Option<String> {
    let token: Value = serde_json::from_str(body).ok()?;
    let access_token = token.get("access_token")?;
    Some(format!(r#"{{"access_token":{access_token},"expires_in":{seconds},"token_type":"Bearer"}}"#))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_get_another_expires_in() {
        let token = r#"{"access_token":"t","expires_in":3599,"token_type":"Bearer"}"#;
        let negative = r#"{"access_token":"t","expires_in":-1,"token_type":"Bearer"}"#;
        assert_eq!(with_life(token, -1).as_deref(), Some(negative));
        assert_eq!(with_life("mock-project", 0), None);
        assert_eq!(with_life("[1]", 0), None);
    }
}
