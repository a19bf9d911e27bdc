//! An answer on its way to a client: made here, or the upstream's.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::metadata::headers::{GOOGLE, METADATA_FLAVOR};
use crate::upstream::{Failure, Streamed};

/// The body of an answer.
pub enum Body {
    /// All of it; empty once it was taken.
    Whole(Bytes),
    /// Still on its way from the upstream.
    Streamed(Streamed),
}

/// An answer may hold a token, so only its size is told.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Self::Streamed(_) => f.write_str("Streamed"),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Streamed(streamed) => Pin::new(streamed).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed(streamed) => streamed.size_hint(),
        }
    }
}

/// What answers made here are signed with, so that they can be told from the upstream's.
pub const SERVER: HeaderValue = HeaderValue::from_static("gce-metadata-proxy");

/// `text/plain`, for sentences. Metadata values have the server's own odd types.
pub const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

const NOSNIFF: (HeaderName, HeaderValue) = (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// An answer made here. It carries `Metadata-Flavor: Google` whatever it says, since a client library takes an answer
/// without it for somebody else's.
pub fn local(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(METADATA_FLAVOR, GOOGLE);
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::SERVER, SERVER);
    let (name, value) = NOSNIFF;
    headers.insert(name, value);
    response
}
