//! The Security Token Service: [`Exchange`] issues a federated token for a service account token.
//!
//! Follows Google's reference of `v1/token`. The wording of errors is the fake's own where Google's is not known.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Refusal};
use super::jwt::{Caller, Claims, verify};
use super::state::State;

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
/// Google accepts both for tokens of an OIDC provider.
const SUBJECT_TOKEN_TYPES: [&str; 2] =
    ["urn:ietf:params:oauth:token-type:jwt", "urn:ietf:params:oauth:token-type:id_token"];

/// Maximum lifetime of a federated token, in seconds.
const MAX_SECONDS: u64 = 3600;

/// Maximum size of `options`, in bytes.
const MAX_OPTIONS_BYTES: usize = 4096;

const UNKNOWN_FORMAT: &str = "Invalid value for \"audience\". This value should be the full resource name of the \
     Identity Provider. See https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token for the list of \
     possible formats.";
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

/// A request in JSON or as a form: names in camelCase or `snake_case`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    #[serde(alias = "grant_type")]
    grant_type: Option<String>,
    audience: Option<String>,
    scope: Option<String>,
    #[serde(alias = "requested_token_type")]
    requested_token_type: Option<String>,
    #[serde(alias = "subject_token")]
    subject_token: Option<String>,
    #[serde(alias = "subject_token_type")]
    subject_token_type: Option<String>,
    options: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Options {
    // Accepted, but without effect.
    #[serde(alias = "user_project", rename = "userProject")]
    _user_project: Option<String>,
    #[serde(alias = "bind_cert_fingerprint")]
    bind_cert_fingerprint: Option<String>,
}

impl Exchange {
    /// Parses a form or JSON.
    pub(super) fn read(parts: &Parts, body: &[u8]) -> Result<Self, Refusal> {
        if parts.headers.contains_key(AUTHORIZATION) {
            return Err(Refusal::request("The Authorization header must not be present."));
        }
        let written = Written::read(parts, body)?;
        expect("grantType", written.grant_type.as_deref(), &[GRANT_TYPE])?;
        expect("requestedTokenType", written.requested_token_type.as_deref(), &[ACCESS_TOKEN])?;
        expect("subjectTokenType", written.subject_token_type.as_deref(), &SUBJECT_TOKEN_TYPES)?;
        let scope = given("scope", written.scope)?;
        let Options { bind_cert_fingerprint, .. } = options(written.options.as_deref())?;
        if bind_cert_fingerprint.as_deref().is_some_and(|text| !is_fingerprint(text)) {
            return Err(Refusal::request(
                "Invalid value for \"bindCertFingerprint\". It should be the unpadded, base64url-encoded SHA-256 hash of a certificate.",
            ));
        }
        Ok(Self {
            audience: given("audience", written.audience)?,
            scopes: scope.split(' ').filter(|scope| !scope.is_empty()).map(str::to_owned).collect(),
            subject_token: given("subjectToken", written.subject_token)?,
            bound_to: bind_cert_fingerprint,
        })
    }

    /// The caller, according to the token to exchange.
    pub(super) fn caller(&self) -> Option<Caller> {
        Claims::unverified(&self.subject_token)?.caller()
    }

    pub(super) fn answer(self, state: &State) -> Result<Answer, Refusal> {
        if !is_audience(&self.audience) {
            return Err(Refusal::request(UNKNOWN_FORMAT));
        }
        let pool = state.settings.pools.iter().find(|pool| pool.audience == self.audience);
        let target = || Refusal::Oauth { error: "invalid_target", description: UNKNOWN_POOL.into() };
        let pool = pool.ok_or_else(target)?;
        let now = state.clock.now();
        let verified = verify(&self.subject_token, &state.settings.jwks, pool, now)?;
        let expires_in = (verified.exp - now).min(MAX_SECONDS);
        let token = state.tokens.lock().access(&verified.caller, None, self.scopes, self.bound_to, now + expires_in);
        Ok(Answer::ok(&json!({
            "access_token": &*token,
            "expires_in": expires_in,
            "issued_token_type": ACCESS_TOKEN,
            "token_type": "Bearer",
        })))
    }
}

impl Written {
    fn read(parts: &Parts, body: &[u8]) -> Result<Self, Refusal> {
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let written = match media_type.to_ascii_lowercase().as_str() {
            "application/json" => serde_json::from_slice(body),
            "application/x-www-form-urlencoded" => serde_json::from_value(form(body)?),
            other => return Err(Refusal::request(format!("The content type \"{other}\" is not supported."))),
        };
        // The error names fields but shows no string values, so it does not show the token.
        written.map_err(|error| Refusal::request(format!("Invalid payload received: {error}")))
    }
}

/// The fields of a form. Each may occur once.
fn form(body: &[u8]) -> Result<Value, Refusal> {
    let mut fields = Map::new();
    for (name, value) in form_urlencoded::parse(body) {
        if fields.insert(name.clone().into_owned(), value.into_owned().into()).is_some() {
            return Err(Refusal::request(format!("Invalid payload received: duplicate field `{name}`")));
        }
    }
    Ok(fields.into())
}

fn given(name: &str, value: Option<String>) -> Result<String, Refusal> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Refusal::request(format!("Missing required field \"{name}\".")))
}

fn expect(name: &str, value: Option<&str>, known: &[&str]) -> Result<(), Refusal> {
    match value {
        Some(value) if known.contains(&value) => Ok(()),
        Some(_) => Err(Refusal::request(format!("Invalid value for \"{name}\". It should be {}.", known.join(" or ")))),
        None => Err(Refusal::request(format!("Missing required field \"{name}\"."))),
    }
}

fn options(text: Option<&str>) -> Result<Options, Refusal> {
    let Some(text) = text else { return Ok(Options::default()) };
    if text.len() > MAX_OPTIONS_BYTES {
        return Err(Refusal::request("Invalid value for \"options\": too long."));
    }
    serde_json::from_str(text).map_err(|error| Refusal::request(format!("Invalid value for \"options\": {error}")))
}

/// Whether a text is a fingerprint as Google's reference has it: of 43 characters.
fn is_fingerprint(text: &str) -> bool {
    text.len() == 43 && URL_SAFE_NO_PAD.decode(text).is_ok()
}

/// Whether an audience has one of the two formats, for any pool. Universes other than googleapis.com also use
/// `iam.googleapis.com`.
fn is_audience(audience: &str) -> bool {
    if let Some(cluster) = audience.strip_prefix("identitynamespace:") {
        return cluster.split_once(':').is_some_and(|(pool, uri)| !pool.is_empty() && uri.starts_with("https://"));
    }
    let Some(name) = audience.strip_prefix("//iam.googleapis.com/") else { return false };
    let parts: Vec<_> = name.split('/').collect();
    matches!(parts[..], ["projects", n, "locations", "global", "workloadIdentityPools", pool, "providers", provider]
        if [n, pool, provider].iter().all(|part| !part.is_empty()))
}
