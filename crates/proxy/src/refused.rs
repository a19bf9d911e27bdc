//! [`Refused`]: an error response of a source of tokens, which is passed on.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use crate::failure::Withheld;
use crate::reply::{self, Body};

/// An error response of a source.
pub struct Refused {
    /// A status other than success.
    pub status: StatusCode,
    /// Headers as sent, without hop-by-hop headers.
    pub headers: HeaderMap,
    /// The complete body.
    pub body: Bytes,
    /// Why a pod got no token of its own. `None` if the answer is the metadata server's, or like one of its.
    pub withheld: Option<Withheld>,
}

/// Maximum number of cached bytes of an error body. The server's page for an unknown account has 1.6 KiB.
const MAX_REFUSAL_BYTES: usize = 4 * 1024;

impl Refused {
    /// Copies headers and body, because slices would keep the connection's buffer alive.
    pub fn copied(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let copy = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.clone(), HeaderValue::from_bytes(value.as_bytes()).ok()?))
        };
        let mut headers: HeaderMap = headers.iter().filter_map(copy).collect();
        headers.remove(header::CONTENT_LENGTH);
        Self {
            status,
            headers,
            body: Bytes::copy_from_slice(&body[..body.len().min(MAX_REFUSAL_BYTES)]),
            withheld: None,
        }
    }

    /// The same, as the answer to a pod that got no token of its own.
    #[must_use]
    pub fn withholding(self, why: Withheld) -> Self {
        Self { withheld: Some(why), ..self }
    }

    /// The first line of the body.
    pub fn line(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.body.split(|byte| *byte == b'\n').next().unwrap_or_default())
    }

    /// The refusal, unchanged.
    pub(crate) fn response(&self) -> Response<Body> {
        reply::whole(self.status, self.headers.clone(), self.body.clone())
    }

    /// Heap memory, in bytes.
    pub fn heap(&self) -> usize {
        let header = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
        self.body.len() + self.headers.iter().map(header).sum::<usize>() + self.headers.capacity() * 80
    }
}

/// An error response may still contain a token, so its body is not shown.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("status", &self.status).finish_non_exhaustive()
    }
}
