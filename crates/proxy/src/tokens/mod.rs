//! Token sources. A source does not cache, and the cache does not depend on the source.

mod breaker;
mod key;
mod metadata_server;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use http::header::DATE;
use zeroize::Zeroize;

pub use breaker::Breaker;
pub use key::{TokenKey, TokenKind};
pub use metadata_server::MetadataServer;

pub use crate::refused::Refused;

use crate::error::Overload;
use crate::failure::{TokenFailure, Withheld};
use crate::shares::Client;
use base::clock::BootTime;
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
    /// A client waits, and has no token.
    Demanded,
    /// The token of a client ends soon: the next one is fetched as if a client waited.
    Soon,
    /// No client waits: a token is renewed, or fetched in advance.
    Background,
}

impl Urgency {
    pub fn is_background(self) -> bool {
        self == Self::Background
    }
}

/// A token. Wiped from memory on drop.
#[derive(PartialEq)]
pub enum Token {
    Access(AccessToken),
    /// In memory that should be wiped.
    Identity(Bytes),
}

/// A token from a source.
pub enum Fetched {
    /// The node's access token, and its remaining lifetime in whole seconds.
    Access(AccessToken, u32),
    /// The node's identity token, in memory that should be wiped, and the whole seconds until its `exp`.
    Identity(Bytes, u32),
    /// A pod's own token. Its source may have asked for it long before this fetch, so it has times of its own.
    Own { token: Token, asked: BootTime, expires: BootTime },
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
    /// Whether the source failed rather than refused. An account's own pace is a refusal: no server is away, and it passes soon.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.status.is_server_error() && refused.withheld != Some(Withheld::Pace),
            Self::Failed(_) | Self::Overloaded(_) => true,
        }
    }
}

/// The time of a response by the server's own clock.
pub fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()
}

/// The same, or this machine's time, which may be wrong, if the server has no clock.
pub fn servers_time(headers: &HeaderMap) -> SystemTime {
    date(headers).unwrap_or_else(SystemTime::now)
}

/// Wipes a response that contained a token, unless it shares a buffer that is still in use.
pub fn wipe(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}

impl<F: Into<TokenFailure>> From<F> for NoToken {
    fn from(failure: F) -> Self {
        Self::Failed(Arc::new(failure.into()))
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(token, seconds) => f.debug_tuple("Access").field(token).field(seconds).finish(),
            Self::Identity(_, seconds) => f.debug_tuple("Identity").field(&"[redacted]").field(seconds).finish(),
            Self::Own { token, asked, expires } => {
                f.debug_struct("Own").field("token", token).field("asked", asked).field("expires", expires).finish()
            }
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(token) => token.fmt(f),
            Self::Identity(_) => f.write_str("Identity([redacted])"),
        }
    }
}
