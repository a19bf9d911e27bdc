//! [`Workload`] and [`Subject`]: the identity that a token is for.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Prefix of access tokens.
const PREFIX: &str = "ya29.fake";

/// Separates the parts of an access token. It is allowed in a `Bearer` header, and occurs in no name.
const SEPARATOR: char = '~';

/// Replaces `@`, which is not allowed in a `Bearer` header.
const AT: char = '+';

/// Stands for a missing e-mail or certificate.
const NOBODY: &str = "-";

/// A Kubernetes service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    pub namespace: String,
    pub service_account: String,
}

impl Workload {
    pub fn new(namespace: &str, service_account: &str) -> Self {
        Self { namespace: namespace.to_owned(), service_account: service_account.to_owned() }
    }
}

/// `namespace/name`.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service_account)
    }
}

/// The identity that a token is for.
///
/// The text of an access token contains all fields, but is opaque to the proxy:
///
/// ```text
/// ya29.fake~NAMESPACE~SERVICE_ACCOUNT~POD_UID~EMAIL~SCOPES~CERTIFICATE~NOISE
/// ```
///
/// In `EMAIL`, `+` stands for `@`; it is `-` in a federated token. `SCOPES` is base64url of the scopes, separated by
/// spaces. `CERTIFICATE` is the fingerprint of the certificate that the token is bound to, or `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The Kubernetes service account.
    pub workload: Workload,
    /// UID of the pod to which the service account token was bound.
    pub pod_uid: String,
    /// The Google service account. `None` in a federated token.
    pub email: Option<String>,
    /// Requested scopes of an access token. Empty for an identity token.
    pub scopes: Vec<String>,
    /// Fingerprint of the certificate that an access token is bound to, as requested.
    pub bound_to: Option<String>,
}

impl Subject {
    /// Parses an access token. `None` for any other text.
    pub fn read(token: &str) -> Option<Self> {
        let mut parts = token.split(SEPARATOR);
        let mut next = || parts.next();
        if next()? != PREFIX {
            return None;
        }
        let workload = Workload::new(next()?, next()?);
        let pod_uid = next()?.to_owned();
        let email = Some(next()?).filter(|email| *email != NOBODY).map(|email| email.replace(AT, "@"));
        let scopes = String::from_utf8(URL_SAFE_NO_PAD.decode(next()?).ok()?).ok()?;
        let scopes = scopes.split_whitespace().map(str::to_owned).collect();
        let bound_to = Some(next()?).filter(|fingerprint| *fingerprint != NOBODY).map(str::to_owned);
        next()?;
        Some(Self { workload, pod_uid, email, scopes, bound_to })
    }

    /// The text of an access token up to the noise.
    pub(super) fn write(&self) -> String {
        let Self { workload: Workload { namespace, service_account }, pod_uid, email, scopes, bound_to } = self;
        let email = email.as_ref().map_or_else(|| NOBODY.to_owned(), |email| email.replace('@', &AT.to_string()));
        let scopes = URL_SAFE_NO_PAD.encode(scopes.join(" "));
        let bound_to = bound_to.as_deref().unwrap_or(NOBODY);
        let parts = [PREFIX, namespace, service_account, pod_uid, &email, &scopes, bound_to, ""];
        parts.join(&SEPARATOR.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            workload: Workload::new("shop", "check.out"),
            pod_uid: "6f0a9d3e-5b1c".into(),
            email: Some("a@p.iam.gserviceaccount.com".into()),
            scopes: vec!["https://x/a".into(), "b".into()],
            bound_to: None,
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let bound = Subject { bound_to: Some("f".repeat(43)), ..subject() };
        for subject in [subject(), bound, Subject { email: None, scopes: Vec::new(), ..subject() }] {
            let token = subject.write() + "noise";
            assert_eq!(Subject::read(&token), Some(subject));
        }
    }

    #[test]
    fn a_header_can_hold_it() {
        let token = subject().write();
        assert!(token.starts_with("ya29.fake~shop~check.out~6f0a9d3e-5b1c~a+p.iam.gserviceaccount.com~"), "{token}");
        // RFC 6750, section 2.1.
        assert!(token.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._~+/".contains(letter)), "{token}");
    }

    #[test]
    fn other_texts_are_nobodys() {
        for text in ["", "ya29.fake", "ya29.real~a~b~c~-~~-~n", "ya29.fake~a~b~c~-~?~-~n"] {
            assert_eq!(Subject::read(text), None, "{text}");
        }
    }
}
