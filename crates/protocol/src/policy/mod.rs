//! Concealment policies: which metadata pods must not read.
//!
//! A policy is a file of rules with path patterns, of which the first match applies, and a few settings for
//! queries, recursive reads and listings. Three are built in (`policies/*.yaml`), and a custom one can extend
//! any of them. The decision ([`Policy::judge`]) is a pure function of the parsed request.
//!
//! # Two readings
//!
//! A request is parsed once, strictly, and an invalid one never gets here. A rule that *allows* matches the exact path,
//! which is what the upstream receives. A rule that *conceals* matches the most lenient reading of any server:
//! case-insensitive, with or without a trailing slash, and without hyphens and underscores, which covers the camel case of
//! recursive responses (`sshKeys`). It also matches everything below the path. A spelling that only a lenient server would accept
//! as `kube-env` is therefore concealed, not forwarded.
//!
//! Paths are matched relative to the API version, in the layout of v1. Paths in `0.1/meta-data`, which lack
//! `instance/`, are matched as if they had it.

mod difference;
pub mod document;
mod file;
mod fold;
mod judge;
mod load;
#[cfg(any(test, feature = "oracle"))]
pub mod oracle;
pub mod pattern;
mod refusal;
mod trie;

pub use difference::{Difference, differences};
pub use document::{Answer, BuiltIn, Recursive};
pub use file::{Content, FileError};
pub use judge::{Cause, Decision, Overruled, Subject};
pub use load::{Choice, LoadError, SCHEMA, Source, digest};
pub use refusal::Concealed;

use document::{Document, Listings, OtherKeys, Rule, Ruling, Tree};
use trie::{Matches, Order, Trie};

use crate::metadata::query::Param;
use crate::metadata::{CommonPath, Method};

/// A compiled policy.
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
    /// How many of the rules are of the file itself. Those of the policy that it extends follow.
    own_rules: usize,
    patterns: Trie,
    /// Precomputed matches of the common paths.
    common: [Matches; CommonPath::ALL.len()],
}

impl Policy {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// The first twelve digits of the file's SHA-256, as `sha256sum` prints it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Number of rules, including those of the policy that it extends.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// How recursive reads are handled.
    pub fn recursive(&self) -> Recursive {
        self.recursive
    }

    /// Compiles a document whose base was merged after its own rules. Omitted fields get the most restrictive value.
    fn compile(document: Document, own_rules: usize, hash: String) -> Self {
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
        let common = CommonPath::ALL.map(|path| patterns.walk(Subject::new(&path.into()).as_str()));
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
            own_rules,
            patterns,
            common,
        }
    }
}
