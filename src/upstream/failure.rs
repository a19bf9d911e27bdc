//! [`Failure`]: how an upstream can let us down.

use std::io;
use std::time::Duration;

use crate::metadata::token::TokenError;

/// Why there is no whole answer of the upstream's. The text is part of what the client reads, and of the log.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection was made.
    #[error("cannot connect to {address} ({error})")]
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
    #[error("it closed the connection without a response")]
    Closed,
    /// The connection ended inside the answer.
    #[error("its response was cut short")]
    CutShort,
    /// What came is not HTTP/1.
    #[error("its response is not HTTP")]
    NotHttp,
    /// A body beyond this many bytes where only a small one has a meaning.
    #[error("its response is larger than {0} bytes")]
    TooLarge(usize),
    /// A success that was to be a token and is none.
    #[error("its response is not a token: {0}")]
    NotAToken(TokenError),
    /// It failed several times in a row and is left alone for a moment.
    #[error("it failed several times in a row and will be retried shortly")]
    Resting,
    /// A success without `Metadata-Flavor: Google`: something else listens at its address.
    #[error("its response lacks `Metadata-Flavor: Google`, so a different server answers at its address")]
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
            Self::NotAToken(_) => "upstream_not_a_token",
            Self::Resting => "upstream_resting",
            Self::NoFlavor => "upstream_no_flavor",
        }
    }

    /// What an error of the HTTP client before the answer's head means.
    pub(super) fn before_head(error: &hyper::Error) -> Self {
        if error.is_parse() { Self::NotHttp } else { Self::Closed }
    }
}
