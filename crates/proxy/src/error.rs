//! [`Error`]: every reason to refuse or fail a request.
//!
//! A layer that refuses or fails a request returns an [`Error`]; only `layers::rescue` turns it into a response. The
//! text of a variant is sent to the client: one sentence that says what was refused and why. The reason, status and
//! outcome of an error are chosen below, in exhaustive matches.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;

use crate::failure::{Failure, TokenFailure, Withheld};
use crate::policy::Concealed;
use crate::refused::Refused;
use crate::reply;
use protocol::metadata::query::QueryError;
use protocol::metadata::{CallingPod, RequestError, Unidentified};
use telemetry::latency::RequestOutcome;

/// Reason why a request was refused or failed. All requests that waited for one answer get a clone.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Not a valid HTTP/1.1 or metadata request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The policy conceals the requested path.
    #[error(transparent)]
    Concealed(#[from] Concealed),
    /// The pod that sent the request is not known.
    #[error("Unavailable: {why}{}.", .0.why.advice(), why = .0)]
    Unidentified(#[from] Unidentified),
    /// The connection belongs to a pod that has ended, or is older than the pod that has its address now. It is reset.
    #[error("Refused: the pod that opened this connection has ended.")]
    Outdated,
    /// A pod requests an account, but its service account has no Google account here.
    #[error(
        "Refused: the service account {}/{} has no Google account here, and the node's is not its own (--passthrough lists \
         accounts that may use the node's).", .0.namespace, .0.service_account
    )]
    NoAccount(Arc<CallingPod>),
    /// The pod's service account cannot be used, or is unknown.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// A pod reads a tree that may include the node's accounts, which cannot be removed from it.
    #[error(
        "Refused: a recursive read of this directory may include the node's service accounts; read /computeMetadata/v1/ instead."
    )]
    IncludesAccounts,
    /// A pod requests a path of another API version or in another spelling, under which the server may give the node's tokens.
    #[error(
        "Refused: this path may lead to the node's service accounts; use /computeMetadata/v1/ and the names as they are documented \
         (lower and upper case differ)."
    )]
    LeadsToAccounts,
    /// A response larger than this many bytes, which cannot be buffered as a whole.
    #[error(
        "Refused: the response is larger than {0} bytes and cannot be redacted or watched; request its directories or \
         values one by one."
    )]
    TooLarge(usize),
    /// The request was shed under overload.
    #[error("Refused: {0}; try again in a second.")]
    Overloaded(#[from] Overload),
    /// A request that waits for a change was ended, because the process ends or the policy has changed. That is no overload.
    #[error(
        "Refused: this wait_for_change request was ended, because the proxy on this node is being stopped or replaced, or \
         its policy has changed; try again in a second."
    )]
    Draining,
    /// A panic in the proxy.
    #[error("Internal error: the proxy failed to handle this request; its log says why.")]
    Panicked,
    /// The metadata server returned no complete response.
    #[error("The metadata server is not available: {0}; try again in a second.")]
    Upstream(Arc<Failure>),
    /// The token source returned no token. Shared, because all requests that waited for the token get it.
    #[error("{what} is not available: {0}{advice}; try again in {wait}.", what = .0.what(), advice = .0.advice(), wait = wait(.0))]
    Token(Arc<TokenFailure>),
    /// The token source refused the pod's own token. The answer is passed on.
    #[error("{}", .1.line())]
    Withheld(Withheld, Arc<Refused>),
}

/// Reason why a pod's service account cannot be used. The text is sent to the pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// Its configuration is malformed. The text is Google's.
    #[error("{0}")]
    Malformed(Box<str>),
    /// The account no longer exists.
    #[error("Refused: {0}.")]
    Deleted(Box<str>),
    /// The account has just changed.
    #[error("Unavailable: {0}; try again in a second.")]
    Changed(Box<str>),
    /// The account is not known yet. It is the API server that has not told it, which no pod can bring about.
    #[error("Unavailable: {0}; try again in a second.")]
    Unknown(Box<str>),
}

/// The limit that was reached.
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
    /// Tokens of others: all are waited for, or the fetch has ended without a result.
    #[error("there is no room for another token")]
    TokenRoom,
    /// Certificates of one pod, to which its tokens are bound.
    #[error("this pod had tokens bound to other certificates within the last hour, and only a few are kept")]
    Certificates,
    /// Watched values: this waiting request was ended, because its client has the most watches.
    #[error(
        "this wait_for_change request was ended in favor of another pod, because --max-hanging is reached and this pod has the most"
    )]
    HangingGaveWay,
}

impl Error {
    /// A label from a fixed set, for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Request(error) => error.reason(),
            Self::Concealed(_) => "concealed",
            Self::Unidentified(_) => "unidentified",
            Self::Outdated => "outdated",
            Self::NoAccount(_) | Self::IncludesAccounts | Self::LeadsToAccounts => "no_account",
            Self::Account(AccountError::Malformed(_)) => "malformed_account",
            Self::Account(AccountError::Deleted(_)) => "deleted_account",
            Self::Account(AccountError::Changed(_)) => "changed_account",
            Self::Account(AccountError::Unknown(_)) => "unknown_account",
            Self::TooLarge(_) => "too_large",
            Self::Overloaded(Overload::InFlight) => "in_flight",
            Self::Overloaded(Overload::Hanging | Overload::HangingGaveWay) => "hanging",
            Self::Overloaded(Overload::LargeAnswers) => "large_answers",
            Self::Overloaded(Overload::Tokens | Overload::TokenRoom | Overload::Certificates) => "tokens",
            Self::Draining => "draining",
            Self::Panicked => "panic",
            Self::Upstream(failure) => failure.label(),
            Self::Token(failure) => failure.label(),
            Self::Withheld(why, _) => why.label(),
        }
    }

    /// The policy's refusal, which knows the requested path and the rule.
    pub fn concealed(&self) -> Option<&Concealed> {
        match self {
            Self::Concealed(concealed) => Some(concealed),
            _ => None,
        }
    }

    /// What another server said, if the answer is its own, or why the path is not to blame.
    pub fn said(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Concealed(concealed) => concealed.besides_path().map(Cow::Borrowed),
            Self::Withheld(_, refused) => Some(refused.line()),
            _ => None,
        }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Request(error) => status_of_request(error),
            // Not 503, because a retry would not help.
            Self::TooLarge(_)
            | Self::NoAccount(_)
            | Self::Account(AccountError::Malformed(_) | AccountError::Deleted(_))
            | Self::IncludesAccounts
            | Self::LeadsToAccounts
            | Self::Outdated => StatusCode::FORBIDDEN,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Withheld(_, refused) => refused.status,
            // The policy chooses between forbidden and not found.
            Self::Concealed(concealed) => concealed.status(),
            // Never 502: Python's library retries 503 and gives up on 502.
            Self::Overloaded(_)
            | Self::Draining
            | Self::Upstream(_)
            | Self::Token(_)
            | Self::Unidentified(_)
            | Self::Account(AccountError::Changed(_) | AccountError::Unknown(_)) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The request's outcome in metrics.
    pub fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Request(_)
            | Self::Concealed(_)
            | Self::TooLarge(_)
            | Self::NoAccount(_)
            | Self::Account(_)
            | Self::IncludesAccounts
            | Self::LeadsToAccounts
            | Self::Outdated
            | Self::Draining
            | Self::Unidentified(_)
            // The client alone is to blame: it must not use up the objective of all others.
            | Self::Overloaded(Overload::Tokens | Overload::Certificates) => RequestOutcome::Refused,
            Self::Overloaded(_) => RequestOutcome::Shed,
            // A refusal of one account is for its owner to fix.
            Self::Withheld(why, _) if !why.affects_all() => RequestOutcome::Refused,
            Self::Withheld(..) | Self::Upstream(_) | Self::Token(_) | Self::Panicked => RequestOutcome::Failed,
        }
    }
}

/// The time that `Retry-After` has.
fn wait(failure: &TokenFailure) -> Cow<'static, str> {
    match reply::whole_seconds(failure.rests()) {
        1 => "a second".into(),
        seconds => format!("{seconds} s").into(),
    }
}

fn status_of_request(error: &RequestError) -> StatusCode {
    match error {
        // As the server: libraries take 403 for a concealed value.
        RequestError::Malformed(_) | RequestError::Query(QueryError::Timeout) => StatusCode::BAD_REQUEST,
        RequestError::TargetTooLong { .. } => StatusCode::URI_TOO_LONG,
        RequestError::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
        // A path that two servers may parse differently is forbidden, because it may be meant to evade the policy. A
        // name that cannot exist is not found.
        RequestError::Path(error) if !error.is_evasion() => StatusCode::NOT_FOUND,
        RequestError::BoundToken(_) => StatusCode::NOT_FOUND,
        RequestError::Host(_)
        | RequestError::Forwarded(_)
        | RequestError::Flavor
        | RequestError::Path(_)
        | RequestError::Query(_) => StatusCode::FORBIDDEN,
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Upstream(Arc::new(failure))
    }
}
