//! [`Claims`]: what a Kubernetes token says of itself. Nothing is verified: it came from the API server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// What a Kubernetes token says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    /// Who issued it.
    pub(super) issuer: String,
    /// Whom it is for.
    pub(super) audiences: Vec<String>,
    /// When it was issued, in seconds since 1970.
    pub(super) issued: u64,
    /// When it ends, in seconds since 1970.
    pub(super) expires: u64,
    /// The key that signed it. Empty if it does not say.
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
    /// Reads a token. `None` if it is not a JSON web token of a service account.
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
