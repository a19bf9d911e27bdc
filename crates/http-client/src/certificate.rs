//! [`BadCertificate`]: why a server's certificate was not accepted, found in an error of connecting.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter::successors;

use rustls::CertificateError;

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

impl BadCertificate {
    /// Looks for it in an error and its causes.
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        successors(Some(error), |error| (*error).source()).find_map(of).map(Self::from)
    }
}

/// The refusal of a certificate that this error is or has inside. An I/O error is not the source of what it wraps.
fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CertificateError> {
    if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
        return Some(why);
    }
    of(error.downcast_ref::<io::Error>()?.get_ref()?)
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

/// Continues "the server's certificate".
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

    fn found(why: CertificateError) -> Option<BadCertificate> {
        // As a connector wraps it, more than once.
        let error = io::Error::other(io::Error::other(rustls::Error::InvalidCertificate(why)));
        BadCertificate::find(&error)
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
            assert_eq!(found(why.clone()), Some(bad), "{why:?}");
        }
        for other in [rustls::Error::HandshakeNotComplete, rustls::Error::DecryptError] {
            assert_eq!(BadCertificate::find(&io::Error::other(other)), None);
        }
        assert_eq!(BadCertificate::find(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }
}
