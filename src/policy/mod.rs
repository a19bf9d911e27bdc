//! Policies: what pods must not read, as data.
//!
//! A policy is a file: rules of path patterns, the first that matches decides, and a few choices about queries, recursive
//! reads and listings. Two are built in (`policies/compat.yaml`, `policies/strict.yaml`); a person's own can extend one of
//! them. The decision ([`Policy::judge`]) is a pure function of the parsed request.
//!
//! # Two readings
//!
//! A request is read once, strictly, and what was refused while it was read never comes here. Of what is left, a rule that
//! *allows* is matched against the path letter by letter: that is what the metadata server will be asked for. A rule that
//! *conceals* is matched against the most lenient reading that any server might make: letters of any case, with or without
//! a final slash, and with hyphens taken out, so that the camel case of recursive answers (`sshKeys`) is no way round
//! either. It covers all that lies below. A spelling that only a lenient server would take for `kube-env` is therefore
//! concealed, not forwarded.
//!
//! Paths are judged below the API version, in the layout of v1; those of `0.1/meta-data`, which has no `instance/`, are
//! judged as if they had.

pub mod document;
mod fold;
mod judge;
mod live;
mod load;
#[cfg(test)]
pub(crate) mod oracle;
pub mod pattern;
mod refusal;
mod trie;

pub use document::{Answer, BuiltIn, Recursive};
pub use judge::{Cause, Decision, Subject};
pub use live::{LivePolicy, Reloaded};
pub use load::{Choice, LoadError, SCHEMA, Source};
pub use refusal::Concealed;

use document::{Document, Listings, OtherKeys, Rule, Ruling, Tree};
use trie::{Found, Order, Trie};

use crate::metadata::query::Param;
use crate::metadata::{CommonPath, Method};

/// A policy, ready to judge.
#[derive(Debug)]
pub struct Policy {
    name: String,
    version: String,
    hash: String,
    trees: Vec<Tree>,
    methods: Vec<Method>,
    query_keys: Vec<Param>,
    other_query_keys: OtherKeys,
    answer: Answer,
    unmatched: Ruling,
    recursive: Recursive,
    recursive_except: Trie,
    listings: Listings,
    rules: Vec<Rule>,
    patterns: Trie,
    /// What the patterns say of each common path.
    common: [Found; CommonPath::ALL.len()],
}

impl Policy {
    /// What it calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version that it gives itself.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The first twelve digits of its file's SHA-256, as `sha256sum` prints it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// How many rules it has, those of the policy that it extends included.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// What becomes of recursive reads.
    pub fn recursive(&self) -> Recursive {
        self.recursive
    }

    /// A policy from a document that extends nothing any more. What it leaves out is closed.
    fn compile(document: Document, hash: String) -> Self {
        let mut patterns = Trie::new();
        for (order, rule) in document.rules.iter().enumerate() {
            for path in &rule.paths {
                patterns.add(path, rule.verdict, order);
            }
        }
        let mut recursive_except = Trie::new();
        for path in document.recursive_except.iter().flatten() {
            recursive_except.add(path, Ruling::Allow, 0);
        }
        let common = CommonPath::ALL.map(|path| patterns.walk(Subject::of(&path.into()).as_str()));
        Self {
            name: document.name.as_str().to_owned(),
            version: document.version.as_str().to_owned(),
            hash,
            trees: document.trees.unwrap_or_else(|| vec![Tree::V1]),
            methods: document.methods.unwrap_or_else(|| vec![Method::Get, Method::Head]),
            query_keys: document.query_keys.unwrap_or_else(|| Param::ALL.to_vec()),
            other_query_keys: document.other_query_keys.unwrap_or(OtherKeys::Refuse),
            answer: document.answer.unwrap_or(Answer::Forbidden),
            unmatched: document.unmatched.unwrap_or(Ruling::Conceal),
            recursive: document.recursive.unwrap_or(Recursive::Refuse),
            recursive_except,
            listings: document.listings.unwrap_or(Listings::Redact),
            rules: document.rules,
            patterns,
            common,
        }
    }
}
