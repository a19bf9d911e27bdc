//! The IAM Service Account Credentials API: [`Impersonation`] issues tokens of a Google service account.

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::accounts::{Denied, Principal};
use super::answer::{Refusal, ok};
use super::clock::rfc3339;
use super::endpoint::Endpoint;
use super::state::State;
use super::tokens::Issued;
use super::{Subject, Workload};
use crate::identity::Identity;

/// Maximum lifetime of an access token, in seconds. Google allows longer lifetimes only by an organisation's policy.
const MAX_SECONDS: u64 = 3600;

/// A federated token must have one of these scopes.
const SCOPES: [&str; 2] = ["https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/iam"];

/// The prefix of a delegate's e-mail.
const DELEGATE: &str = "projects/-/serviceAccounts/";

/// A request to act as a Google service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Impersonation {
    email: String,
    bearer: Option<String>,
    /// An invalid wish is refused only after the token is found to be valid.
    wish: Result<Wish, Refusal>,
}

/// The requested token, and the delegates.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    delegates: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Access { scopes: Vec<String>, seconds: u64 },
    Identity { audience: String, include_email: bool },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenAccess {
    #[serde(default)]
    delegates: Vec<String>,
    scope: Vec<String>,
    /// Google's default, an hour, is not taken for granted.
    lifetime: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenIdentity {
    #[serde(default)]
    delegates: Vec<String>,
    audience: String,
    #[serde(default)]
    include_email: bool,
}

impl Impersonation {
    pub(super) fn read(endpoint: Endpoint, email: String, parts: &Parts, body: &[u8]) -> Self {
        let authorization = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = authorization.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
        Self { email, bearer, wish: Wish::read(endpoint, body) }
    }

    /// The caller that the token was issued for.
    pub(super) fn workload(&self, state: &State) -> Option<Workload> {
        self.issued(state).map(|issued| issued.subject.workload)
    }

    pub(super) fn answer(self, state: &State) -> Result<Response<Bytes>, Refusal> {
        let now = state.clock.now();
        let issued = self.issued(state).filter(|issued| issued.is_access && issued.expires_at > now);
        // No request comes with a client's certificate, so no token that is bound to one is of use.
        let issued = issued.filter(|issued| issued.subject.bound_to.is_none());
        let Issued { subject, .. } = issued.ok_or(Refusal::Status(StatusCode::UNAUTHORIZED))?;
        if !subject.scopes.iter().any(|scope| SCOPES.contains(&scope.as_str())) {
            let text = "Request had insufficient authentication scopes.";
            return Err(Refusal::Api(StatusCode::FORBIDDEN, text.into()));
        }
        let Self { email, wish, .. } = self;
        let Wish { delegates, kind } = wish?;
        let checked = state.accounts.lock().check(principal(&subject), &delegates, &email);
        checked.map_err(|denied| refusal(denied, &kind))?;
        let mut tokens = state.tokens.lock();
        Ok(ok(&match kind {
            Kind::Access { scopes, seconds } => {
                let token = tokens.access(Subject { email: Some(email), scopes, ..subject }, now + seconds);
                json!({ "accessToken": &*token, "expireTime": rfc3339(now + seconds) })
            }
            Kind::Identity { audience, include_email } => {
                let identity = Identity { email: &email, audience: &audience, include_email };
                let subject = Subject { email: Some(email.clone()), scopes: Vec::new(), ..subject };
                json!({ "token": &*tokens.identity(subject, identity, now) })
            }
        }))
    }

    fn issued(&self, state: &State) -> Option<Issued> {
        state.tokens.lock().get(self.bearer.as_ref()?).cloned()
    }
}

impl Wish {
    fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, Refusal> {
        if endpoint == Endpoint::IdToken {
            let WrittenIdentity { delegates, audience, include_email } = json(body)?;
            if audience.is_empty() {
                return Err(Refusal::argument("audience is required"));
            }
            return Ok(Self { delegates: emails(&delegates)?, kind: Kind::Identity { audience, include_email } });
        }
        let WrittenAccess { delegates, scope: scopes, lifetime } = json(body)?;
        if scopes.iter().all(String::is_empty) {
            return Err(Refusal::argument("scope is required"));
        }
        let seconds = duration(&lifetime).ok_or_else(|| {
            Refusal::argument(format!("lifetime must be of the form \"1s\" and at most \"{MAX_SECONDS}s\""))
        })?;
        Ok(Self { delegates: emails(&delegates)?, kind: Kind::Access { scopes, seconds } })
    }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::argument(format!("Invalid JSON payload received. {error}")))
}

/// E-mails of delegates, which are written with the project `-`.
fn emails(delegates: &[String]) -> Result<Vec<String>, Refusal> {
    let email = |name: &String| name.strip_prefix(DELEGATE).filter(|email| !email.is_empty()).map(str::to_owned);
    let emails = delegates.iter().map(email).collect::<Option<_>>();
    emails.ok_or_else(|| Refusal::argument(format!("delegates must be of the form {DELEGATE}EMAIL")))
}

/// Parses a positive number of seconds, at most [`MAX_SECONDS`], in the format of protocol buffers' durations.
fn duration(text: &str) -> Option<u64> {
    let seconds = text.strip_suffix('s')?.parse().ok()?;
    (1..=MAX_SECONDS).contains(&seconds).then_some(seconds)
}

fn principal(subject: &Subject) -> Principal {
    match &subject.email {
        Some(email) => Principal::Account(email.clone()),
        None => Principal::Workload(subject.workload.clone()),
    }
}

fn refusal(denied: Denied, kind: &Kind) -> Refusal {
    match (denied, kind) {
        (Denied::Missing, _) => Refusal::Status(StatusCode::NOT_FOUND),
        (Denied::Delegate, _) => Refusal::Permission("iam.serviceAccounts.implicitDelegation"),
        (Denied::Account, Kind::Access { .. }) => Refusal::Permission("iam.serviceAccounts.getAccessToken"),
        (Denied::Account, Kind::Identity { .. }) => Refusal::Permission("iam.serviceAccounts.getOpenIdToken"),
    }
}
