//! The Security Token Service: [`Exchange`] issues a federated token for a service account token.
//!
//! Follows Google's reference of `v1/token`. The wording of errors is the fake's own where Google's is not known.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Response;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use serde::Deserialize;
use serde_json::json;

use super::answer::{Refusal, ok};
use super::jwt::{Caller, Claims, verify};
use super::state::State;
use super::{Subject, Workload};

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

/// Maximum lifetime of a federated token, in seconds.
const MAX_SECONDS: u64 = 3600;

const UNKNOWN_POOL: &str = "The target service indicated by the \"audience\" parameters is invalid. This might either \
     be because the pool or provider is disabled or deleted or because it doesn't exist.";

/// A request for a federated token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exchange {
    audience: String,
    scopes: Vec<String>,
    subject_token: String,
    /// The certificate that the token is bound to, by its fingerprint, from `options`.
    bound_to: Option<String>,
}

/// A request in JSON. Google also accepts forms, names in `snake_case`, and the type `id_token` for the subject token.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    grant_type: String,
    audience: String,
    scope: String,
    requested_token_type: String,
    subject_token: String,
    subject_token_type: String,
    options: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Options {
    // Accepted, but without effect.
    #[serde(rename = "userProject")]
    _user_project: Option<String>,
    bind_cert_fingerprint: Option<String>,
}

impl Exchange {
    pub(super) fn read(parts: &Parts, body: &[u8]) -> Result<Self, Refusal> {
        if parts.headers.contains_key(AUTHORIZATION) {
            return Err(Refusal::request("The Authorization header must not be present."));
        }
        if parts.headers.get(CONTENT_TYPE).is_none_or(|value| value != "application/json") {
            return Err(Refusal::request("The content type must be application/json."));
        }
        // The error names fields but shows no string values, so it does not show the token.
        let written: Written = serde_json::from_slice(body)
            .map_err(|error| Refusal::request(format!("Invalid payload received: {error}")))?;
        for (name, value, expected) in [
            ("grantType", written.grant_type, GRANT_TYPE),
            ("requestedTokenType", written.requested_token_type, ACCESS_TOKEN),
            ("subjectTokenType", written.subject_token_type, JWT),
        ] {
            if value != expected {
                return Err(Refusal::request(format!("Invalid value for \"{name}\". It should be {expected}.")));
            }
        }
        let scopes: Vec<_> = written.scope.split_whitespace().map(str::to_owned).collect();
        if scopes.is_empty() {
            return Err(Refusal::request("Missing required field \"scope\"."));
        }
        let Options { bind_cert_fingerprint, .. } = serde_json::from_str(written.options.as_deref().unwrap_or("{}"))
            .map_err(|error| Refusal::request(format!("Invalid value for \"options\": {error}")))?;
        if bind_cert_fingerprint.as_deref().is_some_and(|text| !is_fingerprint(text)) {
            return Err(Refusal::request(
                "Invalid value for \"bindCertFingerprint\". It should be the unpadded, base64url-encoded SHA-256 hash of a certificate.",
            ));
        }
        Ok(Self {
            audience: written.audience,
            scopes,
            subject_token: written.subject_token,
            bound_to: bind_cert_fingerprint,
        })
    }

    /// The caller, according to the token to exchange.
    pub(super) fn workload(&self) -> Option<Workload> {
        Some(Claims::unverified(&self.subject_token)?.caller()?.workload)
    }

    pub(super) fn answer(self, state: &State) -> Result<Response<Bytes>, Refusal> {
        let pool = state.settings.pools.iter().find(|pool| pool.audience == self.audience);
        let target = || Refusal::Oauth { error: "invalid_target", description: UNKNOWN_POOL.into() };
        let pool = pool.ok_or_else(target)?;
        let now = state.clock.now();
        let Caller { workload, pod_uid, exp } = verify(&self.subject_token, &state.settings.jwks, pool, now)?;
        let expires_in = (exp - now).min(MAX_SECONDS);
        let subject = Subject { workload, pod_uid, email: None, scopes: self.scopes, bound_to: self.bound_to };
        let token = state.tokens.lock().access(subject, now + expires_in);
        Ok(ok(&json!({
            "access_token": &*token,
            "expires_in": expires_in,
            "issued_token_type": ACCESS_TOKEN,
            "token_type": "Bearer",
        })))
    }
}

/// Whether a text is a fingerprint as Google's reference has it: of 43 characters.
fn is_fingerprint(text: &str) -> bool {
    text.len() == 43 && URL_SAFE_NO_PAD.decode(text).is_ok()
}
