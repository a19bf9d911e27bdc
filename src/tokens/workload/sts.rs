//! Google's Security Token Service: a federated token for a Kubernetes token.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::google::{self, Call, CallError, Google};
use super::halt::Halt;
use super::rest::Rest;
use super::secret::Secret;
use crate::clock::BootTime;
use crate::failure::ExchangeFailure;
use crate::workloads::{Federation, QuotaProject};

/// The scope of a token for all of Google's APIs.
pub(super) const CLOUD_PLATFORM: &str = "https://www.googleapis.com/auth/cloud-platform";

const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

/// What is asked for.
pub(super) struct Exchange<'a> {
    pub(super) subject: &'a Secret,
    /// Scopes, separated by spaces.
    pub(super) scopes: &'a str,
    /// The project that the holder's calls are charged to.
    pub(super) quota_project: Option<&'a QuotaProject>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    grant_type: &'a str,
    audience: &'a str,
    scope: &'a str,
    requested_token_type: &'a str,
    subject_token_type: &'a str,
    subject_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: Zeroizing<String>,
    expires_in: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: String,
    error_description: String,
}

impl Exchange<'_> {
    /// Exchanges the token.
    pub(super) async fn send(&self, google: &Google, federation: &Federation) -> Result<Secret, Halt> {
        let asked = BootTime::now();
        let url = format!("{}/v1/token", federation.sts);
        let call = Call { url, bearer: None, quota_project: None, body: self.body(&federation.sts_audience()) };
        let response = google.post(call).await.map_err(|error| self.halt(error))?;
        let body = response.into_body();
        let answer = serde_json::from_slice::<Answer>(&body);
        google::wipe(body);
        let invalid = || Halt::failed(ExchangeFailure::Sts("its answer is not a token".to_owned()));
        let Answer { access_token, expires_in } = answer.map_err(|_| invalid())?;
        if !google::is_token(&access_token) {
            return Err(invalid());
        }
        // It ends with the token that it was given for, whatever the answer says.
        let left = self.subject.expires.since(asked);
        let life = expires_in.map_or(left, |seconds| Duration::from_secs(seconds.into()).min(left));
        Ok(Secret::new(access_token, asked, life))
    }

    fn body(&self, audience: &str) -> Zeroizing<Vec<u8>> {
        let question = Question {
            grant_type: GRANT,
            audience,
            scope: self.scopes,
            requested_token_type: ACCESS_TOKEN,
            subject_token_type: JWT,
            subject_token: &self.subject.text,
            options: self.quota_project.map(|project| format!(r#"{{"userProject":"{project}"}}"#)),
        };
        // It never grows: that would leave a copy behind which is not wiped. JSON writes a character as up to six.
        let capacity = 1024 + self.subject.text.len() + 6 * (audience.len() + self.scopes.len());
        let mut body = Zeroizing::new(Vec::with_capacity(capacity));
        serde_json::to_writer(&mut *body, &question).expect("texts only");
        body
    }

    fn halt(&self, error: CallError) -> Halt {
        match error {
            CallError::Failed(why) => Halt::failed(ExchangeFailure::Sts(why)),
            CallError::Throttled(retry_after) => Halt::throttled(
                "Unable to generate access token; STS returned 429 Too Many Requests.\n".to_owned(),
                retry_after,
            ),
            CallError::Refused(status, body) => {
                let text = format!("Unable to generate access token; STS returned {status}: {}\n", self.said(&body));
                Halt::refused(StatusCode::FORBIDDEN, text, Rest::Fixed)
            }
        }
    }

    fn said(&self, body: &[u8]) -> String {
        let said = match serde_json::from_slice::<Refusal>(body) {
            Ok(Refusal { error, error_description }) if !error.is_empty() => format!("{error}: {error_description}"),
            _ => String::from_utf8_lossy(body).into_owned(),
        };
        google::quoted(&said, self.subject)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn subject() -> Secret {
        Secret::new(Zeroizing::new("head.s3cret.sign".to_owned()), BootTime::now(), Duration::from_secs(3600))
    }

    #[test]
    fn the_question_is_that_of_the_reference() {
        let subject = subject();
        let exchange = Exchange { subject: &subject, scopes: "a b\"", quota_project: None };
        let body = exchange.body("audience");
        assert!(body.capacity() >= body.len() + 500);
        let expected = json!({
            "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
            "audience": "audience",
            "scope": "a b\"",
            "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
            "subjectTokenType": "urn:ietf:params:oauth:token-type:jwt",
            "subjectToken": "head.s3cret.sign",
        });
        assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expected);
    }

    #[test]
    fn a_refusal_is_passed_on_without_the_token() {
        let subject = subject();
        let exchange = Exchange { subject: &subject, scopes: "", quota_project: None };
        for (body, said) in [
            (
                r#"{"error":"invalid_grant","error_description":"head.s3cret.sign is stale"}"#,
                "invalid_grant: [redacted] is stale",
            ),
            ("<html>head.s3cret.sign</html>", "<html>[redacted]</html>"),
            ("", ""),
        ] {
            assert_eq!(exchange.said(body.as_bytes()), said);
        }
        let halt = exchange.halt(CallError::Refused(StatusCode::BAD_REQUEST, "no".into()));
        let crate::tokens::NoToken::Refused(refused) = &halt.why else { panic!("{halt:?}") };
        assert_eq!((refused.status, halt.rest), (StatusCode::FORBIDDEN, Rest::Fixed));
        assert_eq!(refused.body, "Unable to generate access token; STS returned 400 Bad Request: no\n");
    }
}
