//! [`NotGiven`]: the reason why one of Google's servers gave no token.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;

use super::secret::Secret;
use super::server::Fault;

/// Maximum length of a server's error message that is passed on, in characters.
const MAX_TEXT: usize = 600;

/// Delay after 429 if the server names none.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The reason why one of Google's servers gave no token.
#[derive(Debug, Clone)]
pub enum NotGiven {
    /// No response, a server error, or an invalid response.
    Failed(String),
    /// Too many requests. None is sent before this time has passed.
    Throttled(Duration),
    /// A refusal.
    Refused(Said),
}

/// A server's refusal. It does not contain the token that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub status: StatusCode,
    /// OAuth's error code, such as `invalid_grant`, or the `reason` of Google's APIs, such as `SERVICE_DISABLED`. May
    /// be empty.
    pub code: String,
    /// A sentence, or the beginning of a response in another form.
    pub message: String,
    /// The API that `code` is about, such as `iamcredentials.googleapis.com`. May be empty.
    pub service: String,
    /// The project that `code` is about, such as `projects/123`. May be empty.
    pub consumer: String,
    /// Whether the response has OAuth's form.
    is_oauth: bool,
    /// Whether it says that a quota is used up, which it may with another status than 429.
    is_used_up: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Oauth {
        error: String,
        #[serde(default)]
        error_description: String,
    },
    Api {
        error: ApiError,
    },
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    status: String,
    message: Option<String>,
    #[serde(default)]
    details: Vec<Detail>,
}

/// An `ErrorInfo`, or another detail, which has no reason.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Detail {
    reason: String,
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    service: String,
    consumer: String,
}

impl NotGiven {
    /// Reads a response other than 200 to a request with this token. The server may name a time before the next request.
    pub(super) fn read(status: StatusCode, retry_after: Option<Duration>, body: &Bytes, sent: &Secret) -> Self {
        let said = Said::read(status, body, sent);
        if status == StatusCode::TOO_MANY_REQUESTS || said.is_used_up {
            Self::Throttled(retry_after.unwrap_or(DEFAULT_RETRY_AFTER))
        } else if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT {
            Self::Refused(said)
        } else {
            Self::Failed(format!("it answered {status}"))
        }
    }

    /// A successful response without a token.
    pub(super) fn not_a_token() -> Self {
        Self::Failed("its answer is not a token".to_owned())
    }
}

impl Fault for NotGiven {
    fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn used_up(&self) -> Option<Duration> {
        match self {
            Self::Throttled(named) => Some(*named),
            Self::Failed(_) | Self::Refused(_) => None,
        }
    }
}

impl Said {
    /// Reads a response to a request with this token.
    pub(super) fn read(status: StatusCode, body: &Bytes, sent: &Secret) -> Self {
        let quoted = |text: &str| quoted(text, sent);
        let said = |message: &str| Self {
            status,
            code: String::new(),
            message: quoted(message),
            service: String::new(),
            consumer: String::new(),
            is_oauth: false,
            is_used_up: false,
        };
        let whole = || String::from_utf8_lossy(body);
        match serde_json::from_slice(body) {
            Ok(Written::Oauth { error, error_description }) if !error.is_empty() => {
                Self { code: quoted(&error), is_oauth: true, ..said(&error_description) }
            }
            Ok(Written::Api { error: ApiError { status, message, details } }) => {
                let detail = details.into_iter().find(|detail| !detail.reason.is_empty()).unwrap_or_default();
                let Detail { reason, metadata: Metadata { service, consumer } } = detail;
                let [code, service, consumer] = [reason, service, consumer].map(|text| quoted(&text));
                let is_used_up = status == "RESOURCE_EXHAUSTED";
                Self { code, service, consumer, is_used_up, ..said(&message.map_or_else(whole, Into::into)) }
            }
            _ => said(&whole()),
        }
    }
}

/// The beginning of a server's message, without the token that was sent to it and without characters that could break
/// lines in a log.
fn quoted(words: &str, sent: &Secret) -> String {
    let words = words.replace(sent.text.as_str(), "[redacted]");
    words.chars().filter(|char| !char.is_control()).take(MAX_TEXT).collect()
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_oauth { write!(f, "{}: {}", self.code, self.message) } else { f.write_str(&self.message) }
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use base::clock::BootTime;

    #[test]
    fn a_refusal_is_read_in_each_form_without_the_token() {
        let sent = Secret::new(Zeroizing::new("s3cret".to_owned()), BootTime::now(), Duration::from_secs(1));
        let said = |body: &str| Said::read(StatusCode::FORBIDDEN, &body.to_owned().into(), &sent);
        let oauth = said(r#"{"error":"invalid_grant","error_description":"s3cret is stale"}"#);
        assert_eq!(
            (oauth.code.as_str(), oauth.to_string()),
            ("invalid_grant", "invalid_grant: [redacted] is stale".to_owned())
        );
        let api = said(
            r#"{"error":{"code":403,"message":"s3cret: it is off.","details":[{"@type":"Help"},{"reason":"SERVICE_DISABLED",
            "metadata":{"service":"iamcredentials.googleapis.com","consumer":"projects/7"}}]}}"#,
        );
        let parts = [&api.code, &api.service, &api.consumer].map(String::as_str);
        assert_eq!(parts, ["SERVICE_DISABLED", "iamcredentials.googleapis.com", "projects/7"]);
        assert_eq!(api.to_string(), "[redacted]: it is off.");
        for (body, text) in
            [("<html>s3cret</html>", "<html>[redacted]</html>"), ("", ""), (r#"{"error":""}"#, r#"{"error":""}"#)]
        {
            assert_eq!((said(body).to_string().as_str(), said(body).code.as_str()), (text, ""));
        }
    }

    #[test]
    fn the_status_or_the_name_of_the_error_tells_a_quota_from_a_refusal_and_a_failure() {
        const NAMED: &str = r#"{"error":{"status":"RESOURCE_EXHAUSTED"}}"#;
        let sent = Secret::new(Zeroizing::new("s3cret".to_owned()), BootTime::now(), Duration::from_secs(1));
        for (status, body, kind) in [
            (429, "", "Throttled"),
            (403, NAMED, "Throttled"),
            (503, NAMED, "Throttled"),
            (403, r#"{"error":{"status":"PERMISSION_DENIED"}}"#, "Refused"),
            (408, "", "Failed"),
            (503, "", "Failed"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let read = NotGiven::read(status, None, &body.into(), &sent);
            assert!(format!("{read:?}").starts_with(kind), "{status} {body}: {read:?}");
        }
    }
}
