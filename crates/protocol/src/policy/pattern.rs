//! [`Pattern`]: matches the paths of a rule. `Glob`: one of its segments.

use std::fmt;
use std::str::FromStr;

use memchr::memmem;
use serde::Deserialize;

use super::fold::folded;

/// Top-level names of the metadata tree. Patterns must begin with one of these or a wildcard.
pub(super) const TOPS: [&str; 4] = ["instance", "project", "oslogin", "universe"];

/// What a segment of a pattern may have beside letters and digits. `-` is last, for the schema's character class.
const MARKS: &str = "*_.~@+!$'(),:-";

/// A path pattern relative to the API version, such as `instance/attributes/kube-env`,
/// `instance/attributes/windows-*` or `**/identity`. `*` matches any number of characters within a segment, the
/// segment `**` any number of segments, including none.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    text: Box<str>,
    segments: Box<[Segment]>,
}

/// One segment of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// An exact name.
    Literal(Box<str>),
    /// A name with `*` in it.
    Glob(Glob),
    /// `**`.
    Deep,
}

/// Reason why a pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern has an empty segment, possibly because of a leading or trailing slash.
    #[error("{0:?} has a leading, trailing or double `/`; write names separated by one `/`")]
    EmptySegment(Box<str>),
    /// The first segment is not a top-level name.
    #[error(
        "{0:?} matches nothing: paths are relative to the API version and must begin with instance, project, oslogin, \
         universe, * or **"
    )]
    Top(Box<str>),
    /// The pattern has the segment `.` or `..`, which no normalised path has, so it would match nothing, or something
    /// unexpected.
    #[error(
        "{0:?} has the segment `{1}`: paths are normalised before they are matched, and have none; write the path without \
         it"
    )]
    Dots(Box<str>, Box<str>),
    /// The pattern contains a character that no path contains, so it would match nothing.
    #[error("{0:?} contains {1:?}, which no metadata path contains")]
    Foreign(Box<str>, char),
    /// The pattern has more than one `**`, which would slow down matching and is never needed.
    #[error("{0:?} has more than one `**`")]
    TwoDeep(Box<str>),
}

impl Pattern {
    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether the pattern has a `**`.
    pub(super) fn is_deep(&self) -> bool {
        self.segments.contains(&Segment::Deep)
    }

    /// Whether the pattern is `**`, which matches every path.
    pub(super) fn is_all(&self) -> bool {
        *self.segments == [Segment::Deep]
    }

    /// Whether the pattern names a particular service account. Every account has two names, so such a pattern conceals
    /// only one of them. A segment that may or may not be an account's name counts if it looks like one.
    pub(super) fn names_an_account(&self) -> bool {
        let deep = self.segments.iter().position(|segment| *segment == Segment::Deep).unwrap_or(self.segments.len());
        let above = ["instance", "service-accounts"];
        if !self.segments[..deep].iter().zip(above).all(|(segment, name)| segment.could_be(name)) {
            return false;
        }
        match &*self.segments {
            [_, accounts, account, ..] if deep > above.len() => {
                account.looks_like_an_account() || !(accounts.is_any() || account.is_any())
            }
            segments => segments[deep..].iter().any(Segment::looks_like_an_account),
        }
    }
}

impl Segment {
    /// Whether the segment matches a name in the lenient reading.
    fn could_be(&self, name: &str) -> bool {
        match self {
            Self::Literal(literal) => folded(literal) == folded(name),
            Self::Glob(glob) => glob.folded().matches(folded(name).as_bytes()),
            Self::Deep => true,
        }
    }

    /// Whether the segment matches every name in the lenient reading.
    fn is_any(&self) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Glob(glob) => glob.folded().is_any(),
            Self::Deep => true,
        }
    }

    fn looks_like_an_account(&self) -> bool {
        match self {
            Self::Literal(name) => name.eq_ignore_ascii_case("default") || name.contains('@'),
            Self::Glob(glob) => {
                [&glob.first, &glob.last].into_iter().chain(&glob.middle).any(|piece| piece.contains('@'))
            }
            Self::Deep => false,
        }
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let names: Vec<&str> = text.split('/').collect();
        if names.contains(&"") {
            return Err(PatternError::EmptySegment(text.into()));
        }
        if let Some(dots) = names.iter().find(|name| matches!(**name, "." | "..")) {
            return Err(PatternError::Dots(text.into(), (*dots).into()));
        }
        if !names[0].contains('*') && !TOPS.contains(&names[0]) {
            return Err(PatternError::Top(text.into()));
        }
        let is_path = |letter: char| letter.is_ascii_alphanumeric() || letter == '/' || MARKS.contains(letter);
        if let Some(foreign) = text.chars().find(|letter| !is_path(*letter)) {
            return Err(PatternError::Foreign(text.into(), foreign));
        }
        if names.iter().filter(|name| **name == "**").count() > 1 {
            return Err(PatternError::TwoDeep(text.into()));
        }
        let segment = |name: &str| match name {
            "**" => Segment::Deep,
            name if name.contains('*') => Segment::Glob(Glob::new(name)),
            name => Segment::Literal(name.into()),
        };
        Ok(Self { text: text.into(), segments: names.into_iter().map(segment).collect() })
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Pattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let dotless = format!("[A-Za-z0-9{}]", MARKS.replace('.', ""));
        let any = format!("[A-Za-z0-9{MARKS}]");
        schemars::json_schema!({
            "description": "A path pattern, relative to the API version. `*` matches any number of characters within a \
                            segment; the segment `**` matches any number of segments.",
            "type": "string",
            // A name other than `.` and `..`, without look-ahead, which Helm's validator lacks.
            "pattern": format!(
                "^({}|{any}*[*]{any}*)(/({dotless}{any}*|[.]{dotless}{any}*|[.][.]{any}+))*$",
                TOPS.join("|")
            ),
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A name with `*`, which matches any number of characters, including none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    first: Box<str>,
    middle: Box<[Box<str>]>,
    last: Box<str>,
}

impl Glob {
    pub(super) fn new(text: &str) -> Self {
        let (first, rest) = text.split_once('*').unwrap_or((text, ""));
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|piece| !piece.is_empty()).map(Box::from).collect();
        Self { first: first.into(), middle, last: last.into() }
    }

    /// Whether this is `*`, which matches every name.
    pub(super) fn is_any(&self) -> bool {
        self.first.is_empty() && self.middle.is_empty() && self.last.is_empty()
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let (first, last) = (self.first.as_bytes(), self.last.as_bytes());
        if name.len() < first.len() + last.len() {
            return false;
        }
        let (begin, rest) = name.split_at(first.len());
        let (mut rest, end) = rest.split_at(rest.len() - last.len());
        if !same(begin, first) || !same(end, last) {
            return false;
        }
        self.middle.iter().all(|piece| match memmem::find(rest, piece.as_bytes()) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        })
    }

    /// The glob for the lenient reading. Pieces of hyphens and underscores are dropped.
    pub(super) fn folded(&self) -> Self {
        let middle = self.middle.iter().map(|piece| folded(piece)).filter(|piece| !piece.is_empty()).collect();
        Self { first: folded(&self.first), middle, last: folded(&self.last) }
    }
}

/// Compares byte by byte. Most names differ in the first byte, so calling `memcmp` costs more.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_matches_any_characters_within_a_name() {
        for (glob, name, matches) in [
            ("*", "anything", true),
            ("windows-*", "windows-startup-script-ps1", true),
            ("windows-*", "windows", false),
            ("*-psm1", "common-psm1", true),
            ("*-psm1", "psm1", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(Glob::new(glob).matches(name.as_bytes()), matches, "{glob} on {name}");
        }
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        let error = |text: &str| text.parse::<Pattern>().expect_err("invalid");
        assert!(matches!(error("/instance/id"), PatternError::EmptySegment(_)));
        assert!(matches!(error("instance/"), PatternError::EmptySegment(_)));
        assert!(matches!(error(""), PatternError::EmptySegment(_)));
        assert!(matches!(error("attributes/kube-env"), PatternError::Top(_)));
        assert!(matches!(error("computeMetadata/v1/instance/id"), PatternError::Top(_)));
        assert_eq!(error("instance/a;b"), PatternError::Foreign("instance/a;b".into(), ';'));
        assert!(matches!(error("**/a/**"), PatternError::TwoDeep(_)));
    }

    #[test]
    fn a_segment_of_dots_alone_is_rejected() {
        let error = |text: &str| text.parse::<Pattern>().expect_err("invalid");
        for (text, dots) in [
            ("instance/attributes/../id", ".."),
            ("instance/./id", "."),
            ("instance/..", ".."),
            ("**/.", "."),
            ("../instance/id", ".."),
            ("./instance/id", "."),
        ] {
            assert_eq!(error(text), PatternError::Dots(text.into(), dots.into()), "{text}");
        }
        for text in ["instance/...", "instance/.a", "instance/..a", "instance/a.", "instance/.*", "instance/a..b"] {
            assert!(text.parse::<Pattern>().is_ok(), "{text}");
        }
    }

    #[test]
    fn patterns_that_name_one_account_are_detected() {
        let names = |text: &str| text.parse::<Pattern>().expect("a pattern").names_an_account();
        for text in [
            "instance/service-accounts/default/token",
            "instance/service-accounts/a@b.c",
            "instance/serviceAccounts/default/token",
            "*/service-accounts/default/token",
            "instance/*/default/token",
            "instance/service-accounts/def*/token",
            "instance/service-accounts/*@b.c/**",
            "**/default/identity",
            "instance/**/*@b.c/token",
        ] {
            assert!(names(text), "{text}");
        }
        for text in [
            "instance/service-accounts",
            "instance/service-accounts/*/token",
            "instance/service-accounts/**",
            "instance/attributes/default",
            "instance/*/*/identity",
            "instance/*/windows-keys",
            "instance/*-*/windows-keys",
            "**/identity",
            "project/**/default",
            "oslogin/users/a@b.c",
        ] {
            assert!(!names(text), "{text}");
        }
    }
}
