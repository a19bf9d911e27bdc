//! [`Error`]: every reason to refuse or fail a request.
//!
//! A layer that refuses or fails a request returns an [`Error`]; only `layers::rescue` turns it into a
//! response. The text of a variant is sent to the client: one sentence that says what was refused and why.

use std::sync::Arc;

use http::HeaderName;

use crate::layers::conceal::Concealed;
use crate::metadata::host::HostError;
use crate::metadata::path::PathError;
use crate::metadata::query::QueryError;
use crate::upstream::Failure;

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a valid HTTP/1.1 or metadata request.
    #[error("Bad request: {0}.")]
    Malformed(#[from] Malformed),
    /// A request target that is too long, as received or as it would be forwarded.
    #[error("Refused: the percent-encoded request target is {bytes} bytes long; the limit is {limit} bytes.")]
    TargetTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// A method other than GET and HEAD.
    #[error("Refused: the method {0} is not allowed; use GET or HEAD.")]
    Method(http::Method),
    /// A `Host` (or the authority of an absolute target) that is not allowed.
    #[error("Refused: {0}; use metadata.google.internal or 169.254.169.254, or allow the name with --allowed-host.")]
    Host(HostError),
    /// The request came through another proxy.
    #[error("Refused: requests with the header {0} are not allowed, because they were forwarded by another proxy.")]
    Forwarded(HeaderName),
    /// The header that proves that the client intends to call the metadata server is missing or wrong.
    #[error("Refused: the header `Metadata-Flavor: Google` is missing or has a different value.")]
    Flavor,
    /// An invalid or unknown path.
    #[error("Refused: invalid path: {0}.")]
    Path(#[from] PathError),
    /// An invalid or ambiguous query.
    #[error("Refused: invalid query: {0}.")]
    Query(#[from] QueryError),
    /// The policy conceals the requested path.
    #[error(transparent)]
    Concealed(#[from] Concealed),
    /// A response larger than this many bytes, which cannot be buffered as a whole.
    #[error(
        "Refused: the response is larger than {0} bytes and cannot be redacted or watched; request its directories or \
         values one by one."
    )]
    TooLarge(usize),
    /// The request was shed under overload.
    #[error("Refused: {0}; try again in a second.")]
    Overloaded(#[from] Overload),
    /// The metadata server returned no complete response.
    #[error("The metadata server is not available: {0}; try again in a second.")]
    Upstream(Arc<Failure>),
}

/// Why a request cannot be served safely by any server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// HTTP/1.1 without exactly one `Host`, or HTTP/1.0 without a required one.
    #[error("exactly one Host header is required")]
    HostCount,
    /// A `Host` that is not a valid authority.
    #[error("the Host header is not a host name or address with an optional port")]
    Host,
    /// An absolute target of another scheme, or a target that is neither a path nor absolute.
    #[error("the request target must be a path, or an http:// URL of the metadata server")]
    Target,
    /// A body, which is never valid here and might contain another request.
    #[error("a metadata request must not have a body")]
    Body,
    /// An `Upgrade` header: another protocol would bypass every rule.
    #[error("only HTTP/1.1 without Upgrade is supported")]
    Upgrade,
}

/// Which limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    /// Requests that wait for the metadata server.
    #[error("too many requests are waiting for the metadata server (--max-in-flight)")]
    InFlight,
    /// Memory for buffered responses: redacted trees, and values seen by watches.
    #[error("all memory for large answers is in use")]
    LargeAnswers,
    /// Values that are being watched.
    #[error("too many wait_for_change requests are waiting (--max-hanging)")]
    Hanging,
    /// Tokens of one pod: cached or being fetched, beyond its share.
    #[error("this pod requests too many different tokens at once")]
    Tokens,
    /// Watched values: this request was waiting and was ended, because its client has the most watches.
    #[error(
        "this wait_for_change request was ended in favor of another pod, because --max-hanging is reached and this pod has the most"
    )]
    HangingGaveWay,
}

impl Error {
    /// A label from a fixed set, for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::TargetTooLong { .. } => "target_too_long",
            Self::Method(_) => "method",
            Self::Host(_) => "host",
            Self::Forwarded(_) => "forwarded",
            Self::Flavor => "flavor",
            Self::Path(_) => "path",
            Self::Query(_) => "query",
            Self::Concealed(_) => "concealed",
            Self::TooLarge(_) => "too_large",
            Self::Overloaded(Overload::InFlight) => "in_flight",
            Self::Overloaded(Overload::Hanging | Overload::HangingGaveWay) => "hanging",
            Self::Overloaded(Overload::LargeAnswers) => "large_answers",
            Self::Overloaded(Overload::Tokens) => "tokens",
            Self::Upstream(failure) => failure.label(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Upstream(Arc::new(failure))
    }
}

impl From<HostError> for Error {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Malformed => Malformed::Host.into(),
            HostError::NotAllowed(_) => Self::Host(error),
        }
    }
}
