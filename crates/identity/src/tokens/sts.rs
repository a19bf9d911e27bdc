//! Google's Security Token Service: a federated token for a Kubernetes token.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::google::{Call, Google};
use super::halt::Halt;
use super::not_given::NotGiven;
use super::rest::Rest;
use super::secret::Secret;
use crate::workloads::{Federation, QuotaProject};
use base::clock::BootTime;
use protocol::metadata::Fingerprint;
use protocol::metadata::token::is_token;
use proxy::failure::{ExchangeFailure, Withheld};
use proxy::tokens::wipe;

/// The scope of a token for all of Google's APIs.
pub(super) const CLOUD_PLATFORM: &str = "https://www.googleapis.com/auth/cloud-platform";

const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

/// A request for a federated token.
pub(super) struct Exchange<'a> {
    pub(super) subject: &'a Secret,
    /// Scopes, separated by spaces.
    pub(super) scopes: &'a str,
    /// The project charged for the holder's calls.
    pub(super) quota_project: Option<&'a QuotaProject>,
    /// The certificate whose key is needed to use the token.
    pub(super) bound_to: Option<&'a Fingerprint>,
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

/// Google's extensions of the standard, sent as JSON in a string.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Options<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    user_project: Option<&'a str>,
    /// Base64url without padding of the SHA-256 hash of the certificate in DER.
    #[serde(skip_serializing_if = "Option::is_none")]
    bind_cert_fingerprint: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: Zeroizing<String>,
    expires_in: Option<u32>,
}

impl Exchange<'_> {
    pub(super) async fn send(&self, google: &Google, federation: &Federation) -> Result<Secret, NotGiven> {
        let asked = BootTime::now();
        let url = format!("{}/v1/token", federation.sts);
        let call = Call { url, bearer: None, quota_project: None, body: self.body(&federation.sts_audience()) };
        let response = google.post(call, self.subject).await?;
        let body = response.into_body();
        let answer = serde_json::from_slice::<Answer>(&body);
        wipe(body);
        let Answer { access_token, expires_in } = answer.map_err(|_| NotGiven::not_a_token())?;
        if !is_token(access_token.as_bytes()) {
            return Err(NotGiven::not_a_token());
        }
        // It ends with the token that it was exchanged for, whatever the response says.
        let left = self.subject.expires.since(asked);
        let life = expires_in.map_or(left, |seconds| Duration::from_secs(seconds.into()).min(left));
        Ok(Secret::new(access_token, asked, life).issued_for(self.subject))
    }

    fn body(&self, audience: &str) -> Zeroizing<Vec<u8>> {
        let question = Question {
            grant_type: GRANT,
            audience,
            scope: self.scopes,
            requested_token_type: ACCESS_TOKEN,
            subject_token_type: JWT,
            subject_token: &self.subject.text,
            options: self.options(),
        };
        // It never grows: that would leave a copy behind which is not wiped. JSON may take six characters for one.
        let capacity = 1024 + self.subject.text.len() + 6 * (audience.len() + self.scopes.len());
        let mut body = Zeroizing::new(Vec::with_capacity(capacity));
        serde_json::to_writer(&mut *body, &question).expect("texts only");
        body
    }

    fn options(&self) -> Option<String> {
        let user_project = self.quota_project.map(QuotaProject::as_str);
        let bind_cert_fingerprint = self.bound_to.map(ToString::to_string);
        let has_any = user_project.is_some() || bind_cert_fingerprint.is_some();
        let options = Options { user_project, bind_cert_fingerprint };
        has_any.then(|| serde_json::to_string(&options).expect("texts only"))
    }
}

/// Converts an error into the answer for pods and the rest before the next exchange.
///
/// `names_project`: the exchange names a project for the calls of the token's holder.
pub(super) fn halt(error: NotGiven, names_project: bool) -> Halt {
    match error {
        NotGiven::Failed(why) => Halt::failed(ExchangeFailure::Sts(why)),
        NotGiven::Throttled(retry_after) => Halt::throttled(
            if names_project { Withheld::Project } else { Withheld::Quota },
            "Unable to generate access token; STS returned 429 Too Many Requests.\n".to_owned(),
            retry_after,
        ),
        NotGiven::Refused(said) => {
            let text = format!("Unable to generate access token; STS returned {}: {said}\n", said.status);
            let why = withheld(&said.code, names_project);
            // All accounts of all nodes ask in vain. They are not to use up the quota: 429 would hide what is wrong.
            let rest = if why == Withheld::Untrusted { Rest::Doubling } else { Rest::Fixed };
            Halt::refused(why, StatusCode::FORBIDDEN, text, rest)
        }
    }
}

/// Whether a refusal may be one of this Kubernetes token alone: one that is issued now may be accepted.
pub(super) fn refuses_subject(error: &NotGiven) -> bool {
    matches!(error, NotGiven::Refused(said) if said.code == "invalid_grant")
}

/// Whether a refusal affects all pods, by its code. A pod chooses scopes and a certificate, and a workload a project; the pool, the
/// provider and the key of its token are the cluster's. What the provider's condition refuses (`unauthorized_client`) is one account.
fn withheld(code: &str, names_project: bool) -> Withheld {
    match code {
        "invalid_grant" | "invalid_target" => Withheld::Untrusted,
        "SERVICE_DISABLED" if !names_project => Withheld::Untrusted,
        _ => Withheld::Account,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::not_given::Said;
    use super::*;

    fn subject() -> Secret {
        Secret::new(Zeroizing::new("head.s3cret.sign".to_owned()), BootTime::now(), Duration::from_secs(3600))
    }

    #[test]
    fn the_question_is_that_of_the_reference() {
        let subject = subject();
        let exchange = Exchange { subject: &subject, scopes: "a b\"", quota_project: None, bound_to: None };
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
    fn a_bound_token_is_asked_for_by_the_fingerprint() {
        let (subject, fingerprint) = (subject(), Fingerprint::from([0xff; 32]));
        let exchange = Exchange { subject: &subject, scopes: "a", quota_project: None, bound_to: Some(&fingerprint) };
        let sent: Value = serde_json::from_slice(&exchange.body("audience")).expect("JSON");
        let options = serde_json::from_str::<Value>(sent["options"].as_str().expect("a text")).expect("JSON");
        assert_eq!(options, json!({ "bindCertFingerprint": "__________________________________________8" }));
    }

    #[test]
    fn a_refusal_is_passed_on_without_the_token() {
        let said = Said::read(StatusCode::BAD_REQUEST, &"no head.s3cret.sign".into(), &subject());
        let halt = halt(NotGiven::Refused(said), false);
        let proxy::tokens::NoToken::Refused(refused) = &halt.why else { panic!("{halt:?}") };
        assert_eq!((refused.status, halt.rest), (StatusCode::FORBIDDEN, Rest::Fixed));
        assert_eq!(refused.body, "Unable to generate access token; STS returned 400 Bad Request: no [redacted]\n");
    }

    #[test]
    fn only_a_refusal_that_no_pod_can_provoke_is_one_of_all() {
        let of = |code: &str, names_project| {
            let body = format!(r#"{{"error":"{code}","error_description":"no"}}"#);
            let said = Said::read(StatusCode::BAD_REQUEST, &body.into(), &subject());
            let proxy::tokens::NoToken::Refused(refused) = halt(NotGiven::Refused(said), names_project).why else {
                panic!("{code}")
            };
            refused.withheld.expect("a reason")
        };
        for code in ["invalid_grant", "invalid_target"] {
            assert_eq!((of(code, false), of(code, true)), (Withheld::Untrusted, Withheld::Untrusted), "{code}");
        }
        assert_eq!(
            (of("SERVICE_DISABLED", false), of("SERVICE_DISABLED", true)),
            (Withheld::Untrusted, Withheld::Account)
        );
        for code in ["invalid_scope", "invalid_request", "unauthorized_client", "PERMISSION_DENIED", ""] {
            assert_eq!(of(code, false), Withheld::Account, "{code}");
        }
    }
}
