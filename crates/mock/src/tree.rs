//! [`Tree`]: a flat, sorted map of paths to values. Directories follow from the paths.

use std::collections::BTreeMap;

use super::kind::Kind;
use super::rows::{BUILDER_ACCOUNT, DEFAULT_ACCOUNT, PLAIN, SCOPES, SECRET};

/// The directory of accounts, relative to the API version.
pub(super) const SERVICE_ACCOUNTS: &str = "instance/service-accounts/";

/// The value of a path.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) kind: Kind,
    pub(super) value: String,
}

/// All leaves by path, relative to the API version, without a leading slash.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Leaf>,
}

impl Tree {
    /// The initial tree of a mock.
    pub(super) fn new() -> Self {
        let rows = PLAIN.iter().chain(SECRET);
        let leaf = |kind: Kind, value: &str| Leaf { kind, value: value.to_owned() };
        let mut tree =
            Self { nodes: rows.map(|(path, kind, value)| ((*path).to_owned(), leaf(*kind, value))).collect() };
        tree.add_account("default", DEFAULT_ACCOUNT, "default");
        tree.add_account(DEFAULT_ACCOUNT, DEFAULT_ACCOUNT, "default");
        tree.add_account(BUILDER_ACCOUNT, BUILDER_ACCOUNT, "");
        tree
    }

    /// The leaf at a path. An older spelling is not listed.
    pub(super) fn leaf(&self, path: &str) -> Option<&Leaf> {
        let path = if path == "universe/universe_domain" { "universe/universe-domain" } else { path };
        self.nodes.get(path).filter(|leaf| leaf.kind != Kind::Directory)
    }

    /// The value at a path, or an empty string.
    pub(super) fn value(&self, path: &str) -> &str {
        self.leaf(path).map_or("", |leaf| &leaf.value)
    }

    /// Whether a path is that of a directory, which ends in `/` or is empty for the root.
    pub(super) fn is_directory(&self, path: &str) -> bool {
        (path.is_empty() || path.ends_with('/')) && self.below(path).next().is_some()
    }

    /// Everything below a directory, by relative path.
    pub(super) fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, &'a Leaf)> {
        let nodes = self.nodes.range::<str, _>((std::ops::Bound::Included(directory), std::ops::Bound::Unbounded));
        nodes.map_while(move |(path, leaf)| Some((path.strip_prefix(directory)?, leaf)))
    }

    /// Sets the value of a leaf. A new leaf is text. `default` and its e-mail stay in sync.
    pub(super) fn set(&mut self, path: &str, value: &str) {
        for path in [Some(path.to_owned()), twin(path)].into_iter().flatten() {
            let leaf = self.nodes.entry(path).or_insert(Leaf { kind: Kind::Text, value: String::new() });
            value.clone_into(&mut leaf.value);
        }
    }

    /// Removes a leaf, or a directory with its contents.
    pub(super) fn remove(&mut self, path: &str) {
        for path in [Some(path.to_owned()), twin(path)].into_iter().flatten() {
            let directory = format!("{path}/");
            self.nodes.retain(|node, _| *node != path && !node.starts_with(&directory));
        }
    }

    /// Adds a service account under a name, its e-mail or `default`.
    pub(super) fn add_account(&mut self, name: &str, email: &str, aliases: &str) {
        for (child, kind, value) in [
            ("aliases", Kind::Lines, aliases),
            ("email", Kind::Text, email),
            ("identity", Kind::Identity, ""),
            ("scopes", Kind::Lines, SCOPES),
            ("token", Kind::Token, ""),
        ] {
            let leaf = Leaf { kind, value: value.to_owned() };
            self.nodes.insert(format!("{SERVICE_ACCOUNTS}{name}/{child}"), leaf);
        }
    }
}

/// The path of the same leaf under the default account's other name.
fn twin(path: &str) -> Option<String> {
    let (name, child) = path.strip_prefix(SERVICE_ACCOUNTS)?.split_once('/')?;
    let other = match name {
        "default" => DEFAULT_ACCOUNT,
        DEFAULT_ACCOUNT => "default",
        _ => return None,
    };
    Some(format!("{SERVICE_ACCOUNTS}{other}/{child}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_a_directory_name_is_not_a_directory() {
        let tree = Tree::new();
        assert!(tree.is_directory("instance/"));
        assert!(tree.is_directory(""));
        assert!(tree.is_directory("instance/guest-attributes/"), "which is empty");
        assert!(!tree.is_directory("instance"));
        assert!(!tree.is_directory("inst/"));
        assert!(!tree.is_directory("instance/id/"));
        assert!(tree.leaf("instance/attributes/").is_none());
    }

    #[test]
    fn default_and_its_email_change_together() {
        let mut tree = Tree::new();
        tree.set("instance/service-accounts/default/scopes", "one");
        assert_eq!(tree.value(&format!("{SERVICE_ACCOUNTS}{DEFAULT_ACCOUNT}/scopes")), "one");
        assert_ne!(tree.value(&format!("{SERVICE_ACCOUNTS}{BUILDER_ACCOUNT}/scopes")), "one");
    }

    #[test]
    fn removing_a_directory_removes_only_its_leaves() {
        let mut tree = Tree::new();
        tree.remove("instance/disks/0");
        assert!(tree.leaf("instance/disks/0/type").is_none());
        assert!(tree.leaf("instance/description").is_some());
    }
}
