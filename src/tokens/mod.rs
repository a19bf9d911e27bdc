//! Where tokens come from. A source knows nothing of caching; whoever keeps tokens knows nothing of where they come from.

mod breaker;
mod key;
mod metadata_server;

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

pub use key::{TokenKey, TokenKind};
pub use metadata_server::MetadataServer;

use crate::metadata::token::AccessToken;
use crate::upstream::Failure;

/// Gives tokens.
///
/// There is one source today, the node's metadata server. Workload Identity will add one that exchanges a pod's own
/// credentials.
pub trait TokenSource: Send + Sync + 'static {
    /// Asks for a token, once, and answers within 2.5 s. Whoever calls this decides how often.
    fn fetch(&self, key: &TokenKey) -> impl Future<Output = Result<Fetched, NoToken>> + Send;
}

/// What a source gave.
#[derive(Debug)]
pub enum Fetched {
    /// An access token, and the whole seconds that it had left when it was given.
    Access(AccessToken, u32),
    /// An identity token, and the whole seconds until its own `exp`.
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
    Failed(Arc<Failure>),
}

/// An answer that is no token.
#[derive(Debug)]
pub struct Refused {
    /// Anything but a success.
    pub status: StatusCode,
    /// As it was sent, less the headers of the hop.
    pub headers: HeaderMap,
    /// All of it.
    pub body: Bytes,
}

impl From<Failure> for NoToken {
    fn from(failure: Failure) -> Self {
        Self::Failed(Arc::new(failure))
    }
}
