//! [`differences`]: the requests that two policies decide differently.
//!
//! The requests are derived from the rules of both policies, with a name in place of each wildcard, and from the scope
//! of the general settings: listings, recursive reads, API versions, query parameters, and paths that no rule matches.

use std::collections::BTreeSet;
use std::fmt;

use super::document::{Rule, Tree};
use super::{Answer, Decision, Policy};
use crate::metadata::{MetadataPath, Query, Request};

/// The name in place of a wildcard.
const EXAMPLE: &str = "example";

/// Paths and queries below an API version that depend on general settings.
const GENERAL: [&str; 11] = [
    "",
    "?recursive=true",
    "instance/",
    "instance/?recursive=true",
    "instance/attributes/",
    "instance/attributes/?recursive=true",
    "instance/attributes/example",
    "instance/service-accounts/default/?recursive=true",
    "instance/service-accounts/default/token",
    "instance/service-accounts/default/token?unknown=x",
    "project/?recursive=true",
];

/// A request that two policies decide differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Path and query of a GET request.
    pub target: String,
    /// The decision of each policy.
    pub verdicts: [Verdict; 2],
}

/// The effect of a decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The metadata server answers.
    Allowed,
    /// The metadata server answers, without the concealed values.
    Redacted,
    /// The request is refused.
    Concealed(Answer),
}

/// The requests that these policies decide differently, in the order of their paths.
pub fn differences(policies: [&Policy; 2]) -> Vec<Difference> {
    let named = policies.iter().flat_map(|policy| &policy.rules).flat_map(of_rule);
    let below: BTreeSet<String> = named.chain(GENERAL.map(str::to_owned)).collect();
    let targets = [Tree::V1, Tree::V1Beta1, Tree::V01].into_iter().flat_map(|tree| {
        let is_old = tree != Tree::V1;
        // The older versions serve the same values, so the general paths are enough.
        let below = below.iter().filter(move |below| !is_old || GENERAL.contains(&below.as_str()));
        below.filter_map(move |below| target(tree, below))
    });
    targets.filter_map(|target| difference(policies, target)).collect()
}

/// Paths that a rule matches, also with each audience for which the rule's answer differs.
fn of_rule(rule: &Rule) -> impl Iterator<Item = String> {
    rule.paths.iter().flat_map(|pattern| examples(pattern.as_str())).flat_map(|path| {
        let audiences = rule.not_found_for_audiences.iter();
        let audiences = audiences.map(|audience| if **audience == *"*" { EXAMPLE } else { audience });
        let with_audience: Vec<_> = audiences.map(|audience| format!("{path}?audience={audience}")).collect();
        with_audience.into_iter().chain([path])
    })
}

/// Paths that a pattern matches.
fn examples(pattern: &str) -> Vec<String> {
    let tops: &[&str] = if pattern.starts_with('*') { &["instance", "project"] } else { &[""] };
    let concrete = |top: &&str| {
        let segments = pattern.split('/').enumerate().filter_map(|(index, segment)| match segment {
            "*" | "**" if index == 0 => Some((*top).to_owned()),
            "**" => None,
            "*" => Some(EXAMPLE.to_owned()),
            _ => match segment.strip_suffix('*') {
                Some(begin) if !begin.ends_with('-') => Some(begin.to_owned()),
                _ => Some(segment.replace('*', EXAMPLE)),
            },
        });
        segments.collect::<Vec<_>>().join("/")
    };
    tops.iter().map(concrete).collect()
}

fn target(tree: Tree, below: &str) -> Option<String> {
    match tree {
        Tree::V01 => Some(format!("/0.1/meta-data/{}", below.strip_prefix("instance/")?)),
        _ => Some(format!("/{tree}/{below}")),
    }
}

fn difference(policies: [&Policy; 2], target: String) -> Option<Difference> {
    let parsed = target.parse().ok()?;
    let request = Request::get(MetadataPath::parse(&parsed).ok()?, Query::parse(parsed.query()).ok()?);
    let verdicts = policies.map(|policy| match policy.judge(&request) {
        Decision::Allow | Decision::Flat | Decision::Redirect => Verdict::Allowed,
        Decision::Redact => Verdict::Redacted,
        Decision::Conceal(cause) => Verdict::Concealed(policy.answer(cause, &request.query)),
    });
    (verdicts[0] != verdicts[1]).then_some(Difference { target, verdicts })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.pad("allow"),
            Self::Redacted => f.pad("redact"),
            Self::Concealed(answer) => f.pad(&format!("conceal, {}", answer.status().as_u16())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Choice, Source};

    fn built_in(name: &str) -> Policy {
        Choice { source: Source::parse(name), recursive: None }.load().expect("built in")
    }

    #[test]
    fn a_pattern_has_examples() {
        assert_eq!(examples("*/attributes/kube-env"), ["instance/attributes/kube-env", "project/attributes/kube-env"]);
        assert_eq!(examples("instance/service-accounts/*/identity"), ["instance/service-accounts/example/identity"]);
        assert_eq!(examples("instance/attributes/windows-*"), ["instance/attributes/windows-example"]);
        assert_eq!(examples("instance/attributes/startup-script*"), ["instance/attributes/startup-script"]);
        assert_eq!(examples("instance/attributes/*-psm1"), ["instance/attributes/example-psm1"]);
        assert_eq!(examples("instance/service-accounts/**"), ["instance/service-accounts"]);
    }

    #[test]
    fn every_concealing_rule_of_one_policy_is_a_difference() {
        let (published, compat) = (built_in("k8s-metadata-proxy"), built_in("compat"));
        let found = differences([&published, &compat]);
        let forbidden = Verdict::Concealed(Answer::Forbidden);
        let verdicts = |target: &str| {
            let target = format!("/computeMetadata/v1/{target}");
            found.iter().find(|difference| difference.target == target).map(|difference| difference.verdicts)
        };
        assert_eq!(verdicts("instance/attributes/ssh-keys"), Some([Verdict::Allowed, forbidden]));
        assert_eq!(verdicts("instance/?recursive=true"), Some([forbidden, Verdict::Redacted]));
        assert_eq!(verdicts("instance/attributes/kube-env"), None, "both conceal it");
        let named = compat.rules.iter().filter(|rule| {
            let is_found = |path: &super::super::pattern::Pattern| {
                examples(path.as_str()).iter().any(|example| verdicts(example).is_some())
            };
            rule.paths.iter().all(is_found)
        });
        assert_eq!(named.count(), compat.rules.len() - 2, "all but kube-env and identity");
        assert!(differences([&compat, &compat]).is_empty());
    }
}
