//! Loads built-in policies and policy files.

use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use strum::VariantNames as _;

use super::document::{BuiltIn, Document};
use super::file::{self, Content, FileError};
use super::{Policy, Recursive};

/// Messages of the YAML library, and the same for users who do not know its terms.
const PLAIN: [(&str, &str); 3] = [
    ("expected mapping start", "expected `name: value`"),
    ("expected sequence start", "expected a list: [a, b], or lines that begin with `- `"),
    ("expected string scalar", "expected a text"),
];

/// The JSON schema of policy files.
pub const SCHEMA: &str = include_str!("../../../../policies/schema.json");

/// The selected policy.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The source of the policy.
    pub source: Source,
    /// Overrides how the policy handles recursive reads.
    pub recursive: Option<Recursive>,
}

/// The source of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A policy in the binary.
    BuiltIn(BuiltIn),
    /// A file.
    File(PathBuf),
}

/// Lists the built-in policies if the path is a single word that may have been meant as one of their names.
fn built_in(path: &Path) -> String {
    let is_word = path.components().count() == 1 && path.extension().is_none();
    if is_word { format!("; the built-in policies are {}", BuiltIn::VARIANTS.join(", ")) } else { String::new() }
}

/// Reason why a policy could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read policy file {path}: {error}{}", built_in(.path), path = .path.display())]
    Read {
        /// The policy file.
        path: PathBuf,
        /// The cause.
        error: FileError,
    },
    /// The file keeps changing.
    #[error(
        "policy file {path} changes whenever it is read; write the policy to another file, and rename that to this one",
        path = .0.display()
    )]
    Restless(PathBuf),
    /// The file is not a valid policy.
    #[error(
        "{path}:{line}:{column}: {what} (for the format, see `gce-metadata-proxy policy schema`)",
        path = .path.display()
    )]
    Invalid {
        /// The policy file.
        path: PathBuf,
        /// The line, starting at 1.
        line: u64,
        /// The column, starting at 1.
        column: u64,
        /// The error, and the expected input.
        what: String,
    },
}

/// `compat`, unmodified.
impl Default for Choice {
    fn default() -> Self {
        Self { source: Source::BuiltIn(BuiltIn::Compat), recursive: None }
    }
}

impl Choice {
    /// Reads the policy once. A file that is still being written may be incomplete.
    pub fn load(&self) -> Result<Policy, LoadError> {
        self.compile(&self.source.text()?)
    }

    /// Compiles a text returned by [`Source::text`].
    pub fn compile(&self, text: &str) -> Result<Policy, LoadError> {
        let mut document = parse(text).map_err(|error| self.source.invalid(&error))?;
        document.recursive = self.recursive.or(document.recursive);
        let own_rules = document.rules.len();
        let document = match document.extends {
            Some(base) => document.over(base.document()),
            None => document,
        };
        Ok(Policy::compile(document, own_rules, hash(text)))
    }
}

impl Source {
    /// Parses the flag's value: the name of a built-in policy, or a path.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::File(text.into()), Self::BuiltIn)
    }

    /// The text of the policy.
    pub fn text(&self) -> Result<String, LoadError> {
        self.read().map(|content| content.text)
    }

    /// The same, with the time when the file was written.
    pub fn read(&self) -> Result<Content, LoadError> {
        match self {
            Self::BuiltIn(built_in) => Ok(Content { text: built_in.text().to_owned(), modified: None }),
            Self::File(path) => file::read(path).map_err(|error| LoadError::Read { path: path.clone(), error }),
        }
    }

    /// The text of the policy, followed by the text of the policy that it extends.
    pub fn texts(&self) -> Result<Vec<String>, LoadError> {
        let text = self.text()?;
        let base = parse(&text).map_err(|error| self.invalid(&error))?.extends;
        Ok([Some(text), base.map(|base| base.text().to_owned())].into_iter().flatten().collect())
    }

    fn invalid(&self, error: &serde_saphyr::Error) -> LoadError {
        let path = PathBuf::from(self.to_string());
        let (line, column) = error.location().map_or((1, 1), |location| (location.line(), location.column()));
        let what = error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
        let what = what.strip_suffix(&format!(" at line {line}, column {column}")).unwrap_or(&what);
        let plain = PLAIN.iter().find_map(|(term, plain)| (*term == what).then_some(*plain));
        let what = plain.unwrap_or(what).to_owned();
        LoadError::Invalid { path, line, column, what }
    }
}

/// Formats the value of the flag.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(built_in) => built_in.fmt(f),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl BuiltIn {
    fn text(self) -> &'static str {
        match self {
            Self::Compat => include_str!("../../../../policies/compat.yaml"),
            Self::Strict => include_str!("../../../../policies/strict.yaml"),
            Self::K8sMetadataProxy => include_str!("../../../../policies/k8s-metadata-proxy.yaml"),
        }
    }

    fn document(self) -> Document {
        parse(self.text()).expect("the built-in policies are well-formed")
    }
}

fn parse(text: &str) -> Result<Document, serde_saphyr::Error> {
    serde_saphyr::from_str(text)
}

/// SHA-256 of a text.
pub fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn hash(text: &str) -> String {
    let digest = digest(text);
    let twelve_digits = digest.iter().take(6).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{twelve_digits:012x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(text: &str) -> Result<Policy, LoadError> {
        Choice { source: Source::File("p.yaml".into()), recursive: None }.compile(text)
    }

    fn error_of(rest: &str) -> String {
        let text =
            format!("apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n{rest}");
        compile(&text).expect_err("invalid").to_string()
    }

    #[test]
    fn errors_contain_the_position_and_what_was_expected() {
        let default_token =
            "rules:\n  - paths: [instance/service-accounts/default/token]\n    verdict: conceal\n    reason: x\n";
        for (rest, expected) in [
            (
                "rulez: []",
                "p.yaml:5:1: unknown field `rulez`, expected one of apiVersion, kind, name, version, extends,",
            ),
            ("extends: lax", "p.yaml:5:10: unknown variant `lax`, expected one of compat, strict, k8s-metadata-proxy"),
            ("queryKeys: [alt, foo]", "p.yaml:5:18: unknown variant `foo`, expected one of alt, audience,"),
            ("answer: 418", "p.yaml:5:9: the status of a refusal must be 403 or 404"),
            ("name: other", "p.yaml:5:1: duplicate mapping key"),
            (
                "rules:\n  - paths: [instance/id]\n    verdict: conceal\n",
                "p.yaml:6:5: a rule that conceals must have a `reason`",
            ),
            (
                "rules:\n  - paths: [instance/id]\n    verdict: conceal\n    reason: ' '\n",
                "p.yaml:6:5: a rule that conceals must have a `reason`",
            ),
            ("methods: []", "p.yaml:5:10: an empty list refuses every request"),
            ("trees: []", "p.yaml:5:8: an empty list refuses every request"),
            ("rules:\n  - paths: []\n    verdict: allow\n", "p.yaml:6:5: a rule must have at least one path"),
            (
                "rules:\n  - paths: [instance/id]\n    verdict: allow\n    answer: 403\n",
                "p.yaml:6:5: a rule that allows",
            ),
            (
                "rules:\n  - paths: [instance/id]\n    verdict: allow\n    notFoundForAudiences: [x]\n",
                "p.yaml:6:5: a rule that allows",
            ),
            (
                "rules:\n  - paths: [attributes/x]\n    verdict: allow\n",
                "p.yaml:6:13: \"attributes/x\" matches nothing: ",
            ),
            (
                "rules:\n  - paths: [instance/id, instance/attributes/../zone]\n    verdict: allow\n",
                "p.yaml:6:26: \"instance/attributes/../zone\" has the segment `..`: paths are normalised before ",
            ),
            ("recursiveExcept: [instance/./disks]", "p.yaml:5:19: \"instance/./disks\" has the segment `.`: "),
            (
                default_token,
                "p.yaml:6:5: instance/service-accounts/default/token conceals only one of an account's two names",
            ),
        ] {
            let error = error_of(rest);
            assert!(error.starts_with(expected), "{error}");
            assert!(error.ends_with("(for the format, see `gce-metadata-proxy policy schema`)"), "{error}");
        }
    }

    #[test]
    fn an_empty_policy_conceals_everything() {
        let policy = compile("apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: none\nversion: '1'\n");
        let policy = policy.expect("a policy");
        assert!(!policy.shows("instance/id") && !policy.leads_through("instance"));
        assert_eq!(policy.recursive(), Recursive::Refuse);
    }

    #[test]
    fn a_policys_own_rules_precede_inherited_ones() {
        let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '7'\nextends: strict\n\
                    rules:\n  - paths: [instance/tags]\n    verdict: allow\n  - paths: [instance/id]\n    verdict: conceal\n    reason: x\n";
        let policy = compile(text).expect("a policy");
        assert!(policy.shows("instance/tags") && policy.shows("instance/zone"));
        assert!(!policy.shows("instance/id") && !policy.shows("instance/image"));
        assert_eq!((policy.name(), policy.version(), policy.recursive()), ("mine", "7", Recursive::Redact));
    }

    #[test]
    fn the_choice_overrides_recursive_reads() {
        for recursive in [Recursive::Redact, Recursive::Refuse] {
            let choice = Choice { source: Source::parse("compat"), recursive: Some(recursive) };
            assert_eq!(choice.load().expect("built in").recursive(), recursive);
        }
    }

    #[test]
    fn the_hash_is_what_sha256sum_prints() {
        assert_eq!(hash("abc"), "ba7816bf8f01");
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let absent = Choice { source: Source::parse("/nowhere/policy.yaml"), recursive: None }.load();
        let message = absent.expect_err("no file").to_string();
        assert!(message.starts_with("cannot read policy file /nowhere/policy.yaml: "), "{message}");
    }

    /// `UPDATE_SCHEMA=1 cargo test --lib policy` regenerates the schema.
    #[test]
    fn the_schema_matches_the_types() {
        let schema = serde_json::to_string_pretty(&schemars::schema_for!(Document)).expect("a schema") + "\n";
        if crate::switch::is_on("UPDATE_SCHEMA") {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/schema.json"), &schema)
                .expect("written");
        }
        assert!(SCHEMA == schema, "regenerate it: UPDATE_SCHEMA=1 cargo test --lib policy, then rebuild");
    }
}
