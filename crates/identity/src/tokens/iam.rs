//! Google's IAM Service Account Credentials API: tokens of a Google service account for a federated token.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::google::{Call, Google};
use super::halt::Halt;
use super::kept::Ask;
use super::not_given::NotGiven;
use super::rest::Rest;
use super::secret::Secret;
use super::sts::CLOUD_PLATFORM;
use crate::workloads::{Endpoint, GoogleAccount, Link};
use base::clock::BootTime;
use protocol::metadata::identity;
use protocol::metadata::token::is_token;
use proxy::failure::{ExchangeFailure, Withheld};
use proxy::tokens::{TokenKind, servers_time, wipe};
use telemetry::labels::Label;

/// The scope without which Google's own libraries cannot find out the account of a token.
const USERINFO_EMAIL: &str = "https://www.googleapis.com/auth/userinfo.email";

/// Requested lifetime. Longer ones need an organisation's consent.
const LIFE: Duration = Duration::from_secs(3600);

/// Google's text after a refusal for a missing right.
const HINT: &str = "This error could be caused by a missing IAM policy binding on the target IAM service account.\n\
    For more information, refer to the Workload Identity documentation:\n\
    \thttps://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity#authenticating_to\n\n";

/// A request for a token of a Google service account.
pub(super) struct Impersonation<'a> {
    pub(super) account: &'a GoogleAccount,
    pub(super) link: &'a Link,
    pub(super) federated: &'a Secret,
    pub(super) ask: &'a Ask,
}

/// Reason why no token was issued.
pub(super) enum NotIssued {
    /// The federated token is not accepted.
    NotAccepted(Halt),
    Halt(Halt),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessAnswer {
    access_token: Zeroizing<String>,
    expire_time: String,
}

#[derive(Deserialize)]
struct IdentityAnswer {
    token: Zeroizing<String>,
}

impl Impersonation<'_> {
    pub(super) async fn send(&self, google: &Google, iam: &Endpoint) -> Result<Secret, NotGiven> {
        let asked = BootTime::now();
        let call = Call {
            url: self.url(iam),
            bearer: Some(self.federated),
            quota_project: self.link.quota_project.as_ref(),
            body: Zeroizing::new(self.body().to_string().into_bytes()),
        };
        let response = google.post(call, self.federated).await?;
        let answer = match self.ask.kind {
            TokenKind::Access => access(&response),
            TokenKind::Identity => identity_token(&response),
        };
        wipe(response.into_body());
        let is_good = |(token, life): &(Zeroizing<String>, Duration)| is_token(token.as_bytes()) && !life.is_zero();
        let (token, life) = answer.filter(is_good).ok_or_else(NotGiven::not_a_token)?;
        Ok(Secret::new(token, asked, life.min(LIFE)))
    }

    fn url(&self, iam: &Endpoint) -> String {
        let method = match self.ask.kind {
            TokenKind::Access => "generateAccessToken",
            TokenKind::Identity => "generateIdToken",
        };
        format!("{iam}/v1/projects/-/serviceAccounts/{}:{method}", self.account)
    }

    fn body(&self) -> Value {
        let mut body = match (self.ask.kind, &*self.ask.what) {
            (TokenKind::Access, "") => json!({"scope": [CLOUD_PLATFORM, USERINFO_EMAIL], "lifetime": "3600s"}),
            (TokenKind::Access, scopes) => {
                json!({"scope": scopes.split(',').collect::<Vec<_>>(), "lifetime": "3600s"})
            }
            (TokenKind::Identity, audience) => json!({"audience": audience, "includeEmail": true}),
        };
        if !self.link.delegates.is_empty() {
            let delegate = |account: &GoogleAccount| format!("projects/-/serviceAccounts/{account}");
            body["delegates"] = self.link.delegates.iter().map(delegate).collect();
        }
        body
    }

    /// Google's own server passes the status on, too, with this text.
    pub(super) fn not_issued(&self, error: NotGiven) -> NotIssued {
        let kind = self.ask.kind.label();
        match error {
            NotGiven::Failed(why) => NotIssued::Halt(Halt::failed(ExchangeFailure::Iam(why))),
            NotGiven::Throttled(retry_after) => NotIssued::Halt(Halt::throttled(
                Withheld::Project,
                format!("Unable to generate {kind} token; IAM returned 429 Too Many Requests.\n"),
                retry_after,
            )),
            NotGiven::Refused(said) if said.status == StatusCode::UNAUTHORIZED => {
                let why = format!("it does not accept the federated token: {said}");
                NotIssued::NotAccepted(Halt::failed(ExchangeFailure::Iam(why)))
            }
            NotGiven::Refused(said) => {
                let status = said.status;
                let hint = if status == StatusCode::FORBIDDEN { HINT } else { "" };
                let text = format!("Unable to generate {kind} token; IAM returned {status}: {said}\n{hint}");
                NotIssued::Halt(Halt::refused(Withheld::Account, status, text, Rest::Doubling))
            }
        }
    }
}

fn access(response: &Response<Bytes>) -> Option<(Zeroizing<String>, Duration)> {
    let AccessAnswer { access_token, expire_time } = serde_json::from_slice(response.body()).ok()?;
    let expires = SystemTime::from(expire_time.parse::<Timestamp>().ok()?);
    Some((access_token, expires.duration_since(servers_time(response.headers())).ok()?))
}

fn identity_token(response: &Response<Bytes>) -> Option<(Zeroizing<String>, Duration)> {
    let IdentityAnswer { token } = serde_json::from_slice(response.body()).ok()?;
    let seconds = identity::seconds_left(token.as_bytes(), servers_time(response.headers())).ok()?;
    Some((token, Duration::from_secs(seconds.into())))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use http::header::DATE;

    use super::super::not_given::Said;
    use super::*;
    use crate::cluster::Annotations;
    use proxy::tokens::NoToken;

    fn link() -> Link {
        Link::parse(&Annotations {
            google_account: Some("app@shop.iam.gserviceaccount.com".to_owned()),
            delegates: Some(r#"["via@shop.iam.gserviceaccount.com"]"#.to_owned()),
            ..Annotations::default()
        })
        .expect("a link")
    }

    fn with<T>(kind: TokenKind, what: &str, use_it: impl for<'a> FnOnce(&Impersonation<'a>) -> T) -> T {
        let (link, ask) = (link(), Ask { kind, what: what.into(), bound_to: None });
        let federated = Secret::new(Zeroizing::new("f3d".to_owned()), BootTime::now(), LIFE);
        let account = link.google_account.as_ref().expect("an account");
        use_it(&Impersonation { account, link: &link, federated: &federated, ask: &ask })
    }

    #[test]
    fn the_questions_are_those_of_the_reference() {
        let delegates = json!(["projects/-/serviceAccounts/via@shop.iam.gserviceaccount.com"]);
        #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime")]
        let body = |kind, what| with(kind, what, |it| it.body());
        assert_eq!(
            body(TokenKind::Access, ""),
            json!({"scope": [CLOUD_PLATFORM, USERINFO_EMAIL], "lifetime": "3600s", "delegates": delegates})
        );
        assert_eq!(body(TokenKind::Access, "a,b")["scope"], json!(["a", "b"]));
        let identity = json!({"audience": "https://a", "includeEmail": true, "delegates": delegates});
        assert_eq!(body(TokenKind::Identity, "https://a"), identity);
        let iam = Endpoint::parse("https://iam.example").expect("a URL");
        let account = "https://iam.example/v1/projects/-/serviceAccounts/app@shop.iam.gserviceaccount.com";
        assert_eq!(with(TokenKind::Access, "", |it| it.url(&iam)), format!("{account}:generateAccessToken"));
        assert_eq!(with(TokenKind::Identity, "", |it| it.url(&iam)), format!("{account}:generateIdToken"));
    }

    #[test]
    fn refusals_have_iams_status_and_googles_text_and_never_a_token() {
        let refused = |kind, what, status, body: &str| {
            let body = body.to_owned().into();
            let issued =
                with(kind, what, |it| it.not_issued(NotGiven::Refused(Said::read(status, &body, it.federated))));
            let NotIssued::Halt(Halt { why: NoToken::Refused(refused), rest: Rest::Doubling, .. }) = issued else {
                panic!("{status}")
            };
            (refused.status, String::from_utf8(refused.body.to_vec()).expect("text"))
        };
        let body =
            r#"{"error":{"code":403,"message":"Permission 'iam.serviceAccounts.getAccessToken' denied (f3d)."}}"#;
        assert_eq!(
            refused(TokenKind::Access, "", StatusCode::FORBIDDEN, body),
            (
                StatusCode::FORBIDDEN,
                "Unable to generate access token; IAM returned 403 Forbidden: Permission \
                 'iam.serviceAccounts.getAccessToken' denied ([redacted]).\nThis error could be caused by a missing IAM policy \
                 binding on the target IAM service account.\nFor more information, refer to the Workload Identity \
                 documentation:\n\thttps://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity#authenticating_to\n\n"
                    .to_owned()
            )
        );
        assert_eq!(
            refused(TokenKind::Identity, "a", StatusCode::NOT_FOUND, "gone"),
            (StatusCode::NOT_FOUND, "Unable to generate identity token; IAM returned 404 Not Found: gone\n".to_owned())
        );
    }

    #[test]
    fn the_life_of_a_token_is_measured_by_the_servers_clock() {
        let response = |date: &str, expire_time: &str| {
            let body = json!({"accessToken": "t", "expireTime": expire_time}).to_string();
            Response::builder().header(DATE, date).body(Bytes::from(body)).expect("a response")
        };
        let life = |date, expire_time| access(&response(date, expire_time)).map(|(_, life)| life.as_secs());
        let date = "Sun, 06 Nov 2050 08:49:37 GMT";
        assert_eq!(life(date, "2050-11-06T09:49:37Z"), Some(3600));
        assert_eq!(life(date, "2050-11-06T09:49:37.5+00:00"), Some(3600));
        assert_eq!((life(date, "2050-11-06T08:49:36Z"), life(date, "soon")), (None, None));

        // 2050-11-06T09:49:37Z
        let claims = URL_SAFE_NO_PAD.encode(json!({"exp": 2_551_340_977_u64}).to_string());
        let life = |date: &str| {
            let body = json!({"token": format!("a.{claims}.c")}).to_string();
            let response = Response::builder().header(DATE, date).body(Bytes::from(body)).expect("a response");
            identity_token(&response).map(|(_, life)| life.as_secs())
        };
        assert_eq!((life(date), life("Sun, 06 Nov 2050 09:49:37 GMT")), (Some(3600), None));
    }
}
