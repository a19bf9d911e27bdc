//! The wire format of access tokens.
//!
//! The upstream's response is validated strictly, because an invalid token does lasting harm: Node's library
//! never refreshes after an `expires_in` of 0, and Go's fails if it is not an integer.

use std::fmt;
use std::io::Write;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

/// Maximum accepted lifetime, in seconds. Google's access tokens live one hour, or up to twelve if an organisation's
/// policy extends them.
pub const MAX_LIFE_SECONDS: u32 = 24 * 60 * 60;

/// An access token: all of the server's response except `expires_in`.
///
/// `Debug` redacts the secret. Its memory is wiped on drop, and so is the memory of bodies built from it.
#[derive(PartialEq)]
pub struct AccessToken {
    secret: Zeroizing<String>,
    token_type: String,
    /// Fields that the server may add in the future.
    rest: Map<String, Value>,
}

/// The format of a token response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFormat {
    /// `application/json`, the default.
    Json,
    /// `alt=text`: one line per field.
    Text,
}

/// Reason why a response body is not a valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JSON object with `access_token`, an integer `expires_in` and `token_type`.
    #[error("it is not JSON with access_token, expires_in and token_type")]
    Shape,
    /// An `access_token` that is empty or contains characters that no token contains.
    #[error("its access_token is empty or contains invalid characters")]
    Secret,
    /// An `expires_in` of 0 or above [`MAX_LIFE_SECONDS`].
    #[error("its expires_in is not between 1 and {MAX_LIFE_SECONDS}")]
    Life,
    /// An `exp` that is over, or is not a time.
    #[error("its exp is not later than the answer")]
    Exp,
}

#[derive(Deserialize)]
struct Wire {
    access_token: Zeroizing<String>,
    expires_in: u32,
    token_type: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl AccessToken {
    /// Parses a response body into the token and its remaining lifetime in seconds.
    pub fn parse(body: &[u8]) -> Result<(Self, u32), TokenError> {
        let Wire { access_token: secret, expires_in, token_type, rest } =
            serde_json::from_slice(body).map_err(|_| TokenError::Shape)?;
        if !is_token(secret.as_bytes()) {
            return Err(TokenError::Secret);
        }
        if !(1..=MAX_LIFE_SECONDS).contains(&expires_in) {
            return Err(TokenError::Life);
        }
        Ok((Self { secret, token_type, rest }, expires_in))
    }

    /// Creates a token of type Bearer.
    pub fn bearer(secret: Zeroizing<String>) -> Result<Self, TokenError> {
        if !is_token(secret.as_bytes()) {
            return Err(TokenError::Secret);
        }
        Ok(Self { secret, token_type: "Bearer".to_owned(), rest: Map::new() })
    }

    /// A response body with this remaining lifetime in seconds, with the server's order of fields.
    pub fn body(&self, form: TokenFormat, expires_in: u32) -> Bytes {
        // Allocate the exact size: a reallocation would leave a copy behind that is not wiped.
        let mut length = Length(0);
        self.write(&mut length, form, expires_in);
        let mut body = Zeroizing::new(Vec::with_capacity(length.0));
        self.write(&mut *body, form, expires_in);
        Bytes::from_owner(body)
    }

    /// Heap memory, in bytes. For unknown fields this is a rough estimate.
    pub fn heap(&self) -> usize {
        let mut length = Length(0);
        self.write(&mut length, TokenFormat::Json, MAX_LIFE_SECONDS);
        let rest = if self.rest.is_empty() { 0 } else { 8 * length.0 };
        length.0 + rest
    }

    fn write(&self, body: &mut impl Write, form: TokenFormat, expires_in: u32) {
        let written = match form {
            TokenFormat::Json => self.write_json(body, expires_in),
            TokenFormat::Text => self.write_text(body, expires_in),
        };
        written.expect("writing to memory does not fail");
    }

    fn write_json(&self, body: &mut impl Write, expires_in: u32) -> std::io::Result<()> {
        let (secret, token_type) = (self.secret.as_str(), Value::from(self.token_type.as_str()));
        write!(body, r#"{{"access_token":"{secret}","expires_in":{expires_in},"token_type":{token_type}"#)?;
        for (name, value) in &self.rest {
            write!(body, ",{}:{value}", Value::from(name.as_str()))?;
        }
        write!(body, "}}")
    }

    fn write_text(&self, body: &mut impl Write, expires_in: u32) -> std::io::Result<()> {
        let (secret, token_type) = (self.secret.as_str(), &self.token_type);
        write!(body, "access_token {secret}\nexpires_in {expires_in}\ntoken_type {token_type}\n")
    }
}

/// Counts the bytes that are written to it. What is allocated at its exact size leaves no copies behind that are not wiped.
#[derive(Debug)]
pub struct Length(pub usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken")
            .field("secret", &"[redacted]")
            .field("token_type", &self.token_type)
            .finish_non_exhaustive()
    }
}

/// Whether a token can be sent in a header, and in JSON without escaping.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"access_token":"ya29.c.secret","expires_in":3599,"token_type":"Bearer"}"#;

    #[test]
    fn a_body_equals_the_response_except_for_expires_in() {
        let (token, expires_in) = AccessToken::parse(BODY).expect("a token");
        assert_eq!(expires_in, 3599);
        assert_eq!(token.body(TokenFormat::Json, 3599), BODY);
        let aged = br#"{"access_token":"ya29.c.secret","expires_in":7,"token_type":"Bearer"}"#;
        assert_eq!(token.body(TokenFormat::Json, 7), &aged[..]);
        assert_eq!(token.body(TokenFormat::Text, 7), "access_token ya29.c.secret\nexpires_in 7\ntoken_type Bearer\n");
    }

    #[test]
    fn unknown_fields_are_kept() {
        let body = br#"{"access_token":"a","expires_in":1,"token_type":"B\"x","new":{"x":[1,"\""]}}"#;
        let (token, _) = AccessToken::parse(body).expect("a token");
        assert_eq!(token.body(TokenFormat::Json, 1), &body[..]);
    }

    #[test]
    fn an_invalid_token_is_rejected() {
        for (body, error) in [
            ("", TokenError::Shape),
            ("<html>", TokenError::Shape),
            ("[]", TokenError::Shape),
            (r#"{"access_token":"a","expires_in":3599}"#, TokenError::Shape),
            (r#"{"expires_in":3599,"token_type":"Bearer"}"#, TokenError::Shape),
            (r#"{"access_token":"a","expires_in":"3599","token_type":"Bearer"}"#, TokenError::Shape),
            (r#"{"access_token":"a","expires_in":3599.5,"token_type":"Bearer"}"#, TokenError::Shape),
            (r#"{"access_token":"a","expires_in":-1,"token_type":"Bearer"}"#, TokenError::Shape),
            (r#"{"access_token":"a","expires_in":1e99,"token_type":"Bearer"}"#, TokenError::Shape),
            (r#"{"access_token":"a","expires_in":99999999999,"token_type":"Bearer"}"#, TokenError::Shape),
            (r#"{"access_token":"a","expires_in":86401,"token_type":"Bearer"}"#, TokenError::Life),
            (r#"{"access_token":"a","expires_in":0,"token_type":"Bearer"}"#, TokenError::Life),
            (r#"{"access_token":"","expires_in":1,"token_type":"Bearer"}"#, TokenError::Secret),
            (r#"{"access_token":"a\nb","expires_in":1,"token_type":"Bearer"}"#, TokenError::Secret),
            (r#"{"access_token":"a","expires_in":3599,"token_type":"Bearer"} x"#, TokenError::Shape),
        ] {
            assert_eq!(AccessToken::parse(body.as_bytes()).map(|(_, life)| life), Err(error), "{body}");
        }
    }

    #[test]
    fn debug_redacts_the_secret() {
        let (token, _) = AccessToken::parse(BODY).expect("a token");
        assert!(!format!("{token:?}").contains("secret\""), "{token:?}");
        assert!(!format!("{token:#?}").contains("ya29"));
    }
}
