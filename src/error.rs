//! [`Error`]: every refusal and every failure that a request can meet.
//!
//! A layer that will not or cannot answer returns one of these; `layers::rescue` alone turns it into an answer. The
//! text of a variant is what the client reads: one sentence that says what was refused and why.

use std::sync::Arc;

use http::HeaderName;

use crate::layers::conceal::Concealed;
use crate::metadata::host::HostError;
use crate::metadata::path::PathError;
use crate::metadata::query::QueryError;
use crate::upstream::Failure;

/// Why a request got no answer of the upstream's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No request that HTTP/1.1 or this protocol allows.
    #[error("Bad request: {0}.")]
    Malformed(#[from] Malformed),
    /// A request target that is too long, as it came or as it would go upstream.
    #[error("Refused: the request target has {bytes} bytes, percent-encoded where it has to be; {limit} are allowed.")]
    TargetTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// Most bytes that it may have.
        limit: usize,
    },
    /// Only reading is let through.
    #[error("Refused: the method {0} is not allowed here, only GET and HEAD are.")]
    Method(http::Method),
    /// A `Host` (or the authority of an absolute target) that was not let in.
    #[error("Refused: {0}; use metadata.google.internal or 169.254.169.254, or let the name in with --allowed-host.")]
    Host(HostError),
    /// The request came through another proxy.
    #[error("Refused: requests with the header {0} are not allowed, because they came through another proxy.")]
    Forwarded(HeaderName),
    /// The proof that the client means the metadata server is missing or wrong.
    #[error("Refused: the header `Metadata-Flavor: Google` is missing or has another value.")]
    Flavor,
    /// A path that is refused or names nothing.
    #[error("Refused: the path cannot be served: {0}.")]
    Path(#[from] PathError),
    /// A query that could be read in two ways.
    #[error("Refused: the query cannot be served: {0}.")]
    Query(#[from] QueryError),
    /// The policy conceals what was asked for.
    #[error(transparent)]
    Concealed(#[from] Concealed),
    /// An answer above so many bytes, which cannot be held as a whole.
    #[error(
        "Refused: the answer is larger than {0} bytes, and larger ones are neither redacted nor watched; ask for its \
         directories or values one by one."
    )]
    TooLarge(usize),
    /// There is no room for the request.
    #[error("Refused: {0}; try again in a second.")]
    Overloaded(#[from] Overload),
    /// A panic in the proxy.
    #[error("Internal error: the proxy failed while it handled this request, and has logged why.")]
    Panicked,
    /// The metadata server did not give a whole answer.
    #[error("The metadata server is not available: {0}; try again in a second.")]
    Upstream(Arc<Failure>),
}

/// What is wrong with a request that no server could answer safely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// HTTP/1.1 without exactly one `Host`, or HTTP/1.0 without one where one is needed.
    #[error("exactly one Host header is needed")]
    HostCount,
    /// A `Host` that is no authority.
    #[error("the Host header is not a host name or address with an optional port")]
    Host,
    /// An absolute target of another scheme, or a target that is neither a path nor absolute.
    #[error("the request target must be a path, or an http:// URL of the metadata server")]
    Target,
    /// A body where none has a meaning; what it holds might be another request.
    #[error("a request for metadata has no body")]
    Body,
    /// An `Upgrade` header: another protocol would go round every rule.
    #[error("only HTTP/1.1 is spoken here, without Upgrade")]
    Upgrade,
}

/// Of what there is too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    /// Requests that wait for the metadata server.
    #[error("as many requests as --max-in-flight allows wait for the metadata server")]
    InFlight,
    /// Memory for answers that are held as a whole: redacted trees, and what watches have seen.
    #[error("all memory for large answers is in use")]
    LargeAnswers,
    /// Values that are being watched.
    #[error("as many wait_for_change requests as --max-hanging allows are waiting")]
    Hanging,
    /// Tokens that one pod asks for: those kept, or those being fetched, beyond its share.
    #[error("this pod asks for too many different tokens at once")]
    Tokens,
    /// The same, and this one was waiting: its client has the most watches.
    #[error(
        "this wait_for_change request was ended for one of another pod; this pod has the most, and --max-hanging is reached"
    )]
    HangingGaveWay,
}

impl Error {
    /// A name from a closed set, for metric labels and logs.
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
            Self::Panicked => "panic",
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
