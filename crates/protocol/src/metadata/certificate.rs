//! [`BoundTo`]: the certificate that a token is to be bound to, read from the body of a POST.
//!
//! Client libraries that find an agent certificate in their pod send `{"certificate_chain": PEM}`, the leaf first. Nothing proves
//! that the sender has the leaf's key, and no authority is asked: the token is the sender's own in any case, and binding only makes
//! it useless without that key. So all that is read of a chain is the name in the leaf, and what the leaf hashes to.
//!
//! The form is read strictly, because a client that sends anything else expects behaviour that is unknown here. webpki reads the
//! certificates.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use webpki::EndEntityCert;

/// Maximum body, in bytes. A chain of three certificates with RSA keys has some 6 KiB.
pub const MAX_BODY_BYTES: usize = 16 * 1024;

/// Maximum certificates of a chain. Google's have two or three.
pub const MAX_CERTIFICATES: usize = 5;

/// Maximum length of a SPIFFE ID, in bytes (SPIFFE-ID, section 2.3).
const MAX_NAME_BYTES: usize = 2048;

/// What the names of Google's trust domains end with: `PROJECT.svc.id.goog`, `agents.global.org-N.system.id.goog`. Client
/// libraries request bound tokens only for the latter.
const TRUST_DOMAINS: &str = ".id.goog";

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The certificate that a token is to be bound to, and the Kubernetes service account that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundTo {
    /// Identifies the certificate.
    pub fingerprint: Fingerprint,
    namespace: Box<str>,
    account: Box<str>,
}

/// The SHA-256 hash of a certificate. Written as Google's Security Token Service takes it: base64url without padding, which
/// has 43 characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

/// Why a token is not bound to the certificate that a POST sends. The text is sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotBound {
    /// Whatever it sends.
    #[error("this server issues no tokens that are bound to a certificate, which POST asks for")]
    Off,
    /// The pod acts as the node.
    #[error("this pod acts as the node, whose tokens are not bound to a certificate")]
    Node,
    /// Google's APIs issue none.
    #[error("identity tokens are not bound to a certificate")]
    Identity,
    /// A Google account's token is issued for a federated one, which would be bound to a key that only the pod has.
    #[error("the pod's service account is linked to a Google account, whose tokens are not bound to a certificate")]
    Linked,
    /// The body is too long, or not read.
    #[error(
        "the body is not {{\"certificate_chain\": PEM}} in JSON of at most {MAX_BODY_BYTES} bytes with a Content-Length"
    )]
    Form,
    /// Not only certificates, or too many.
    #[error("certificate_chain is not one to {MAX_CERTIFICATES} certificates in PEM, and nothing else")]
    Pem,
    /// Not a certificate.
    #[error("certificate_chain has a certificate that cannot be read")]
    Certificate,
    /// Not a name of Google's for a Kubernetes service account.
    #[error(
        "the first certificate of certificate_chain does not have exactly one URI, \
         spiffe://DOMAIN{TRUST_DOMAINS}/ns/NAMESPACE/sa/ACCOUNT"
    )]
    Name,
    /// It names another account than the sender's.
    #[error("the first certificate of certificate_chain is not that of the pod's own service account")]
    Foreign,
}

/// The body. A field that is not known, or one that comes twice, is a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Posted<'a> {
    #[serde(borrow)]
    certificate_chain: Cow<'a, str>,
}

impl BoundTo {
    /// Reads the body of a POST.
    pub fn parse(body: &[u8]) -> Result<Self, NotBound> {
        // serde also takes a list for a struct.
        if body.len() > MAX_BODY_BYTES || !body.trim_ascii_start().starts_with(b"{") {
            return Err(NotBound::Form);
        }
        let posted: Posted<'_> = serde_json::from_slice(body).map_err(|_| NotBound::Form)?;
        let chain = certificates(&posted.certificate_chain).ok_or(NotBound::Pem)?;
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        let read = |der| EndEntityCert::try_from(der).map_err(|_| NotBound::Certificate);
        let read: Vec<_> = chain.iter().map(read).collect::<Result<_, _>>()?;
        let (leaf, der) = read.first().zip(chain.first()).ok_or(NotBound::Pem)?;
        let mut names = leaf.valid_uri_names();
        let (Some(name), None) = (names.next(), names.next()) else { return Err(NotBound::Name) };
        let (namespace, account) = account(name).ok_or(NotBound::Name)?;
        let fingerprint = Fingerprint(Sha256::digest(der).into());
        Ok(Self { fingerprint, namespace: namespace.into(), account: account.into() })
    }

    /// Whether the certificate names this Kubernetes service account.
    pub fn is_of(&self, namespace: &str, account: &str) -> bool {
        *self.namespace == *namespace && *self.account == *account
    }
}

/// The certificates of a chain, in DER. `None` if there is anything between them but empty lines, or if there are too many.
fn certificates(pem: &str) -> Option<Vec<Vec<u8>>> {
    let mut lines = pem.lines().filter(|line| !line.is_empty());
    let mut chain = Vec::new();
    while let Some(first) = lines.next() {
        if first != BEGIN || chain.len() == MAX_CERTIFICATES {
            return None;
        }
        let mut text = String::new();
        loop {
            match lines.next()? {
                END => break,
                line => text.push_str(line),
            }
        }
        chain.push(STANDARD.decode(text).ok()?);
    }
    (!chain.is_empty()).then_some(chain)
}

/// Namespace and name of the account with this SPIFFE ID.
fn account(name: &str) -> Option<(&str, &str)> {
    let (domain, path) = name.strip_prefix("spiffe://")?.split_once('/')?;
    let is_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_');
    if name.len() > MAX_NAME_BYTES || !domain.ends_with(TRUST_DOMAINS) || !domain.bytes().all(is_domain) {
        return None;
    }
    let (namespace, account) = path.strip_prefix("ns/")?.split_once("/sa/")?;
    let is_name = |name: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        (1..=253).contains(&name.len()) && name.bytes().all(is_allowed)
    };
    (is_name(namespace) && is_name(account)).then_some((namespace, account))
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(any(test, feature = "oracle"))]
impl From<[u8; 32]> for Fingerprint {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

#[cfg(test)]
mod tests;
