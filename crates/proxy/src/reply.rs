//! Responses to clients: made by the proxy or passed on from the upstream.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::failure::Failure;
use protocol::metadata::Request;
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR};

/// The body of a response.
pub enum Body {
    /// The complete body. Empty after it was read.
    Whole(Bytes),
    /// Streamed from the upstream. Boxed, because every layer moves every response, and few are streamed.
    Streamed(Pin<Box<Streamed>>),
}

/// A body that is streamed from the upstream.
pub type Streamed = dyn http_body::Body<Data = Bytes, Error = Failure> + Send;

/// Shows only the size, because the body may contain a token.
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

/// A body that may be in memory as soon as its response head is available.
pub trait AtHand: http_body::Body {
    /// Number of bytes, if all of them are in memory.
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

/// The value of `Retry-After` for this time.
pub fn retry_after(time: Duration) -> HeaderValue {
    HeaderValue::from(whole_seconds(time))
}

/// A time until a retry in whole seconds, rounded up, and at least one.
pub fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

/// Capacities of a header map that is reused for a response: at least enough for the proxy's headers, and
/// bounded because hyper keeps the map for the next request.
const REUSED_CAPACITIES: Range<usize> = 4..24;

/// `Server` header of responses made by the proxy, which distinguishes them from the upstream's.
pub const SERVER: HeaderValue = HeaderValue::from_static("gce-metadata-proxy");

/// `text/plain`, for messages. Metadata values have the server's own types.
pub const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The metadata server's type for values and listings.
pub const APPLICATION_TEXT: HeaderValue = HeaderValue::from_static("application/text");

/// The metadata server's type for redirects.
const TEXT_HTML: HeaderValue = HeaderValue::from_static("text/html");

/// A response made by the proxy, as the metadata server would make it. It always carries `Metadata-Flavor:
/// Google`, because client libraries reject a response without it.
pub fn local(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    local_in(HeaderMap::new(), status, content_type, body)
}

/// Like [`local`], reusing the request's header map: allocating a map costs as much as filling it.
pub fn local_in(
    mut headers: HeaderMap,
    status: StatusCode,
    content_type: HeaderValue,
    body: impl Into<Bytes>,
) -> Response<Body> {
    if !reusable(&mut headers) {
        headers = HeaderMap::with_capacity(REUSED_CAPACITIES.start);
    }
    headers.insert(METADATA_FLAVOR, GOOGLE);
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::SERVER, SERVER);
    whole(status, headers, body.into())
}

/// Empties a request's header map for a response. `false` if it is too small or too large for that.
pub(crate) fn reusable(headers: &mut HeaderMap) -> bool {
    headers.clear();
    REUSED_CAPACITIES.contains(&headers.capacity())
}

/// A response whose body is at hand.
pub(crate) fn whole(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::Whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Whether a response was made by this proxy, or by another one that is its upstream.
pub fn is_local<B>(response: &Response<B>) -> bool {
    response.headers().get(header::SERVER) == Some(&SERVER)
}

/// The redirect of a directory without its final slash, as the metadata server sends it: to the host name that the
/// client used, with the path as the body.
pub fn directory_redirect(request: &Request) -> Response<Body> {
    let path = format!("{}/", request.path);
    let location = HeaderValue::from_str(&format!("http://{}{path}{}", request.host, request.query));
    let mut response = local(StatusCode::MOVED_PERMANENTLY, TEXT_HTML, format!("{path}\n"));
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// A response with a message that may quote the client's input, so browsers must not sniff its type.
pub fn sentence(status: StatusCode, sentence: impl Into<Bytes>) -> Response<Body> {
    let mut response = local(status, PLAIN_TEXT, sentence);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
