//! The policy file: what a person writes, as types. The JSON Schema in `policies/schema.json` is made from them.

use std::fmt;

use http::StatusCode;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::pattern::Pattern;
use crate::metadata::Method;
use crate::metadata::query::Param;

/// A policy file. Whatever it leaves out is taken from the policy that it extends; if it extends none, from the most
/// closed choice.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, schemars(title = "ConcealmentPolicy"))]
pub struct Document {
    /// The version of this format.
    #[allow(dead_code, reason = "that it can be read is all there is to know")]
    pub api_version: FormatVersion,
    /// The kind of document.
    #[allow(dead_code, reason = "that it can be read is all there is to know")]
    pub kind: Kind,
    /// What clients and metrics call it: lower-case letters, digits, `-` and `.`, at most 63 bytes.
    pub name: Label,
    /// Its version, in a form of your own: lower-case letters, digits, `-` and `.`, at most 63 bytes.
    pub version: Label,
    /// The built-in policy whose rules come after the ones here, and whose other choices count where none is made here.
    pub extends: Option<BuiltIn>,
    /// API versions that are served. Nothing else: v1.
    pub trees: Option<Vec<Tree>>,
    /// Methods that are served. Nothing else: GET and HEAD, which are all that the proxy knows.
    pub methods: Option<Vec<Method>>,
    /// Query keys that go on to the metadata server. Nothing else: all that the metadata protocol knows.
    pub query_keys: Option<Vec<Param>>,
    /// What becomes of a request with other query keys. Nothing else: refuse.
    pub other_query_keys: Option<OtherKeys>,
    /// The status of a refusal whose rule names none. Nothing else: 403.
    pub answer: Option<Answer>,
    /// What becomes of a path that no rule matches. Nothing else: conceal.
    pub unmatched: Option<Ruling>,
    /// What becomes of a recursive read. Nothing else: refuse.
    pub recursive: Option<Recursive>,
    /// Directories whose recursive reads are answered, redacted, although others are refused.
    pub recursive_except: Option<Vec<Pattern>>,
    /// What becomes of a directory's listing. Nothing else: redact.
    pub listings: Option<Listings>,
    /// The first rule that matches a path decides.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

impl Document {
    /// This document with what it leaves out taken from another, and its rules before the other's.
    pub(super) fn over(self, base: Self) -> Self {
        Self {
            trees: self.trees.or(base.trees),
            methods: self.methods.or(base.methods),
            query_keys: self.query_keys.or(base.query_keys),
            other_query_keys: self.other_query_keys.or(base.other_query_keys),
            answer: self.answer.or(base.answer),
            unmatched: self.unmatched.or(base.unmatched),
            recursive: self.recursive.or(base.recursive),
            recursive_except: self.recursive_except.or(base.recursive_except),
            listings: self.listings.or(base.listings),
            rules: self.rules.into_iter().chain(base.rules).collect(),
            ..self
        }
    }
}

/// What becomes of some paths, and why.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self")]
pub struct Rule {
    /// Which paths. A concealed path conceals all below it, in whatever spelling a lenient server might accept; an allowed
    /// path is that path, letter by letter.
    pub paths: Vec<Pattern>,
    /// What becomes of them.
    pub verdict: Ruling,
    /// The status of the refusal; nothing else: the policy's `answer`.
    pub answer: Option<Answer>,
    /// What the client is told, as the end of a sentence: "... is concealed: REASON." Every rule that conceals has one.
    pub reason: Option<Box<str>>,
    /// Where the rule comes from, for whoever wonders later.
    pub source: Option<Box<str>>,
}

/// What is wrong with a rule whose parts are all right.
#[derive(Debug, thiserror::Error)]
enum RuleError {
    #[error("a rule without `paths` decides nothing")]
    NoPaths,
    #[error("a rule that conceals needs a `reason`: the client is told it")]
    NoReason,
    #[error("a rule that allows has no `answer`: the answer is the metadata server's")]
    AnswerToAllow,
    #[error("{0} conceals one name of an account that has two (default and its e-mail); write * for the name")]
    OneAccount(Pattern),
}

/// Its parts first, then the whole, so that a mistake is told with its place.
impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rule = Self::deserialize(deserializer)?;
        rule.check().map_err(D::Error::custom)?;
        Ok(rule)
    }
}

impl Rule {
    fn check(&self) -> Result<(), RuleError> {
        match self.verdict {
            _ if self.paths.is_empty() => Err(RuleError::NoPaths),
            Ruling::Allow if self.answer.is_some() => Err(RuleError::AnswerToAllow),
            Ruling::Allow => Ok(()),
            Ruling::Conceal if self.reason.is_none() => Err(RuleError::NoReason),
            Ruling::Conceal => match self.paths.iter().find(|path| path.names_an_account()) {
                Some(path) => Err(RuleError::OneAccount(path.clone())),
                None => Ok(()),
            },
        }
    }
}

/// The version of the file format.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum FormatVersion {
    /// The only one so far.
    #[serde(rename = "gce-metadata-proxy/v1")]
    V1,
}

/// The kind of document.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Kind {
    /// This one.
    ConcealmentPolicy,
}

/// A policy that comes with the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BuiltIn {
    /// The verdicts of k8s-metadata-proxy, and what else is known to be secret.
    Compat,
    /// What GKE's own metadata server serves.
    Strict,
}

/// An API version: a tree of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Tree {
    /// `/computeMetadata/v1`
    #[serde(rename = "v1")]
    V1,
    /// `/computeMetadata/v1beta1`
    #[serde(rename = "v1beta1")]
    V1Beta1,
    /// `/0.1/meta-data`
    #[serde(rename = "0.1")]
    V01,
}

/// What a rule says of its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Ruling {
    /// They are served.
    Allow,
    /// They are refused, and absent from what is redacted.
    Conceal,
}

/// The status of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "u16")]
#[cfg_attr(test, schemars(extend("enum" = [403, 404])))]
pub enum Answer {
    /// 403: it is there and not for you.
    Forbidden,
    /// 404: as if it were not there. Clients that only look whether something is there take this better.
    NotFound,
}

impl Answer {
    /// As HTTP has it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
        }
    }
}

impl TryFrom<u16> for Answer {
    type Error = &'static str;

    fn try_from(status: u16) -> Result<Self, Self::Error> {
        match status {
            403 => Ok(Self::Forbidden),
            404 => Ok(Self::NotFound),
            _ => Err("a refusal is answered with 403 or 404"),
        }
    }
}

/// What becomes of a query key that is not among those allowed. It never goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OtherKeys {
    /// The request is refused.
    Refuse,
    /// The request goes on without it, as the metadata server ignores what it does not know.
    Drop,
}

/// What becomes of a recursive read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Recursive {
    /// It is refused, but for `recursiveExcept`.
    Refuse,
    /// It is answered without what is concealed.
    Redact,
}

/// As it is typed.
impl fmt::Display for Recursive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "refuse",
            Self::Redact => "redact",
        })
    }
}

/// What becomes of a directory's listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Listings {
    /// It shows the names of what is concealed.
    Whole,
    /// It does not.
    Redact,
}

/// A name or version: lower-case letters, digits, `-` and `.`, 1 to 63 bytes, so that it is a metric label and no more.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "String")]
#[cfg_attr(test, schemars(extend("pattern" = "^[a-z0-9.-]{1,63}$")))]
pub struct Label(Box<str>);

impl Label {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Label {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        if (1..=63).contains(&text.len()) && text.bytes().all(is_plain) {
            Ok(Self(text.into_boxed_str()))
        } else {
            Err("a name or version has 1 to 63 lower-case letters, digits, `-` and `.`")
        }
    }
}
