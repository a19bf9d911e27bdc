//! Token sources. A source does not cache, and the cache does not depend on the source.

mod breaker;
mod key;
mod metadata_server;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

pub use breaker::Breaker;
pub use key::{TokenKey, TokenKind};
pub use metadata_server::MetadataServer;

use crate::error::Overload;
use crate::failure::{TokenFailure, Withheld};
use crate::reply::Body;
use crate::shares::Client;
use protocol::metadata::token::AccessToken;

/// A source of tokens.
///
/// There are two: the node's metadata server, and with Workload Identity a source that exchanges a pod's own
/// credentials. `identity::tokens::Sources` chooses between them.
pub trait TokenSource: Send + Sync + 'static {
    /// Maximum duration of [`TokenSource::fetch`], and of a client's wait for a token.
    fn deadline(&self) -> Duration;

    /// Fetches a token once, within the deadline. The caller decides when to retry. `client` is the first client that
    /// requested the token, or `None` for the proxy itself; `urgency` says whether it waits. A source with a circuit
    /// breaker must not let one client's failures affect all others. A key of a principal that is not the source's own
    /// fails with [`TokenFailure::ForeignPrincipal`].
    fn fetch(
        &self,
        key: &TokenKey,
        client: Client,
        urgency: Urgency,
    ) -> impl Future<Output = Result<Fetched, NoToken>> + Send;
}

/// Whether a client waits for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A client waits.
    Demanded,
    /// No client waits: a token is renewed, or fetched in advance.
    Background,
}

/// A token from a source.
pub enum Fetched {
    /// An access token, and its remaining lifetime in whole seconds when it was issued.
    Access(AccessToken, u32),
    /// An identity token, in memory that should be wiped, and the whole seconds until its `exp`.
    Identity(Bytes, u32),
}

/// Reason why a source returned no token. Cheap to clone, because all waiting requests get it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoToken {
    /// The source answered with an error, which is passed on.
    #[error("the metadata server answered {} to a request for a token", .0.status)]
    Refused(Arc<Refused>),
    /// The source did not answer, or its response is not a token.
    #[error(transparent)]
    Failed(Arc<TokenFailure>),
    /// The fetch was not started or was cancelled, because others needed the capacity.
    #[error(transparent)]
    Overloaded(Overload),
}

impl NoToken {
    /// Whether the source failed rather than refused.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.status.is_server_error(),
            Self::Failed(_) | Self::Overloaded(_) => true,
        }
    }
}

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
        let mut response = Response::new(Body::Whole(self.body.clone()));
        *response.status_mut() = self.status;
        response.headers_mut().clone_from(&self.headers);
        response
    }

    /// Heap memory, in bytes.
    pub fn heap(&self) -> usize {
        let header = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
        self.body.len() + self.headers.iter().map(header).sum::<usize>() + self.headers.capacity() * 80
    }
}

impl<F: Into<TokenFailure>> From<F> for NoToken {
    fn from(failure: F) -> Self {
        Self::Failed(Arc::new(failure.into()))
    }
}

/// An error response may still contain a token, so its body is not shown.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("status", &self.status).finish_non_exhaustive()
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(token, seconds) => f.debug_tuple("Access").field(token).field(seconds).finish(),
            Self::Identity(_, seconds) => f.debug_tuple("Identity").field(&"[redacted]").field(seconds).finish(),
        }
    }
}
