//! Where tokens come from. A source knows nothing of caching; whoever keeps tokens knows nothing of where they come from.

mod breaker;
mod key;
mod metadata_server;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

pub use key::{TokenKey, TokenKind};
pub use metadata_server::MetadataServer;

use crate::error::Overload;
use crate::failure::TokenFailure;
use crate::metadata::token::AccessToken;
use crate::shares::Client;

/// Gives tokens.
///
/// There is one source today, the node's metadata server. Workload Identity will add one that exchanges a pod's own
/// credentials.
pub trait TokenSource: Send + Sync + 'static {
    /// The longest that [`TokenSource::fetch`] takes, and that a client waits for a token.
    fn deadline(&self) -> Duration;

    /// Asks for a token, once, and answers within the deadline. The caller decides how often. `client` is the one that asked
    /// first, or none for the proxy itself; a source that leaves a failing server alone must not let one client's keys decide
    /// for all others. A key of a principal that is not the source's own is refused with [`TokenFailure::ForeignPrincipal`].
    fn fetch(&self, key: &TokenKey, client: Client) -> impl Future<Output = Result<Fetched, NoToken>> + Send;
}

/// What a source gave.
pub enum Fetched {
    /// An access token, and the whole seconds that it had left when it was given.
    Access(AccessToken, u32),
    /// An identity token, which should be in memory that is wiped, and the whole seconds until its own `exp`.
    Identity(Bytes, u32),
}

/// Why a source gave none. Cheap to clone, because everybody who waited gets it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoToken {
    /// The source answered, and its answer is no token: it is passed on.
    #[error("the metadata server answered {} to a request for a token", .0.status)]
    Refused(Arc<Refused>),
    /// It did not answer, or what it answered is no token.
    #[error(transparent)]
    Failed(Arc<TokenFailure>),
    /// It was not asked, or not to the end, since others needed the room.
    #[error(transparent)]
    Overloaded(Overload),
}

/// An answer that is no token.
pub struct Refused {
    /// Anything but a success.
    pub status: StatusCode,
    /// As it was sent, less the headers of the hop.
    pub headers: HeaderMap,
    /// All of it.
    pub body: Bytes,
}

/// Most of a refusal's body that is kept, in bytes. The server's own page for an unknown account has 1.6 KiB.
const REFUSAL: usize = 4 * 1024;

impl Refused {
    /// A copy, since headers and body are parts of a connection's buffer, which they would keep alive.
    fn copied(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let copy = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.clone(), HeaderValue::from_bytes(value.as_bytes()).ok()?))
        };
        let mut headers: HeaderMap = headers.iter().filter_map(copy).collect();
        headers.remove(header::CONTENT_LENGTH);
        Self { status, headers, body: Bytes::copy_from_slice(&body[..body.len().min(REFUSAL)]) }
    }
}

impl Refused {
    /// Memory that it takes, in bytes, apart from its own fields.
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

/// What a server says instead of a token may hold one all the same.
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
