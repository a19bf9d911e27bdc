//! The tokens of a service account: access tokens and identity tokens.

use std::fmt::Write;

use serde_json::Value;
use tokio::time::Instant;

use super::answer::{HTML, JSON, Response, TEXT, unix_now};
use super::forged::jwt;
use super::identity::{Identity, machine};
use super::query::Query;
use super::read::Format;
use super::refusal::Refusal;
use super::render::Etag;
use super::state::State;
use super::token::TokenKey;

/// Parameters other than scopes that distinguish tokens.
const TOKEN_PARAMS: [&str; 4] = ["audience", "binding-enforcement", "bindCertificateFingerprint", "transport"];

/// An access token of the account at a node such as `instance/service-accounts/default/token`.
///
/// `bound_to` is the body of a POST: a document with a `certificate_chain`. Python's google-auth (2.62 and
/// later) sends it to have a token bound to it.
pub(super) fn token(state: &State, node: &str, query: &Query, bound_to: Option<&[u8]>) -> Result<Response, Refusal> {
    refuse_waiting(query)?;
    let form = Format::from_query(query)?;
    let key = TokenKey { account: email(state, node), params: token_params(query, bound_to)? };
    let token = state.tokens.lock().token(key, Instant::now());
    Ok(match form {
        Some(Format::Text) => Response::ok(TEXT, token.text()),
        Some(Format::Json) | None => Response::ok(JSON, token.json()),
    })
}

/// An identity token of the account at a node. Every call returns a new one.
pub(super) fn identity(state: &State, node: &str, query: &Query) -> Result<Response, Refusal> {
    refuse_waiting(query)?;
    let audience = query.value("audience").unwrap_or_default();
    if audience.is_empty() {
        return Err(Refusal::Query("The parameter audience is missing or empty."));
    }
    let email = email(state, node);
    let is_value = |key, word: &str| query.value(key).is_some_and(|value| value.eq_ignore_ascii_case(word));
    let mut claims = Identity { email: &email, audience, include_email: true }.claims(unix_now());
    if is_value("format", "full") {
        claims["google"] = machine(&state.tree(), is_value("licenses", "true"));
    }
    Ok(Response::ok(HTML, jwt(&claims)))
}

/// The account's e-mail. `default` and its e-mail have the same tokens.
fn email(state: &State, node: &str) -> String {
    let account = node.rsplit_once('/').map_or(node, |(account, _)| account);
    state.tree().value(&format!("{account}/email")).to_owned()
}

fn refuse_waiting(query: &Query) -> Result<(), Refusal> {
    if query.flag("wait_for_change") {
        return Err(Refusal::Query("A token cannot be waited for: wait_for_change is not allowed."));
    }
    Ok(())
}

/// Normalises the parameters: scopes sorted and without duplicates, parameters in a fixed order.
fn token_params(query: &Query, bound_to: Option<&[u8]>) -> Result<String, Refusal> {
    let mut params = String::new();
    let mut scopes: Vec<&str> = ["scopes", "scope"]
        .into_iter()
        .filter_map(|key| query.value(key))
        .flat_map(|list| list.split([',', ' ']))
        .filter(|scope| !scope.is_empty())
        .collect();
    scopes.sort_unstable();
    scopes.dedup();
    for scope in scopes {
        params.extend([scope, ","]);
    }
    if enforces_scopes(query)? {
        params.push_str("&enforce_scopes");
    }
    for key in TOKEN_PARAMS {
        if let Some(value) = query.value(key) {
            params.extend(["&", key, "=", value]);
        }
    }
    if let Some(body) = bound_to {
        write!(params, "&certificate_chain={}", certificate_chain(body)?).expect("writing into memory cannot fail");
    }
    Ok(params)
}

/// `enforce_scopes` can be set or omitted, but not negated (Google's document).
fn enforces_scopes(query: &Query) -> Result<bool, Refusal> {
    const ON: [&str; 4] = ["true", "1", "yes", "y"];
    match query.value("enforce_scopes") {
        None => Ok(false),
        Some(value) if ON.iter().any(|on| value.eq_ignore_ascii_case(on)) => Ok(true),
        Some(_) => Err(Refusal::Query("The parameter enforce_scopes can only be true.")),
    }
}

/// A hash of the chain in a POST's body.
fn certificate_chain(body: &[u8]) -> Result<Etag, Refusal> {
    let document: Option<Value> = serde_json::from_slice(body).ok();
    match document.as_ref().and_then(|document| document.get("certificate_chain")) {
        Some(chain) => Ok(Etag::new(&chain.to_string())),
        None => Err(Refusal::Query("The body has no certificate_chain.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> String {
        token_params(&Query::parse(query), None).expect("allowed")
    }

    #[test]
    fn equal_sets_of_scopes_have_the_same_key() {
        assert_eq!(params("scopes=b,a"), params("scopes=a%2Cb,a&unknown=1"));
        assert_eq!(params(""), params("scopes="));
    }

    #[test]
    fn every_parameter_that_changes_a_token_changes_the_key() {
        let queries =
            ["", "scopes=a", "scopes=a&enforce_scopes=y", "transport=mtls", "binding-enforcement=on", "audience=a"];
        let mut keys: Vec<_> = queries.map(params).into();
        keys.push(token_params(&Query::parse(""), Some(br#"{"certificate_chain":"x"}"#)).expect("a chain"));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), queries.len() + 1);
    }
}
