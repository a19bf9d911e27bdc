//! What the table says of bodies that it does not quote.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mock::DEFAULT_ACCOUNT;
use serde_json::Value;

/// Sorted, each line terminated, directories marked.
pub fn is_instance_listing(listing: &str) -> bool {
    let names: Vec<&str> = listing.lines().map(|line| line.trim_end_matches('/')).collect();
    let has = |line: &str| listing.lines().any(|found| found == line);
    listing.ends_with('\n') && names.is_sorted() && has("attributes/") && has("id") && has("service-accounts/")
}

pub fn is_scheduling(body: &str) -> bool {
    document(body).is_some_and(|scheduling| scheduling["preemptible"] == "FALSE")
}

pub fn is_project(body: &str) -> bool {
    let Some(project) = document(body) else { return false };
    keys(&project) == ["attributes", "numericProjectId", "projectId"]
        && project["attributes"].is_object()
        && project["numericProjectId"] == 123_456_789_012_u64
        && project["projectId"] == "mock-project"
}

pub fn is_project_text(body: &str) -> bool {
    let has = |line: &str| body.lines().any(|found| found == line);
    body.ends_with('\n') && has("numeric-project-id 123456789012") && has("project-id mock-project")
}

pub fn is_instance(body: &str) -> bool {
    document(body).is_some_and(|instance| instance["id"].is_u64() && instance["serviceAccounts"].is_object())
}

/// The fields that Python's library reads, and no token.
pub fn is_account(body: &str) -> bool {
    let Some(account) = document(body) else { return false };
    keys(&account) == ["aliases", "email", "scopes"]
        && account["aliases"] == Value::from(vec!["default"])
        && account["email"] == DEFAULT_ACCOUNT
        && account["scopes"].as_array().is_some_and(|scopes| !scopes.is_empty() && scopes.iter().all(Value::is_string))
}

/// A line per item, and no token.
pub fn is_account_text(body: &str) -> bool {
    let fields: Vec<_> = body.lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
    body.starts_with("aliases default\n")
        && body.ends_with('\n')
        && fields == ["aliases", "email", "scopes", "scopes", "scopes"]
}

pub fn is_account_map(body: &str) -> bool {
    let Some(accounts) = document(body) else { return false };
    is_account(&accounts["default"].to_string()) && accounts["default"] == accounts[DEFAULT_ACCOUNT]
}

pub fn is_for_the_audience(token: &str) -> bool {
    claims(token).is_some_and(|claims| claims["aud"] == "https://aud.example" && claims["google"].is_null())
}

pub fn names_the_machine(token: &str) -> bool {
    let Some(claims) = claims(token) else { return false };
    let machine = &claims["google"]["compute_engine"];
    claims["aud"] == "X" && machine["instance_id"].is_string() && machine["license_id"].is_null()
}

pub fn names_the_licences(token: &str) -> bool {
    claims(token).is_some_and(|claims| claims["google"]["compute_engine"]["license_id"].is_array())
}

/// JSON as the server writes it: an object on one line.
fn document(body: &str) -> Option<Value> {
    let document: Value = serde_json::from_str(body).ok()?;
    (document.is_object() && document.to_string().len() == body.len()).then_some(document)
}

fn keys(document: &Value) -> Vec<&str> {
    document.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

fn claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !token.ends_with('\n');
    let claims = URL_SAFE_NO_PAD.decode(claims).ok().filter(|_| is_whole)?;
    serde_json::from_slice(&claims).ok()
}
