//! Identity tokens of the mock and of the fake Google.
//!
//! The claims follow Google's document "Verifying the identity of VM instances".

use serde_json::{Value, json};

use super::forged::account_number;
use super::tree::{Leaf, Tree};

/// Lifetime of an identity token, in seconds.
pub(super) const LIFE_SECONDS: u64 = 3600;

/// Creation time of the machine, in seconds since 1970.
const CREATED: u64 = 1_767_225_600;

/// The parameters of a requested identity token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'a> {
    pub(super) email: &'a str,
    pub(super) audience: &'a str,
    /// Whether the token contains the e-mail.
    pub(super) include_email: bool,
}

impl Identity<'_> {
    /// The claims of a token that is issued at this time, in seconds since 1970.
    pub(super) fn claims(self, issued: u64) -> Value {
        let Self { email, audience, include_email } = self;
        let number = account_number(email);
        let mut claims = json!({
            "aud": audience,
            "azp": number,
            "exp": issued + LIFE_SECONDS,
            "iat": issued,
            "iss": "https://accounts.google.com",
            "sub": number,
        });
        if include_email {
            claims["email"] = email.into();
            claims["email_verified"] = true.into();
        }
        claims
    }
}

/// The claim `google` of a token with `format=full`: the machine.
pub(super) fn machine(tree: &Tree, has_licenses: bool) -> Value {
    let zone = tree.value("instance/zone");
    let mut machine = json!({
        "instance_creation_timestamp": CREATED,
        "instance_id": tree.value("instance/id"),
        "instance_name": tree.value("instance/name"),
        "project_id": tree.value("project/project-id"),
        "project_number": tree.leaf("project/numeric-project-id").map(Leaf::json),
        "zone": zone.rsplit('/').next().unwrap_or(zone),
    });
    if has_licenses {
        machine["license_id"] = tree.below("instance/licenses/").map(|(_, leaf)| leaf.json()).collect();
    }
    json!({ "compute_engine": machine })
}
