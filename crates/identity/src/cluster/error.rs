//! [`ClusterError`] and [`RequestError`]: why the API server cannot be asked, and why it did not answer.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use kube::client::AuthError;
use kube::config::{InClusterError, KubeconfigError};

/// The settings or files from which the API server and the credential are known are of no use.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig, or a file that it names, cannot be read or is invalid.
    #[error(
        "kubeconfig {}: {error}. The file and those that it names must be mounted at \
         the paths that they have on the node",
        .file.display()
    )]
    Kubeconfig {
        /// The kubeconfig.
        file: PathBuf,
        /// What is wrong.
        error: KubeconfigError,
    },
    /// The kubeconfig asks for something that this client cannot do.
    #[error("kubeconfig {}: {field} is not supported", .file.display())]
    Unsupported {
        /// The kubeconfig.
        file: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// This process has no service account.
    #[error(
        "no service account: {0}. In a pod, mount a token as deploy/components/identity-account does; elsewhere, pass \
         --kubeconfig"
    )]
    NoAccount(#[source] InClusterError),
    /// The credential or the certificate authority is invalid.
    #[error("the credential for the API server at {server} is invalid: {}", root_cause(.error))]
    Credential {
        /// The URL of the API server.
        server: String,
        /// What is wrong.
        error: Box<kube::Error>,
    },
}

/// Why the API server did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// No connection, or it was lost before the response began.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// The connection was lost in the middle of the response.
    #[error("the connection to the API server was lost: {0}")]
    Lost(String),
    /// The connection is there, but nothing is received.
    #[error("nothing was received from the API server for {} s", .0.as_secs())]
    Silent(Duration),
    /// It refused.
    #[error("the API server answered {status}: {message}{hint}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// Its words.
        message: String,
        /// What to do, or nothing.
        hint: &'static str,
    },
    /// The version from which a watch was to go on is too old. Lists anew.
    #[error("the API server no longer has what happened since: {0}")]
    Expired(String),
    /// The response is not what the API server's protocol says.
    #[error("the API server's answer makes no sense: {0}")]
    Invalid(String),
}

/// What went wrong, for counting, and for reporting each thing once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The settings or the credential.
    Cluster,
    /// No connection, or a lost one.
    Connection,
    /// Nothing was received.
    Silent,
    /// Refused with this status.
    Refused(StatusCode),
    /// The version was too old.
    Expired,
    /// The answer makes no sense.
    Invalid,
}

impl RequestError {
    /// What went wrong.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Cluster(_) => Failure::Cluster,
            Self::Unreachable(_) | Self::Lost(_) => Failure::Connection,
            Self::Silent(_) => Failure::Silent,
            Self::Refused { status, .. } => Failure::Refused(*status),
            Self::Expired(_) => Failure::Expired,
            Self::Invalid(_) => Failure::Invalid,
        }
    }
}

/// Tells a credential that cannot be used from an API server that cannot be reached.
pub(super) fn not_sent(server: String, error: kube::Error) -> RequestError {
    match error {
        kube::Error::Auth(_) | kube::Error::HttpError(_) => {
            ClusterError::Credential { server, error: Box::new(error) }.into()
        }
        error if chain(&error).any(<dyn Error>::is::<AuthError>) => {
            ClusterError::Credential { server, error: Box::new(error) }.into()
        }
        error => RequestError::Unreachable(root_cause(&error).to_string()),
    }
}

/// The innermost of a chain of errors. The outer ones only say in which step it occurred.
pub(super) fn root_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    chain(error).last().unwrap_or(error)
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}
