//! The rights that the proxy reviews, and that `identity doctor` gives, are those of the files.

use std::collections::BTreeSet;

use identity::cluster::{Acting, rights};
use serde_json::Value;

use super::AUDIENCE;
use crate::kube::{FENCED, OWN_NODE, manifest};
use crate::support::needs::{Test, tests};

/// The tests of this module. They need nothing.
pub const TESTS: &[Test] = tests![the_rights_that_are_asked_about_are_those_of_the_files];

fn the_rights_that_are_asked_about_are_those_of_the_files() {
    for (file, role, acting) in [
        (OWN_NODE[0], "gce-metadata-proxy-own-node", Acting::AsItsNode),
        (FENCED[1], "gce-metadata-proxy-fenced", Acting::AsItself),
    ] {
        let asked: BTreeSet<String> = rights::needed(acting).iter().map(ToString::to_string).collect();
        assert_eq!(given_by(file, role), asked, "{file}");
    }
}

/// The rights of a role, in the form of the proxy.
fn given_by(file: &str, role: &str) -> BTreeSet<String> {
    let objects = manifest(file, AUDIENCE);
    let role = objects.iter().find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == role);
    let rules = role.and_then(|role| role["rules"].as_array()).unwrap_or_else(|| panic!("{file} has no such role"));
    let list = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).expect("texts") };
    let mut given = BTreeSet::new();
    for rule in rules {
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                let right = |verb: &String| format!("{verb} for {resource} in the API group {group:?}");
                given.extend(list(&rule["verbs"]).iter().map(right));
            }
        }
    }
    given
}
