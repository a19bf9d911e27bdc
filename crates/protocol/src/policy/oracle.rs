//! Generated policies, and a reference matcher that tries rules and segments one by one: slow, but too simple
//! to contain the kinds of bugs that a trie can have.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Choice, Policy};

/// A generated policy: whether it allows unmatched paths, and its rules.
#[derive(Debug, Clone)]
pub struct Rules {
    allows_the_rest: bool,
    rules: Vec<(bool, Vec<String>)>,
}

impl Rules {
    /// Compiles the policy from the text of a file. Recursive reads and listings are redacted.
    pub fn compile(&self) -> Policy {
        let unmatched = if self.allows_the_rest { "allow" } else { "conceal" };
        let rule = |(allows, paths): &(bool, Vec<String>)| {
            let verdict = if *allows { "allow" } else { "conceal\n    reason: x" };
            format!("\n  - paths: {paths:?}\n    verdict: {verdict}")
        };
        let rules: String = self.rules.iter().map(rule).collect();
        let rules = if rules.is_empty() { " []" } else { &rules };
        let text = format!(
            "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: random\nversion: '1'\n\
             unmatched: {unmatched}\nrecursive: redact\nrules:{rules}\n"
        );
        Choice::default().compile(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Whether the value of a path is served.
    pub fn shows(&self, path: &[&str]) -> bool {
        self.first(path, |pattern| matches(pattern, path, Ends::Here))
    }

    /// Whether a directory is served, including one that only leads to an allowed path.
    pub fn leads_through(&self, path: &[&str]) -> bool {
        self.first(path, |pattern| matches(pattern, path, Ends::HereOrBelow))
    }

    fn first(&self, path: &[&str], allowed: impl Fn(&[&str]) -> bool) -> bool {
        let folded: Vec<String> = path.iter().map(|name| fold(name)).collect();
        let folded: Vec<&str> = folded.iter().map(String::as_str).collect();
        let conceals = |pattern: &str| {
            let pattern: Vec<String> = pattern.split('/').map(fold).collect();
            let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
            (0..=folded.len()).any(|above| matches(&pattern, &folded[..above], Ends::Here))
        };
        let decides = |(allows, patterns): &&(bool, Vec<String>)| {
            patterns.iter().any(|pattern| {
                if *allows { allowed(&pattern.split('/').collect::<Vec<_>>()) } else { conceals(pattern) }
            })
        };
        self.rules.iter().find(decides).map_or(self.allows_the_rest, |(allows, _)| *allows)
    }
}

#[derive(Clone, Copy)]
enum Ends {
    Here,
    HereOrBelow,
}

fn matches(pattern: &[&str], path: &[&str], ends: Ends) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (_, []) if matches!(ends, Ends::HereOrBelow) => true,
        (["**", rest @ ..], _) => matches(rest, path, ends) || (!path.is_empty() && matches(pattern, &path[1..], ends)),
        ([segment, rest @ ..], [name, below @ ..]) => {
            glob(segment.as_bytes(), name.as_bytes()) && matches(rest, below, ends)
        }
        _ => false,
    }
}

fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => glob(rest, name) || (!name.is_empty() && glob(pattern, &name[1..])),
        ([letter, rest @ ..], [byte, below @ ..]) => letter == byte && glob(rest, below),
        _ => false,
    }
}

/// Removes case, hyphens and underscores, unless nothing would remain.
fn fold(name: &str) -> String {
    let folded = name.to_ascii_lowercase().replace(['-', '_'], "");
    match folded.as_str() {
        "" if !name.is_empty() => "-".to_owned(),
        "**" if name != "**" => "*".to_owned(),
        _ => folded,
    }
}

/// Names that often match those in [`rules`].
pub fn name() -> impl Strategy<Value = &'static str> {
    select(vec!["a", "b", "ab", "a-b", "a_b", "a-c", "b-a-b", "aB", "A", "-", "_", "--", "a-", "x", "attributes"])
}

/// Rules over paths below `instance` and `project`.
pub fn rules() -> impl Strategy<Value = Rules> {
    let top = select(vec!["instance", "instance", "project", "*", "**", "i*"]);
    let segment = prop_oneof![
        4 => name().prop_map(str::to_owned),
        2 => Just("*".to_owned()),
        2 => select(vec!["a*", "*b", "*-*", "a*b", "b*-b", "-*"]).prop_map(str::to_owned),
        1 => Just("**".to_owned()),
        1 => select(vec!["id", "Zone", "project-id", "token"]).prop_map(str::to_owned),
    ];
    let pattern = (top, vec(segment, 0..4)).prop_map(|(top, rest)| {
        let mut is_deep = top == "**";
        let mut pattern = vec![top.to_owned()];
        for segment in rest {
            // A pattern may contain `**` only once.
            let again = segment == "**" && std::mem::replace(&mut is_deep, true);
            pattern.push(if again { "*".to_owned() } else { segment });
        }
        pattern.join("/")
    });
    (any::<bool>(), vec((any::<bool>(), vec(pattern, 1..3)), 0..6))
        .prop_map(|(allows_the_rest, rules)| Rules { allows_the_rest, rules })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{CommonPath, MetadataPath, Query, Request};
    use crate::policy::Decision;

    /// A path below the API version, and whether it ends in a slash.
    fn path() -> impl Strategy<Value = (Vec<&'static str>, bool)> {
        let top = select(vec!["instance", "project", "Instance"]);
        let any_path = (top, vec(name(), 0..5), any::<bool>())
            .prop_map(|(top, names, is_directory)| (std::iter::once(top).chain(names).collect(), is_directory));
        let common = select(CommonPath::ALL.to_vec()).prop_map(|path| {
            let names = path.as_str().split('/').skip(3).filter(|name| !name.is_empty());
            (names.collect(), path.as_str().ends_with('/'))
        });
        prop_oneof![3 => any_path, 1 => common]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_first_matching_rule_decides(
            rules in rules(),
            (path, is_directory) in path(),
            is_recursive in any::<bool>(),
        ) {
            let policy = rules.compile();
            let (slash, query) = (if is_directory { "/" } else { "" }, if is_recursive { "?recursive" } else { "" });
            let target = format!("/computeMetadata/v1/{}{slash}{query}", path.join("/")).parse().expect("a target");
            let request = Request::get(MetadataPath::parse(&target).expect("a path"), Query::parse(target.query()).expect("a query"));
            let expected = match (rules.shows(&path), rules.leads_through(&path)) {
                (true, _) if !is_directory => if is_recursive { "flat" } else { "allow" },
                (_, false) => "conceal",
                (_, true) => if is_directory { "redact" } else { "redirect" },
            };
            let found = match policy.judge(&request) {
                Decision::Allow => "allow",
                Decision::Flat => "flat",
                Decision::Redact => "redact",
                Decision::Redirect => "redirect",
                Decision::Conceal(_) => "conceal",
            };
            prop_assert_eq!(found, expected, "{:?}", path);
            // `explain` and redaction use these functions.
            prop_assert_eq!(policy.shows(&path.join("/")), rules.shows(&path));
            prop_assert_eq!(policy.leads_through(&path.join("/")), rules.leads_through(&path));
        }
    }
}
