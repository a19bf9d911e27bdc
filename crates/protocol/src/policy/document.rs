//! The policy file format as types. The JSON schema in `policies/schema.json` is generated from them.

use http::StatusCode;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use strum::{Display, EnumString, VariantNames};

use super::pattern::Pattern;
use crate::metadata::Method;
use crate::metadata::query::Param;

/// A policy file. Omitted fields are inherited from the policy that it extends. Without one, they default to the most
/// restrictive value.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, schemars(title = "ConcealmentPolicy"))]
pub struct Document {
    /// The version of this format.
    #[allow(dead_code, reason = "parsing validates it; it has only one value")]
    pub api_version: FormatVersion,
    /// The kind of document.
    #[allow(dead_code, reason = "parsing validates it; it has only one value")]
    pub kind: Kind,
    /// Name of the policy, shown to clients and in metrics: lowercase letters, digits, `-` and `.`, at most 63 bytes.
    pub name: Label,
    /// Version of the policy, in a format of your choice: lowercase letters, digits, `-` and `.`, at most 63 bytes.
    pub version: Label,
    /// Built-in policy to extend. Its rules are appended to the rules here, and its values apply to omitted fields.
    pub extends: Option<BuiltIn>,
    /// API versions to serve, at least one. Default: v1.
    #[serde(default, deserialize_with = "at_least_one")]
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub trees: Option<Vec<Tree>>,
    /// Methods to allow, at least one. Default: GET and HEAD, the only ones that the proxy supports.
    #[serde(default, deserialize_with = "at_least_one")]
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub methods: Option<Vec<Method>>,
    /// Query keys to forward to the metadata server. Default: all keys of the metadata protocol.
    pub query_keys: Option<Vec<Param>>,
    /// How to handle other query keys. Default: refuse.
    pub other_query_keys: Option<OtherKeys>,
    /// Status of a refusal, unless the rule has its own. Default: 403.
    pub answer: Option<Answer>,
    /// Verdict for a path that no rule matches. Default: conceal.
    pub unmatched: Option<Ruling>,
    /// How to handle recursive reads. Default: refuse.
    pub recursive: Option<Recursive>,
    /// Directories whose recursive reads are redacted even if recursive reads are otherwise refused.
    pub recursive_except: Option<Vec<Pattern>>,
    /// How to handle directory listings. Default: redact.
    pub listings: Option<Listings>,
    /// Rules, in order of precedence: the first rule that matches a path applies.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// Without a method or a tree, every request is refused, and `policy check` has nothing to say about the rules.
fn at_least_one<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    match Option::<Vec<T>>::deserialize(deserializer)? {
        Some(list) if list.is_empty() => {
            Err(D::Error::custom("an empty list refuses every request; omit the field for its default"))
        }
        list => Ok(list),
    }
}

impl Document {
    /// Fills in omitted fields from `base`, and appends the rules of `base`.
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

/// A verdict for paths, with its reason.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self")]
// As `check` has it.
#[cfg_attr(test, schemars(extend(
    "if" = {"properties": {"verdict": {"const": "allow"}}},
    "then" = {"properties": {"answer": {"type": "null"}, "notFoundForAudiences": {"maxItems": 0}}},
    "else" = {"properties": {"reason": {"type": "string", "pattern": "\\S"}}, "required": ["reason"]},
)))]
pub struct Rule {
    /// Patterns of the paths that the rule matches. A rule that conceals also matches every path below them, in any spelling
    /// that a lenient server might accept. A rule that allows matches the exact spelling only.
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub paths: Vec<Pattern>,
    /// Whether to allow or conceal the paths.
    pub verdict: Ruling,
    /// Status of the refusal. Default: the policy's `answer`.
    pub answer: Option<Answer>,
    /// Values of the query parameter `audience` for which the status of the refusal is 404; `*` is any. For clients that do
    /// without what does not exist, but fail if it is forbidden.
    #[serde(default)]
    pub not_found_for_audiences: Vec<Box<str>>,
    /// Reason sent to the client, as the end of a sentence: "... is concealed: REASON." Required in a rule that conceals.
    pub reason: Option<Box<str>>,
    /// Origin of the rule, for reference.
    pub source: Option<Box<str>>,
}

/// Why a rule is invalid although each of its fields is valid.
#[derive(Debug, thiserror::Error)]
enum RuleError {
    #[error("a rule must have at least one path in `paths`")]
    NoPaths,
    #[error("a rule that conceals must have a `reason`, which is sent to the client")]
    NoReason,
    #[error(
        "a rule that allows must not have an `answer` or `notFoundForAudiences`: the response comes from the metadata server"
    )]
    AnswerToAllow,
    #[error("{0} conceals only one of an account's two names (default and its email); write * for the name")]
    OneAccount(Pattern),
}

/// Deserializes the fields, then validates the rule as a whole, so that an error has a position in the file.
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
            Ruling::Allow if self.answer.is_some() || !self.not_found_for_audiences.is_empty() => {
                Err(RuleError::AnswerToAllow)
            }
            Ruling::Allow => Ok(()),
            Ruling::Conceal if self.reason.as_ref().is_none_or(|reason| reason.trim().is_empty()) => {
                Err(RuleError::NoReason)
            }
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
    /// The only version so far.
    #[serde(rename = "gce-metadata-proxy/v1")]
    V1,
}

/// The kind of document.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Kind {
    /// A concealment policy.
    ConcealmentPolicy,
}

/// A built-in policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Display, EnumString, VariantNames)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BuiltIn {
    /// Conceals what k8s-metadata-proxy conceals, and other known secrets.
    Compat,
    /// Allows only what GKE's own metadata server serves.
    Strict,
    /// Conceals what k8s-metadata-proxy conceals, and nothing more.
    K8sMetadataProxy,
}

/// An API version: a tree of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Tree {
    /// `/computeMetadata/v1`
    #[serde(rename = "v1")]
    #[strum(to_string = "computeMetadata/v1")]
    V1,
    /// `/computeMetadata/v1beta1`
    #[serde(rename = "v1beta1")]
    #[strum(to_string = "computeMetadata/v1beta1")]
    V1Beta1,
    /// `/0.1/meta-data`
    #[serde(rename = "0.1")]
    #[strum(to_string = "0.1/meta-data")]
    V01,
}

/// The verdict of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Ruling {
    /// The paths are served.
    Allow,
    /// The paths are refused, and removed from redacted responses.
    Conceal,
}

/// The status of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "u16")]
#[cfg_attr(test, schemars(extend("enum" = [403, 404])))]
pub enum Answer {
    /// 403: access is denied.
    Forbidden,
    /// 404: as if the path did not exist. Clients that only probe for a path handle this better.
    NotFound,
}

impl Answer {
    /// The HTTP status.
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
            _ => Err("the status of a refusal must be 403 or 404"),
        }
    }
}

/// How to handle a query key that is not allowed. It is never forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OtherKeys {
    /// Refuse the request.
    Refuse,
    /// Forward the request without the key, as the metadata server ignores unknown keys.
    Drop,
}

/// How to handle recursive reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Display, EnumString, VariantNames)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Recursive {
    /// Refuse them, except for the directories in `recursiveExcept`.
    Refuse,
    /// Answer them without the concealed values.
    Redact,
}

/// How to handle directory listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Listings {
    /// Include the names of concealed values.
    Whole,
    /// Remove the names of concealed values.
    Redact,
}

/// A name or version: 1 to 63 lowercase letters, digits, `-` and `.`, which are safe in a metric label.
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
            Err("a name or version must be 1 to 63 lowercase letters, digits, `-` and `.`")
        }
    }
}
