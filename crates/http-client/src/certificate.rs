//! [`TlsFailure`] and [`BadCertificate`]: why there is no TLS with a server that was reached, found in an error of connecting.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter::successors;

use rustls::{AlertDescription, CertificateError};

/// Why there is no TLS with a server that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsFailure {
    /// Its certificate was not accepted.
    Certificate(BadCertificate),
    /// It answered, but not by TLS.
    NotTls,
    /// It has no version of TLS, or no cipher, in common with this client.
    Incompatible,
    /// Another reason, which the error itself has.
    Other,
}

/// Why a server's certificate was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BadCertificate {
    /// It is of an authority that is not trusted.
    Untrusted,
    Expired,
    NotYetValid,
    /// It is for another name than the one under which the server was asked.
    WrongName,
    /// Another reason, which the error itself has.
    Other,
}

impl TlsFailure {
    /// Looks for it in an error and its causes. `None` also if the connection was lost during the handshake.
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        successors(Some(error), |error| (*error).source()).find_map(of).map(Self::from)
    }
}

/// The error of TLS that this error is or has inside. An I/O error is not the source of what it wraps.
fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref() {
        return Some(error);
    }
    of(error.downcast_ref::<io::Error>()?.get_ref()?)
}

impl From<&rustls::Error> for TlsFailure {
    fn from(error: &rustls::Error) -> Self {
        use AlertDescription::{HandshakeFailure, InsufficientSecurity, ProtocolVersion};
        match error {
            rustls::Error::InvalidCertificate(why) => Self::Certificate(why.into()),
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::PeerIncompatible(_)
            | rustls::Error::AlertReceived(HandshakeFailure | InsufficientSecurity | ProtocolVersion) => {
                Self::Incompatible
            }
            _ => Self::Other,
        }
    }
}

impl From<&CertificateError> for BadCertificate {
    fn from(error: &CertificateError) -> Self {
        match error {
            // Another authority of the same name has another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Untrusted,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
            _ => Self::Other,
        }
    }
}

/// Continues "the server".
impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(bad) => write!(f, "has a certificate that {bad}"),
            Self::NotTls => f.write_str("answers, but does not speak TLS (HTTPS)"),
            Self::Incompatible => f.write_str("has no version of TLS, or no cipher, in common with this client"),
            Self::Other => f.write_str("answers, but TLS with it fails"),
        }
    }
}

/// Continues "a certificate that".
impl fmt::Display for BadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untrusted => "is of an authority that is not trusted",
            Self::Expired => "has expired",
            Self::NotYetValid => "is not valid yet",
            Self::WrongName => "is for another name",
            Self::Other => "is not accepted",
        })
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    fn found(error: rustls::Error) -> Option<TlsFailure> {
        // As a connector wraps it, more than once.
        TlsFailure::find(&io::Error::other(io::Error::other(error)))
    }

    #[test]
    fn a_refused_certificate_is_found_inside_other_errors() {
        let (now, then) = (UnixTime::now(), UnixTime::now());
        let name = ServerName::try_from("a.invalid").expect("a name");
        for (why, bad) in [
            (CertificateError::UnknownIssuer, BadCertificate::Untrusted),
            (CertificateError::BadSignature, BadCertificate::Untrusted),
            (CertificateError::Expired, BadCertificate::Expired),
            (CertificateError::ExpiredContext { time: now, not_after: then }, BadCertificate::Expired),
            (CertificateError::NotValidYetContext { time: now, not_before: then }, BadCertificate::NotYetValid),
            (
                CertificateError::NotValidForNameContext { expected: name, presented: Vec::new() },
                BadCertificate::WrongName,
            ),
            (CertificateError::Revoked, BadCertificate::Other),
        ] {
            let found = found(rustls::Error::InvalidCertificate(why.clone()));
            assert_eq!(found, Some(TlsFailure::Certificate(bad)), "{why:?}");
        }
    }

    #[test]
    fn other_failures_of_tls_are_told_apart_and_from_a_lost_connection() {
        use rustls::{InvalidMessage, PeerIncompatible};
        for (error, failure) in [
            (InvalidMessage::InvalidContentType.into(), TlsFailure::NotTls),
            (PeerIncompatible::ServerDoesNotSupportTls12Or13.into(), TlsFailure::Incompatible),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), TlsFailure::Incompatible),
            (rustls::Error::AlertReceived(AlertDescription::HandshakeFailure), TlsFailure::Incompatible),
            (rustls::Error::AlertReceived(AlertDescription::AccessDenied), TlsFailure::Other),
            (rustls::Error::DecryptError, TlsFailure::Other),
        ] {
            assert_eq!(found(error.clone()), Some(failure), "{error:?}");
        }
        for lost in [io::ErrorKind::ConnectionRefused, io::ErrorKind::UnexpectedEof] {
            assert_eq!(TlsFailure::find(&io::Error::from(lost)), None);
        }
    }
}
