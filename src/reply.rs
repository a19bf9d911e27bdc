//! An answer on its way to a client: made here, or the upstream's.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::failure::Failure;
use crate::metadata::headers::{GOOGLE, METADATA_FLAVOR};

/// The body of an answer.
pub enum Body {
    /// All of it; empty once it was taken.
    Whole(Bytes),
    /// Still on its way from the upstream. Boxed, since every layer moves every answer, and few are of this kind.
    Streamed(Pin<Box<Streamed>>),
}

/// A body on its way from the upstream.
pub type Streamed = dyn http_body::Body<Data = Bytes, Error = Failure> + Send;

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
            Self::Streamed(streamed) => streamed.as_mut().poll_frame(cx),
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

/// A body that may be there as a whole when its answer is.
pub trait AtHand: http_body::Body {
    /// How many bytes it has, if all of them are in memory.
    fn at_hand(&self) -> Option<usize>;
}

impl AtHand for Body {
    fn at_hand(&self) -> Option<usize> {
        match self {
            Self::Whole(bytes) => Some(bytes.len()),
            Self::Streamed(_) => None,
        }
    }
}

/// Room for so many headers is kept for an answer: enough for ours, and no more than a connection may cost, since hyper keeps it
/// for the next request.
const ROOM: Range<usize> = 4..24;

/// What answers made here are signed with, so that they can be told from the upstream's.
pub const SERVER: HeaderValue = HeaderValue::from_static("gce-metadata-proxy");

/// `text/plain`, for sentences. Metadata values have the server's own odd types.
pub const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// An answer made here, as the server would make it. It carries `Metadata-Flavor: Google` whatever it says, since a client
/// library takes an answer without it for somebody else's.
pub fn local(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    local_in(HeaderMap::new(), status, content_type, body)
}

/// As [`local`], where the request's headers stood: memory for a map costs as much as all that is written into it.
pub fn local_in(
    mut headers: HeaderMap,
    status: StatusCode,
    content_type: HeaderValue,
    body: impl Into<Bytes>,
) -> Response<Body> {
    if ROOM.contains(&headers.capacity()) {
        headers.clear();
    } else {
        headers = HeaderMap::with_capacity(ROOM.start);
    }
    headers.insert(METADATA_FLAVOR, GOOGLE);
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::SERVER, SERVER);
    let mut response = Response::new(Body::Whole(body.into()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// An answer in words, which may repeat what the client has sent; so no browser may take them for anything else.
pub fn sentence(status: StatusCode, sentence: impl Into<Bytes>) -> Response<Body> {
    let mut response = local(status, PLAIN_TEXT, sentence);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
