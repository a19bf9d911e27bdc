//! [`Failure`]: why the metadata server gave no whole answer. [`TokenFailure`]: why a source gave no token.

use std::io;
use std::time::Duration;

use crate::metadata::token::TokenError;

/// Time in which an answer must be there (its head, and its body if that is held). Python's and Node's libraries give up
/// after 3 s, and a 503 that they see beats a time-out that they do not understand.
pub const DEADLINE: Duration = Duration::from_millis(2500);

/// Why there is no whole answer of the upstream's. The text is part of what the client reads, and of the log.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection was made.
    #[error("{address} could not be connected to ({error})")]
    Connect {
        /// Host and port, as configured.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// Nothing, or not enough, was heard within this time.
    #[error("it did not answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection ended before the answer's head was there.
    #[error("it closed the connection without an answer")]
    Closed,
    /// The connection ended inside the answer.
    #[error("its answer was cut short")]
    CutShort,
    /// What came is not HTTP/1.
    #[error("what it answered is not HTTP")]
    NotHttp,
    /// A body beyond this many bytes where only a small one has a meaning.
    #[error("its answer is larger than {0} bytes")]
    TooLarge(usize),
    /// A success without `Metadata-Flavor: Google`: something else listens at its address.
    #[error("its answer lacks `Metadata-Flavor: Google`, so something else answers in its place")]
    NoFlavor,
}

impl Failure {
    /// A name from a closed set, for metric labels and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "upstream_connect",
            Self::TimedOut(_) => "upstream_timeout",
            Self::Closed => "upstream_closed",
            Self::CutShort => "upstream_cut_short",
            Self::NotHttp => "upstream_not_http",
            Self::TooLarge(_) => "upstream_too_large",
            Self::NoFlavor => "upstream_no_flavor",
        }
    }

    /// What an error of the HTTP client before the answer's head means.
    pub(crate) fn before_head(error: &hyper::Error) -> Self {
        if error.is_parse() { Self::NotHttp } else { Self::Closed }
    }
}

/// Why a source of tokens gave no token. The text is part of what the client reads, and of the log.
#[derive(Debug, thiserror::Error)]
pub enum TokenFailure {
    /// The server that the source asks gave no whole answer.
    #[error(transparent)]
    Upstream(#[from] Failure),
    /// A success that should have been a token and is not.
    #[error("its answer is not a token: {0}")]
    NotAToken(#[from] TokenError),
    /// The server failed several times in a row and is not asked for a moment.
    #[error("it failed several times in a row and is asked again in a moment")]
    Resting,
    /// The source has no tokens for this caller.
    #[error("it has no tokens for this caller")]
    ForeignPrincipal,
}

impl TokenFailure {
    /// A name from a closed set, for metric labels and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Upstream(failure) => failure.label(),
            Self::NotAToken(_) => "upstream_not_a_token",
            Self::Resting => "upstream_resting",
            Self::ForeignPrincipal => "foreign_principal",
        }
    }
}
