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

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::forged::jwt;

    const ASK: TokenRequest<'_> =
        TokenRequest { account: "a@b.c", audience: "https://aud", full: false, licenses: true };

    #[test]
    fn the_machine_is_included_only_on_request() {
        let tree = Tree::new();
        assert_eq!(claims(&tree, ASK, 1000).get("google"), None);
        let full = claims(&tree, TokenRequest { full: true, ..ASK }, 1000);
        let machine = &full["google"]["compute_engine"];
        assert_eq!(machine["zone"], "us-central1-a");
        assert_eq!(machine["project_number"], 123_456_789_012_u64);
        assert_eq!(machine["license_id"][0], "6880041984096540132");
        let unlicensed = claims(&tree, TokenRequest { full: true, licenses: false, ..ASK }, 1000);
        assert_eq!(unlicensed["google"]["compute_engine"].get("license_id"), None);
    }

    #[test]
    fn two_tokens_of_one_second_differ_and_decode() {
        let claims = claims(&Tree::new(), ASK, 1000);
        let (one, two) = (jwt(&claims), jwt(&claims));
        assert_ne!(one, two);
        let parts: Vec<_> = one.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).expect("base64url")).collect();
        assert_eq!(parts.len(), 3);
        let decoded: Value = serde_json::from_slice(&parts[1]).expect("JSON");
        assert_eq!((&decoded["aud"], &decoded["exp"]), (&json!("https://aud"), &json!(4600)));
    }
}
