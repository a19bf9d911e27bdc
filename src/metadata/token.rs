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

/// Longest life that is believed, in seconds. Google's access tokens live an hour, and twelve where an organisation's
/// policy lets them be extended.
pub const MAX_LIFE: u32 = 24 * 60 * 60;

/// An access token: everything of the server's answer but its age.
///
/// It keeps its secret: `Debug` redacts it, and memory is wiped when it is dropped, that of the bodies made from it
/// included.
#[derive(PartialEq)]
pub struct AccessToken {
    secret: Zeroizing<String>,
    token_type: String,
    /// Fields that the server may come to add.
    rest: Map<String, Value>,
}

/// How a client wants to read a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `application/json`, as by default.
    Json,
    /// `alt=text`: a line a field.
    Text,
}

/// Why a body is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JSON object with `access_token`, an integer `expires_in` and `token_type`.
    #[error("it is not JSON with access_token, expires_in and token_type")]
    Shape,
    /// An `access_token` that is empty, or has characters that no token has.
    #[error("its access_token is empty or contains invalid characters")]
    Secret,
    /// An `expires_in` of 0, or above [`MAX_LIFE`].
    #[error("its expires_in is not between 1 and {MAX_LIFE}")]
    Life,
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
    /// Reads an answer's body: the token, and the seconds that it has left.
    pub fn parse(body: &[u8]) -> Result<(Self, u32), TokenError> {
        let Wire { access_token: secret, expires_in, token_type, rest } =
            serde_json::from_slice(body).map_err(|_| TokenError::Shape)?;
        if secret.is_empty() || !secret.bytes().all(is_token_byte) {
            return Err(TokenError::Secret);
        }
        if !(1..=MAX_LIFE).contains(&expires_in) {
            return Err(TokenError::Life);
        }
        Ok((Self { secret, token_type, rest }, expires_in))
    }

    /// An answer's body with so many seconds left, in the server's order of fields.
    pub fn body(&self, form: Form, expires_in: u32) -> Bytes {
        // In memory of the very size: a body that outgrew it would leave a copy behind that nobody wipes.
        let mut length = Length(0);
        self.write(&mut length, form, expires_in);
        let mut body = Zeroizing::new(Vec::with_capacity(length.0));
        self.write(&mut *body, form, expires_in);
        Bytes::from_owner(body)
    }

    /// Memory that it takes, in bytes, apart from its own fields. That of unknown fields is a rough estimate.
    pub fn heap(&self) -> usize {
        let mut length = Length(0);
        self.write(&mut length, Form::Json, MAX_LIFE);
        let rest = if self.rest.is_empty() { 0 } else { 8 * length.0 };
        length.0 + rest
    }

    fn write(&self, body: &mut impl Write, form: Form, expires_in: u32) {
        let written = match form {
            Form::Json => self.write_json(body, expires_in),
            Form::Text => self.write_text(body, expires_in),
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

/// Counts what is written.
struct Length(usize);

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

/// Printable ASCII that needs no escape in JSON.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"access_token":"ya29.c.secret","expires_in":3599,"token_type":"Bearer"}"#;

    #[test]
    fn a_token_is_written_as_it_was_read_but_for_its_age() {
        let (token, expires_in) = AccessToken::parse(BODY).expect("a token");
        assert_eq!(expires_in, 3599);
        assert_eq!(token.body(Form::Json, 3599), BODY);
        let aged = br#"{"access_token":"ya29.c.secret","expires_in":7,"token_type":"Bearer"}"#;
        assert_eq!(token.body(Form::Json, 7), &aged[..]);
        assert_eq!(token.body(Form::Text, 7), "access_token ya29.c.secret\nexpires_in 7\ntoken_type Bearer\n");
    }

    #[test]
    fn fields_that_are_not_known_are_kept() {
        let body = br#"{"access_token":"a","expires_in":1,"token_type":"B\"x","new":{"x":[1,"\""]}}"#;
        let (token, _) = AccessToken::parse(body).expect("a token");
        assert_eq!(token.body(Form::Json, 1), &body[..]);
    }

    #[test]
    fn what_is_no_token_is_refused() {
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
    fn debug_tells_no_secret() {
        let (token, _) = AccessToken::parse(BODY).expect("a token");
        assert!(!format!("{token:?}").contains("secret\""), "{token:?}");
        assert!(!format!("{token:#?}").contains("ya29"));
    }
}
