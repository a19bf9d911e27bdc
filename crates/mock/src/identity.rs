//! Identity tokens: well-formed JWTs whose signature is invalid.
//!
//! The claims follow Google's document "Verifying the identity of VM instances".

use serde_json::{Value, json};

use super::forged::account_number;
use super::tree::Tree;

/// Lifetime of an identity token, in seconds.
const LIFE_SECONDS: u64 = 3600;

/// Creation time of the machine, in seconds since 1970.
const CREATED: u64 = 1_767_225_600;

/// The contents of an identity token.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenRequest<'a> {
    /// The account's e-mail.
    pub(super) account: &'a str,
    pub(super) audience: &'a str,
    /// `format=full`: include the machine.
    pub(super) full: bool,
    /// `licenses=TRUE`: include the machine's licences.
    pub(super) licenses: bool,
}

/// The claims of a token that is issued at this time, in seconds since 1970.
pub(super) fn claims(tree: &Tree, ask: TokenRequest<'_>, issued: u64) -> Value {
    let number = account_number(ask.account);
    let mut claims = json!({
        "aud": ask.audience,
        "azp": number,
        "email": ask.account,
        "email_verified": true,
        "exp": issued + LIFE_SECONDS,
        "iat": issued,
        "iss": "https://accounts.google.com",
        "sub": number,
    });
    if ask.full {
        claims["google"] = json!({ "compute_engine": machine(tree, ask.licenses) });
    }
    claims
}

fn machine(tree: &Tree, licenses: bool) -> Value {
    let zone = tree.value("instance/zone");
    let mut machine = json!({
        "instance_creation_timestamp": CREATED,
        "instance_id": tree.value("instance/id"),
        "instance_name": tree.value("instance/name"),
        "project_id": tree.value("project/project-id"),
        "project_number": tree.leaf("project/numeric-project-id").map(super::tree::Leaf::json),
        "zone": zone.rsplit('/').next().unwrap_or(zone),
    });
    if licenses {
        machine["license_id"] = tree.below("instance/licenses/").map(|(_, leaf)| leaf.json()).collect();
    }
    machine
}
