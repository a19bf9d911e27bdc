//! [`Claims`]: the claims of a Kubernetes token. Nothing is verified: the token came from the API server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The claims of a Kubernetes token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) issuer: String,
    pub(super) audiences: Vec<String>,
    /// Time of issue, in seconds since 1970.
    pub(super) issued: u64,
    /// Expiry, in seconds since 1970.
    pub(super) expires: u64,
    /// ID of the key that signed it. Empty if it is missing.
    pub(super) key: String,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    kid: String,
}

#[derive(Deserialize)]
struct Payload {
    iss: String,
    aud: Audiences,
    iat: u64,
    exp: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

impl Claims {
    /// Decodes a token. `None` if it is not a JSON web token of a service account.
    pub(super) fn read(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let header: Header = part(parts.next()?)?;
        let Payload { iss, aud, iat, exp } = part(parts.next()?)?;
        let audiences = match aud {
            Audiences::One(audience) => vec![audience],
            Audiences::Several(audiences) => audiences,
        };
        Some(Self { issuer: iss, audiences, issued: iat, expires: exp, key: header.kid })
    }
}

fn part<T: for<'a> Deserialize<'a>>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}
