//! An answer to cut, under a policy and a directory that the first two bytes choose. Every value in what is left must be
//! one that a request for it alone would be given.
#![no_main]

use std::sync::LazyLock;

use gce_metadata_proxy::layers::conceal::redact::{self, Redacted, View};
use gce_metadata_proxy::metadata::{MetadataPath, Query, Request, names_accounts};
use gce_metadata_proxy::policy::{Choice, Decision, Policy, Recursive, Source};
use http::uri::PathAndQuery;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_json::value::RawValue;

const MINE: &str = "apiVersion: gce-metadata-proxy/v1
kind: ConcealmentPolicy
name: mine
version: '1'
recursive: redact
rules:
  - paths: ['**/secret', 'instance/*-key/**', instance/disks/1]
    verdict: conceal
    reason: x
  - paths: [instance/attributes/*, instance/disks/**, '*/*/*/shown', instance/tags]
    verdict: allow
";

static POLICIES: LazyLock<[Policy; 3]> = LazyLock::new(|| {
    let built_in =
        |name| Choice { source: Source::parse(name), recursive: Some(Recursive::Redact) }.load().expect("built in");
    [built_in("compat"), built_in("strict"), Choice::default().compile(MINE).expect("a policy")]
});

const DIRECTORIES: [&str; 6] =
    ["", "instance", "project", "instance/attributes", "instance/service-accounts", "instance/disks"];

fuzz_target!(|bytes: &[u8]| {
    let [policy, directory, answer @ ..] = bytes else { return };
    let policy = &POLICIES[usize::from(*policy) % POLICIES.len()];
    let directory = DIRECTORIES[usize::from(*directory) % DIRECTORIES.len()];
    let view = View { policy: Some(policy), has_accounts: true };
    assert_without_accounts(View { has_accounts: false, ..view }, directory, answer);
    if let Ok(Redacted { bytes: left, .. }) = redact::json(view, directory, answer) {
        serde_json::from_slice::<&RawValue>(&left).expect("what is left of JSON is JSON");
        // A number beyond a float's range is passed on as it was written, and is not read here.
        if let Ok(left) = serde_json::from_slice(&left) {
            assert_shown(policy, directory, &left);
        }
        assert!(redact::text(view, directory, answer, usize::MAX).is_ok());
    }
    if let Ok(listing) = std::str::from_utf8(answer) {
        for entry in redact::listing(view, directory, listing).lines() {
            let path = below(directory, entry.trim_end_matches('/'));
            assert!(
                if entry.ends_with('/') { policy.leads_through(&path) } else { is_served(policy, &path) },
                "{path}"
            );
        }
    }
});

/// A pod's tree names no account, in any spelling, but in its values.
fn assert_without_accounts(view: View<'_>, directory: &str, answer: &[u8]) {
    let Ok(Redacted { bytes, place, .. }) = redact::json(view, directory, answer) else { return };
    assert!(place.is_none_or(|place| bytes.get(place.at) == Some(&b'}')));
    let Ok(left) = serde_json::from_slice(&bytes) else { return };
    let mut nodes: Vec<&Value> = vec![&left];
    while let Some(node) = nodes.pop() {
        match node {
            Value::Object(entries) => {
                assert!(entries.keys().all(|key| !names_accounts(key)), "{left}");
                nodes.extend(entries.values());
            }
            Value::Array(items) => nodes.extend(items),
            _ => {}
        }
    }
}

/// Numbers in what is left are not those that were there; so an item is asked for under every number.
fn assert_shown(policy: &Policy, path: &str, node: &Value) {
    match node {
        Value::Object(entries) => {
            for (key, node) in entries {
                let keeps = ["attributes", "service-accounts"].iter().any(|end| path.ends_with(end));
                let name = if keeps || path.contains("guest-attributes") { key.clone() } else { kebab(key) };
                assert_shown(policy, &below(path, &name), node);
            }
        }
        Value::Array(items) => {
            for item in items.iter().filter(|item| !item.is_array() && !item.is_object()) {
                let is_served =
                    is_served(policy, path) || (0..1000).any(|n| is_served(policy, &below(path, &n.to_string())));
                assert!(is_served, "{item} in {path}");
            }
        }
        value => assert!(is_served(policy, path), "{value} at {path}"),
    }
}

fn is_served(policy: &Policy, path: &str) -> bool {
    let Ok(target) = format!("/computeMetadata/v1/{path}").parse::<PathAndQuery>() else { return false };
    let Ok(path) = MetadataPath::parse(&target) else { return false };
    matches!(policy.judge(&Request::get(path, Query::default())), Decision::Allow | Decision::Flat)
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn kebab(key: &str) -> String {
    let mut name = String::new();
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
