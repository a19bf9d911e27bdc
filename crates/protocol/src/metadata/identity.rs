//! Identity tokens: JSON web tokens, forwarded unchanged. Only their expiry is read here.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::token::TokenError;

#[derive(Deserialize)]
struct Claims {
    exp: u64,
}

/// Whole seconds until a token's `exp`, at least 1. `now` is the time of the answer, and used only once. After that, the
/// token's age is measured by a clock that is never set.
pub fn seconds_left(token: &[u8], now: SystemTime) -> Result<u32, TokenError> {
    let mut parts = token.split(|&byte| byte == b'.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(TokenError::Shape);
    };
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| TokenError::Shape)?;
    let claims: Claims = serde_json::from_slice(&claims).map_err(|_| TokenError::Shape)?;
    let expiry = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp)).ok_or(TokenError::Exp)?;
    let left = expiry.duration_since(now).map_err(|_| TokenError::Exp)?.as_secs();
    u32::try_from(left).ok().filter(|left| *left > 0).ok_or(TokenError::Exp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> Vec<u8> {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims)).into_bytes()
    }

    #[test]
    fn a_token_expires_at_its_exp() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_500);
        assert_eq!(seconds_left(&token(r#"{"exp":1003600,"aud":"x"}"#), now), Ok(3599));
        assert_eq!(
            seconds_left(&token(r#"{"exp":1000001}"#), now),
            Err(TokenError::Exp),
            "less than a second counts as expired"
        );
        assert_eq!(seconds_left(&token(r#"{"exp":5}"#), now), Err(TokenError::Exp));
        assert_eq!(seconds_left(&token(r#"{"exp":18446744073709551615}"#), now), Err(TokenError::Exp));
    }

    #[test]
    fn an_invalid_jwt_is_rejected() {
        let now = SystemTime::UNIX_EPOCH;
        for text in [&b""[..], b"a.b", b"a.b.c.d", b"e30.!!.c2ln", &token("[]"), &token(r#"{"exp":"1"}"#), &token("{}")]
        {
            assert_eq!(seconds_left(text, now), Err(TokenError::Shape));
        }
    }
}
