//! [`TlsFailure`] and [`BadCertificate`]: why there is no TLS with a server that was reached, found in an error of connecting.

use std::error::Error;
use std::io;
use std::iter::successors;

use rustls::{AlertDescription, CertificateError};
use strum::Display;

/// Why there is no TLS with a server that was reached. Continues "the server".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
pub enum TlsFailure {
    /// Its certificate was not accepted.
    #[strum(to_string = "has a certificate that {0}")]
    Certificate(BadCertificate),
    #[strum(to_string = "answers, but does not speak TLS (HTTPS)")]
    NotTls,
    #[strum(to_string = "has no version of TLS, or no cipher, in common with this client")]
    Incompatible,
    /// Another reason, which the error itself has.
    #[strum(to_string = "answers, but TLS with it fails")]
    Other,
}

/// Why a server's certificate was not accepted. Continues "a certificate that".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
pub enum BadCertificate {
    #[strum(to_string = "is of an authority that is not trusted")]
    Untrusted,
    #[strum(to_string = "has expired")]
    Expired,
    #[strum(to_string = "is not valid yet")]
    NotYetValid,
    /// The server was asked under a name that is not in it.
    #[strum(to_string = "is for another name")]
    WrongName,
    /// Another reason, which the error itself has.
    #[strum(to_string = "is not accepted")]
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
