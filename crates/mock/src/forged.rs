//! Tokens that look like Google's. Their noise differs from that of any other mock, so that a restarted mock does not repeat tokens.

use std::hash::{DefaultHasher, Hash, Hasher};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Size of an RSA signature with a 2048-bit key, in bytes.
const SIGNATURE_BYTES: usize = 256;

/// Minimum length of the noise in a token, in characters.
const MIN_NOISE: usize = 16;

/// Adds noise until the token has this length in bytes, or longer if it is long already.
pub(crate) fn padded(mut token: String, length: usize) -> String {
    let missing = length.saturating_sub(token.len()).max(MIN_NOISE);
    token.push_str(&URL_SAFE_NO_PAD.encode(noise(missing))[..missing]);
    token
}

/// A well-formed JWT with these claims. Its signature is noise, so no verifier accepts it, and no two are equal, even in the same
/// second.
pub(crate) fn jwt(claims: &Value) -> String {
    let header = json!({ "alg": "RS256", "kid": "mock", "typ": "JWT" });
    let [header, claims] = [&header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(noise(SIGNATURE_BYTES)))
}

/// An account's number of 21 digits, which depends only on its e-mail.
pub(crate) fn account_number(email: &str) -> String {
    let mut hasher = DefaultHasher::new();
    email.hash(&mut hasher);
    format!("1{:020}", hasher.finish())
}

fn noise(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::fill(&mut bytes);
    bytes
}
