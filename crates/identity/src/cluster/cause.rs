//! [`Cause`]: why a credential cannot be used, without text of its files.
//!
//! Messages are logged, shown on pages and sent to pods. kube's own messages quote the YAML around a mistake, headers and broken
//! lines of PEM: a token or a key.

use std::error::Error;
use std::fmt::{self, Display};
use std::io::{self, ErrorKind};
use std::path::Path;

use kube::client::{AuthError, RustlsTlsError};
use kube::config::{InClusterError, KubeconfigError, LoadDataError};
use serde_saphyr::Error as YamlError;

/// Formats why a credential cannot be used.
#[derive(Debug)]
pub(super) struct Cause<'a>(pub(super) &'a (dyn Error + 'static));

/// Advice if this error is that a file is missing, or empty.
pub(super) fn advice(error: &(dyn Error + 'static)) -> &'static str {
    let io = chain(error).last().and_then(|error| error.downcast_ref::<io::Error>());
    match io.map(io::Error::kind) {
        Some(ErrorKind::NotFound) => {
            ". The file and those that it names must be mounted at the paths that they have on the node; without a kubeconfig, \
             there is deploy/components/identity-fenced"
        }
        _ => "",
    }
}

impl Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in chain(self.0) {
            if let Some(error) = error.downcast_ref() {
                return of_kubeconfig(error, f);
            }
            match error.downcast_ref() {
                Some(AuthError::ReadTokenFile(error, file)) => return unread(f, "tokenFile", file, error),
                Some(AuthError::ParseTokenKey(_)) => return f.write_str("the output of its auth-provider is invalid"),
                Some(_) | None => {}
            }
            if matches!(error.downcast_ref(), Some(RustlsTlsError::InvalidIdentityPem(_))) {
                return f.write_str("client-certificate or client-key is not valid PEM");
            }
            if matches!(error.downcast_ref(), Some(InClusterError::ParseCertificates(_))) {
                return f.write_str("the service account's ca.crt is not valid PEM");
            }
        }
        // The innermost error but for the kernel's own, which does not name the file that could not be read.
        let cause = chain(self.0).take_while(|error| !error.is::<io::Error>()).last();
        Display::fmt(cause.unwrap_or(self.0), f)
    }
}

fn of_kubeconfig(error: &KubeconfigError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        KubeconfigError::CurrentContextNotSet => f.write_str("it has no current-context; set it"),
        KubeconfigError::LoadContext(name) => write!(f, "its current-context {name:?} is not in it"),
        KubeconfigError::LoadClusterOfContext(name) => {
            write!(f, "the cluster {name:?} of its current-context is not in it")
        }
        KubeconfigError::ReadConfig(error, _) => error.fmt(f),
        KubeconfigError::Parse(error) => of_yaml(error.without_snippet(), f),
        KubeconfigError::LoadCertificateAuthority(error) => of_data("certificate-authority", error, f),
        KubeconfigError::LoadClientCertificate(error) => of_data("client-certificate", error, f),
        KubeconfigError::LoadClientKey(error) => of_data("client-key", error, f),
        KubeconfigError::ParseCertificates(_) => f.write_str("certificate-authority is not valid PEM"),
        error => error.fmt(f),
    }
}

/// Only messages that are known to have no text of the file.
fn of_yaml(error: &YamlError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(at) = error.location() {
        write!(f, "line {}, column {}: ", at.line(), at.column())?;
    }
    match error {
        // The parser's, of which only one has a character of the file.
        YamlError::ExternalMessage { msg, .. } => f.write_str(msg),
        YamlError::SerdeMissingField { field, .. } => write!(f, "no field {field}"),
        YamlError::SerdeInvalidType { expected, .. } => write!(f, "expected {expected}"),
        YamlError::Unexpected { expected, .. } => write!(f, "expected {expected}"),
        _ => f.write_str("it is not a kubeconfig"),
    }
}

fn of_data(field: &str, error: &LoadDataError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        LoadDataError::DecodeBase64(_) => write!(f, "{field}-data is not valid base64"),
        LoadDataError::ReadFile(error, file) => unread(f, field, file, error),
        LoadDataError::NoBase64DataOrFile => write!(f, "{field} is missing"),
    }
}

fn unread(f: &mut fmt::Formatter<'_>, field: &str, file: &Path, error: &io::Error) -> fmt::Result {
    write!(f, "{field} {}: {error}", file.display())
}

/// An error, and those that caused it.
pub(super) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}
