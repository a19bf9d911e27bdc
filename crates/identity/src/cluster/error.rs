//! [`ClusterError`] and [`RequestError`]: errors before a request to the API server, and errors of a request.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use kube::client::AuthError;
use kube::config::{InClusterError, KubeconfigError};

use super::cause::{Cause, advice, chain};
use base::backoff::Jitter;
pub use http_client::certificate::{BadCertificate, TlsFailure};

/// The settings or files that describe the API server and the credential are unusable.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig, or a file that it names, cannot be read or is invalid.
    #[error("kubeconfig {}: {}{}", .file.display(), Cause(.error), advice(.error))]
    Kubeconfig { file: PathBuf, error: KubeconfigError },
    /// The credential comes from a program. The images have none but the proxy, and running it would block.
    #[error(
        "kubeconfig {}: its user has a program ({program}, by `exec` or `auth-provider`) instead of a credential, which is not run. \
         Give one whose user has a certificate or a token; without a kubeconfig, there is deploy/components/identity-fenced",
        .file.display()
    )]
    Program { file: PathBuf, program: String },
    /// The kubeconfig requests something that this client does not support.
    #[error("kubeconfig {}: {field} is not supported", .file.display())]
    Unsupported { file: PathBuf, field: &'static str },
    /// This process has no service account.
    #[error(
        "no service account: {}. In a pod, mount a token as deploy/components/identity-account does; elsewhere, pass \
         --kubeconfig",
        Cause(.0)
    )]
    NoAccount(InClusterError),
    /// The credential or the certificate authority is invalid.
    #[error("the credential for the API server at {server} is invalid: {}", Cause(.error.as_ref()))]
    Credential {
        /// The URL of the API server.
        server: String,
        error: Box<kube::Error>,
    },
    /// The credential was refused, and the next one could not be read less than a second ago, for this reason.
    #[error("{0}")]
    Unread(String),
}

/// Error of a request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The settings or the credential are unusable.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// No connection, or it was lost before the response began.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// The API server, or another server at its address, was reached, but there is no TLS with it.
    #[error("the API server {why}: {message}")]
    Tls { why: TlsFailure, message: String },
    /// The connection was lost in the middle of the response.
    #[error("the connection to the API server was lost: {0}")]
    Lost(String),
    /// The connection is open, but nothing is received.
    #[error("nothing was received from the API server for {} s", .0.as_secs())]
    Silent(Duration),
    /// The API server refused the request.
    #[error("the API server answered {status}: {message}{hint}")]
    Refused {
        status: StatusCode,
        /// The API server's message.
        message: String,
        /// Advice for the operator, or empty.
        hint: &'static str,
        /// The time that it demands until the next request.
        retry_after: Option<Duration>,
    },
    /// Too many requests. None should be sent before this time has passed.
    #[error("the API server answered 429 Too Many Requests: {message}")]
    Throttled {
        /// The API server's message.
        message: String,
        retry_after: Duration,
    },
    /// The version from which a watch was to resume is too old. A new list is needed.
    #[error("the API server no longer has what happened since: {0}")]
    Expired(String),
    /// The response does not follow the API server's protocol.
    #[error("the API server's answer makes no sense: {0}")]
    Invalid(String),
}

/// The kind of an error, for counting, and for reporting each kind once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The settings or the credential.
    Cluster,
    /// No connection, or a lost one.
    Connection,
    /// No TLS with the API server, or another server at its address.
    Tls(TlsFailure),
    /// Nothing was received.
    Silent,
    /// Refused with this status.
    Refused(StatusCode),
    /// The version of a watch was too old.
    Expired,
    /// The response is invalid.
    Invalid,
}

/// Maximum demand of an API server that is followed.
const MAX_DEMANDED: Duration = Duration::from_secs(60);

/// The nodes that an overloaded API server has refused do not come back all at once.
const LATER: Jitter = Jitter(1.0, 1.5);

impl RequestError {
    /// Minimum time until the next request: what the API server demands, up to a minute, and a little longer. Zero if it demands
    /// nothing. `random` is between 0 and 1.
    pub fn demanded(&self, random: f64) -> Duration {
        let demanded = match self {
            Self::Throttled { retry_after, .. } => *retry_after,
            Self::Refused { retry_after, .. } => retry_after.unwrap_or_default(),
            Self::Cluster(_)
            | Self::Unreachable(_)
            | Self::Tls { .. }
            | Self::Lost(_)
            | Self::Silent(_)
            | Self::Expired(_)
            | Self::Invalid(_) => Duration::ZERO,
        };
        LATER.of(demanded.min(MAX_DEMANDED), random)
    }

    /// The kind of this error.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Cluster(_) => Failure::Cluster,
            Self::Unreachable(_) | Self::Lost(_) => Failure::Connection,
            Self::Tls { why, .. } => Failure::Tls(*why),
            Self::Silent(_) => Failure::Silent,
            Self::Refused { status, .. } => Failure::Refused(*status),
            Self::Throttled { .. } => Failure::Refused(StatusCode::TOO_MANY_REQUESTS),
            Self::Expired(_) => Failure::Expired,
            Self::Invalid(_) => Failure::Invalid,
        }
    }
}

/// Distinguishes an unusable credential from an API server that is not reached, or not trusted.
pub(super) fn not_sent(server: String, error: kube::Error) -> RequestError {
    let is_of_credential = matches!(error, kube::Error::Auth(_) | kube::Error::HttpError(_));
    if is_of_credential || chain(&error).any(<dyn Error>::is::<AuthError>) {
        return ClusterError::Credential { server, error: Box::new(error) }.into();
    }
    let message = root_cause(&error).to_string();
    match TlsFailure::find(&error) {
        Some(why) => RequestError::Tls { why, message },
        None => RequestError::Unreachable(message),
    }
}

/// The innermost of a chain of errors. The outer ones only say in which step it occurred.
pub(super) fn root_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    chain(error).last().unwrap_or(error)
}
