//! Redacts random trees: a value remains if and only if a request for it alone would be answered.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value};

use super::redact::{self, View};
use crate::policy::{Choice, Decision, Policy, Recursive, Source, oracle};
use protocol::metadata::{MetadataPath, Query, Request};

/// A metadata server's tree.
#[derive(Debug, Clone)]
pub(super) enum Node {
    /// A leaf's value.
    Value,
    /// A leaf of several lines.
    Lines(usize),
    /// Entries by name.
    Directory(Vec<(String, Node)>),
    /// Numbered entries.
    Numbered(Vec<Node>),
}

/// A leaf: its path, its unique value, and whether it has several lines.
pub(super) type Leaf = (String, String, bool);

/// Renders a node as the server does, and collects its leaves.
pub(super) fn render(node: &Node, path: &str, leaves: &mut Vec<Leaf>) -> Value {
    let mut mark = |line: &str| {
        let mark = format!("L{}L", leaves.len());
        leaves.push((path.to_owned(), mark.clone(), !line.is_empty()));
        Value::from(format!("{mark}{line}"))
    };
    match node {
        Node::Value => mark(""),
        Node::Lines(count) => (0..*count).map(|_| mark(" of several")).collect(),
        Node::Directory(entries) => {
            let keeps_names =
                ["/attributes", "/guest-attributes", "/service-accounts"].iter().any(|end| path.ends_with(end))
                    || path.contains("/guest-attributes/");
            let key = |name: &str| if keeps_names { name.to_owned() } else { camel_case(name) };
            let entries = entries.iter().map(|(name, node)| (key(name), render(node, &below(path, name), leaves)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Node::Numbered(items) => items
            .iter()
            .enumerate()
            .map(|(number, item)| render(item, &below(path, &number.to_string()), leaves))
            .collect(),
    }
}

/// The listings of a directory and of all directories below it.
fn listings(node: &Node, path: &str, found: &mut Vec<(String, Vec<(String, bool)>)>) {
    let entries: Vec<(String, &Node)> = match node {
        Node::Directory(entries) => entries.iter().map(|(name, node)| (name.clone(), node)).collect(),
        Node::Numbered(items) => items.iter().enumerate().map(|(number, item)| (number.to_string(), item)).collect(),
        Node::Value | Node::Lines(_) => return,
    };
    let is_directory = |node: &Node| matches!(node, Node::Directory(_) | Node::Numbered(_));
    found.push((path.to_owned(), entries.iter().map(|(name, node)| (name.clone(), is_directory(node))).collect()));
    for (name, node) in entries {
        listings(node, &below(path, &name), found);
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |camel, word| camel + &word[..1].to_uppercase() + &word[1..])
}

/// Whether a request for a leaf alone is answered with its value.
pub(super) fn is_served(policy: &Policy, path: &str) -> bool {
    let target = format!("/computeMetadata/v1/{path}").parse().expect("a target");
    let request = Request::get(MetadataPath::parse(&target).expect("a path"), Query::default());
    matches!(policy.judge(&request), Decision::Allow | Decision::Flat)
}

/// Checks both formats of a tree.
fn check_tree(view: View<'_>, tree: &str, leaves: &[Leaf]) -> Result<(), TestCaseError> {
    let policy = view.policy.expect("given");
    let redacted = redact::json(view, "", tree.as_bytes()).expect("a tree");
    let json = String::from_utf8(redacted.bytes.clone()).expect("text");
    prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "not valid JSON: {}", json);
    let lines = redact::text(view, "", tree.as_bytes(), usize::MAX).expect("a tree");
    let text = String::from_utf8(lines.bytes.clone()).expect("text");
    for (path, mark, is_line) in leaves {
        let is_account = path.starts_with("instance/service-accounts/");
        let served = is_served(policy, path) && (view.has_accounts || !is_account);
        prop_assert_eq!(json.contains(mark), served, "{} in {}, of {}", path, json, tree);
        let line = format!("{path} {mark}{}\n", if *is_line { " of several" } else { "" });
        prop_assert_eq!(text.contains(&line), served, "{} in {}, of {}", path, text, tree);
        prop_assert_eq!(text.contains(mark), served, "{} in {}", path, text);
    }
    // Such a tree can be cached, and redacted for each client.
    if !redacted.is_renumbered {
        prop_assert_eq!(redact::text(view, "", &redacted.bytes, usize::MAX).expect("a tree"), lines);
        prop_assert_eq!(redact::json(view, "", &redacted.bytes).expect("a tree"), redacted);
    }
    Ok(())
}

fn check(policy: &Policy, root: &Node) -> Result<(), TestCaseError> {
    let mut leaves = Vec::new();
    let tree = render(root, "", &mut leaves).to_string();
    for has_accounts in [true, false] {
        check_tree(View { policy: Some(policy), has_accounts }, &tree, &leaves)?;
    }

    let mut directories = Vec::new();
    listings(root, "", &mut directories);
    for (directory, entries) in directories {
        let line = |(name, is_directory): &(String, bool)| format!("{name}{}\n", if *is_directory { "/" } else { "" });
        let whole: String = entries.iter().map(line).collect();
        let left = redact::listing(View { policy: Some(policy), has_accounts: true }, &directory, &whole);
        let shown = |(name, is_directory): &&(String, bool)| {
            let path = below(&directory, name);
            if *is_directory { policy.leads_through(&path) } else { is_served(policy, &path) }
        };
        prop_assert_eq!(left, entries.iter().filter(shown).map(line).collect::<String>(), "of {}", directory);
    }
    Ok(())
}

/// A directory of the server's own names, which survive the conversion to camel case and back.
fn directory(names: &'static [&'static str]) -> impl Strategy<Value = Node> {
    Just(Node::Value).prop_recursive(4, 40, 4, move |inner| {
        // Only leaves with certain names have several lines. Otherwise an array has numbered values.
        let entry = prop_oneof![
            4 => (select(names), inner.clone()),
            1 => (Just("tags"), (1..3_usize).prop_map(Node::Lines)),
        ];
        prop_oneof![
            3 => vec(entry, 0..4).prop_map(|entries| entries.into_iter().collect::<BTreeMap<_, _>>()).prop_map(entries),
            1 => vec(inner, 0..3).prop_map(Node::Numbered),
        ]
    })
}

fn entries(entries: BTreeMap<&'static str, Node>) -> Node {
    Node::Directory(entries.into_iter().map(|(name, node)| (name.to_owned(), node)).collect())
}

pub(super) fn tree(names: &'static [&'static str], attributes: &'static [&'static str]) -> impl Strategy<Value = Node> {
    let attributes = || btree_map(select(attributes), Just(Node::Value), 0..6).prop_map(entries);
    let account = || {
        Node::Directory(
            [
                ("aliases", Node::Lines(1)),
                ("email", Node::Value),
                ("identity", Node::Value),
                ("scopes", Node::Lines(2)),
                ("token", Node::Value),
            ]
            .map(|(name, node)| (name.to_owned(), node))
            .to_vec(),
        )
    };
    let accounts = Node::Directory(vec![("a@b.c".to_owned(), account()), ("default".to_owned(), account())]);
    (directory(names), attributes(), directory(names), attributes()).prop_map(
        move |(instance, of_instance, project, of_project)| {
            let top = |name: &str, node, more: Vec<(&str, Node)>| {
                let mut entries = match node {
                    Node::Directory(entries) => entries,
                    node => vec![("x".to_owned(), node)],
                };
                entries.retain(|(name, _)| name != "attributes");
                entries.extend(more.into_iter().map(|(name, node)| (name.to_owned(), node)));
                (name.to_owned(), Node::Directory(entries))
            };
            Node::Directory(vec![
                top("instance", instance, vec![("attributes", of_instance), ("service-accounts", accounts.clone())]),
                top("project", project, vec![("attributes", of_project)]),
            ])
        },
    )
}

/// Names in the built-in policies, and similar names.
pub(super) const REAL: &[&str] = &[
    "credentials",
    "hostname",
    "id",
    "zone",
    "image",
    "disks",
    "workload-identities",
    "gce-workload-certificates",
    "project-id",
    "numeric-project-id",
    "network-interfaces",
    "ip-aliases",
    "guest-attributes",
];
pub(super) const ATTRIBUTES: &[&str] = &[
    "kube-env",
    "kubeEnv",
    "KUBE-ENV",
    "sshKeys",
    "ssh-keys",
    "cluster-name",
    "cluster-uid",
    "clusterName",
    "user-data",
    "windows-keys",
    "x-psm1",
    "my-app-password",
    "startup-script-url",
    "-",
    "_",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn compat_shows_exactly_what_it_serves(tree in tree(REAL, ATTRIBUTES)) {
        let choice = Choice { source: Source::parse("compat"), recursive: Some(Recursive::Redact) };
        check(&choice.load().expect("built in"), &tree)?;
    }

    #[test]
    fn strict_shows_exactly_what_it_serves(tree in tree(REAL, ATTRIBUTES)) {
        let choice = Choice { source: Source::parse("strict"), recursive: None };
        check(&choice.load().expect("built in"), &tree)?;
    }

    #[test]
    fn any_policy_shows_exactly_what_it_serves(
        tree in tree(&["a", "b", "ab", "a-b", "a-c", "b-a-b", "x", "attributes"], &["a", "ab", "a-b", "aB", "A", "-", "--", "a-", "x"]),
        rules in oracle::rules(),
    ) {
        check(&rules.compile(), &tree)?;
    }
}
