//! [`Error`]: every refusal and every failure that a request can meet.
//!
//! A layer that will not or cannot answer returns one of these; `layers::rescue` alone turns it into an answer. The
//! text of a variant is what the client reads: one sentence that says what was refused and why.

use std::sync::Arc;

use crate::failure::{Failure, TokenFailure};
use crate::metadata::RequestError;
use crate::policy::Concealed;

/// Why a request got no answer of the upstream's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be read in exactly one way, or is not one that this protocol allows.
    #[error(transparent)]
    Request(#[from] RequestError),
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
    /// The metadata server did not give a whole answer.
    #[error("The metadata server is not available: {0}; try again in a second.")]
    Upstream(Arc<Failure>),
    /// The source of tokens did not give one. Shared, because everybody who waited for the token gets it.
    #[error("The metadata server is not available: {0}; try again in a second.")]
    Token(Arc<TokenFailure>),
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
            Self::Request(error) => error.reason(),
            Self::Concealed(_) => "concealed",
            Self::TooLarge(_) => "too_large",
            Self::Overloaded(Overload::InFlight) => "in_flight",
            Self::Overloaded(Overload::Hanging | Overload::HangingGaveWay) => "hanging",
            Self::Overloaded(Overload::LargeAnswers) => "large_answers",
            Self::Overloaded(Overload::Tokens) => "tokens",
            Self::Upstream(failure) => failure.label(),
            Self::Token(failure) => failure.label(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Upstream(Arc::new(failure))
    }
}
