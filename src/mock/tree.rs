//! [`Tree`]: what is where. A flat, sorted map of paths; directories are what the paths make of them.

use std::collections::BTreeMap;

use super::kind::Kind;
use super::rows::{BUILDER_ACCOUNT, DEFAULT_ACCOUNT, PLAIN, SCOPES, SECRET};

/// Where the accounts are, below the API version.
pub(super) const SERVICE_ACCOUNTS: &str = "instance/service-accounts/";

/// A path's value.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) kind: Kind,
    pub(super) value: String,
}

/// Every leaf by its path below the API version, without a slash in front.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Leaf>,
}

impl Tree {
    /// The tree of a fresh mock.
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

    /// The leaf at a path.
    pub(super) fn leaf(&self, path: &str) -> Option<&Leaf> {
        self.nodes.get(path).filter(|leaf| leaf.kind != Kind::Directory)
    }

    /// The value at a path, empty when there is none.
    pub(super) fn value(&self, path: &str) -> &str {
        self.leaf(path).map_or("", |leaf| &leaf.value)
    }

    /// Whether a path, which ends in `/` or is empty for the top, is a directory.
    pub(super) fn is_directory(&self, directory: &str) -> bool {
        self.below(directory).next().is_some()
    }

    /// Everything in and below a directory, by the path from there.
    pub(super) fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, &'a Leaf)> {
        let nodes = self.nodes.range::<str, _>((std::ops::Bound::Included(directory), std::ops::Bound::Unbounded));
        nodes.map_while(move |(path, leaf)| Some((path.strip_prefix(directory)?, leaf)))
    }

    /// Gives a leaf a value; a new leaf is text. What `default` and its e-mail name stays the same.
    pub(super) fn set(&mut self, path: &str, value: &str) {
        for path in [Some(path.to_owned()), twin(path)].into_iter().flatten() {
            let leaf = self.nodes.entry(path).or_insert(Leaf { kind: Kind::Text, value: String::new() });
            value.clone_into(&mut leaf.value);
        }
    }

    /// Takes a leaf away, or a directory with everything in it. Says whether there was anything.
    pub(super) fn remove(&mut self, path: &str) -> bool {
        let before = self.nodes.len();
        for path in [Some(path.to_owned()), twin(path)].into_iter().flatten() {
            let directory = format!("{path}/");
            self.nodes.retain(|node, _| *node != path && !node.starts_with(&directory));
        }
        self.nodes.len() < before
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

/// The same leaf under the default account's other name.
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
    fn a_name_that_begins_like_a_directory_is_not_one() {
        let tree = Tree::new();
        assert!(tree.is_directory("instance/"));
        assert!(tree.is_directory(""));
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
    fn a_removed_directory_takes_only_its_own_leaves_along() {
        let mut tree = Tree::new();
        assert!(tree.remove("instance/disks/0"));
        assert!(!tree.remove("instance/disks/0"));
        assert!(tree.leaf("instance/disks/0/type").is_none());
        assert!(tree.leaf("instance/description").is_some());
    }
}
