//! [`MetadataPath`]: the request path, decoded and normalised once.
//!
//! The real server does not decode paths and has no dot segments; other servers and proxies do. Paths that
//! two servers could read differently are refused here, so that no later rule has to consider them. The
//! result is ASCII without escapes, empty segments or dot segments, and is what the upstream receives.

use std::fmt;

use http::uri::PathAndQuery;

use super::CommonPath;

/// A normalised path: absolute, ASCII, one `/` between segments, no escapes, no dot segments.
///
/// A trailing slash is kept, because it is part of the name: the server answers a directory without one with a
/// redirect, and a leaf with one with 404.
#[derive(Clone)]
pub struct MetadataPath(Text);

/// Most paths arrive canonical. They share the request's bytes, so parsing does not allocate.
#[derive(Clone)]
enum Text {
    /// Always used for common paths: these are never stored as text.
    Common(CommonPath),
    AsSent(PathAndQuery),
    Rebuilt(Box<str>),
}

/// Reason why a path was refused. A refused path never reaches the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// `%2F` or `%5C`: a separator for some servers, an ordinary character for others.
    #[error("it hides a `/` or `\\` behind a percent-escape")]
    EncodedSeparator,
    /// A `\`, which some servers treat as `/`.
    #[error("it contains a backslash")]
    Backslash,
    /// A control character such as NUL, CR or LF, escaped or not.
    #[error("it contains a control character")]
    Control,
    /// `%25`: a second layer of encoding, which a later server might decode.
    #[error("it is percent-encoded more than once")]
    EncodedTwice,
    /// A `..` at the root.
    #[error("its `..` climbs above the root")]
    ClimbsAboveRoot,
    /// A `%` that is not followed by two hexadecimal digits.
    #[error("it has a `%` that is not followed by two hexadecimal digits")]
    BrokenEscape,
    /// A percent-encoded letter, digit or one of `-._~`. The real server does not decode paths, so the name does not
    /// exist there. An encoder has no reason to write it; an attempt to evade the policy does.
    #[error("it writes {0:?} as a percent-escape, which the metadata server does not decode; write it literally")]
    NeedlessEscape(char),
    /// A character that no metadata path contains. The server's names consist of letters, digits and `-_.@+!$'()*,:~`.
    #[error("it contains the byte 0x{0:02x}, which no metadata path contains")]
    Foreign(u8),
}

impl PathError {
    /// Whether two servers could read the path differently, so that the request is refused. Otherwise the path names
    /// nothing, and the response is 404.
    pub fn is_evasion(self) -> bool {
        !matches!(self, Self::NeedlessEscape(_) | Self::Foreign(_))
    }
}

impl MetadataPath {
    /// Parses the path of a request target.
    pub fn parse(target: &PathAndQuery) -> Result<Self, PathError> {
        let path = target.path();
        if let Some(common) = CommonPath::from_text(path) {
            return Ok(common.into());
        }
        if is_canonical(path.as_bytes()) {
            return Ok(Self(Text::AsSent(target.clone())));
        }
        let path = normalise(path)?;
        Ok(CommonPath::from_text(&path).map_or_else(|| Self(Text::Rebuilt(path.into_boxed_str())), Self::from))
    }

    /// A copy of the path that does not share the buffer that the request was read into.
    #[must_use]
    pub fn detached(&self) -> Self {
        match &self.0 {
            Text::AsSent(target) => Self(Text::Rebuilt(target.path().into())),
            Text::Common(_) | Text::Rebuilt(_) => self.clone(),
        }
    }

    /// The canonical text, with its leading slash.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Common(common) => common.as_str(),
            Text::AsSent(target) => target.path(),
            Text::Rebuilt(text) => text,
        }
    }

    /// The common path that this is equal to, if any.
    pub fn common(&self) -> Option<CommonPath> {
        match self.0 {
            Text::Common(common) => Some(common),
            Text::AsSent(_) | Text::Rebuilt(_) => None,
        }
    }

    /// Whether the path names a directory, that is, ends in `/`.
    pub fn is_directory(&self) -> bool {
        self.as_str().ends_with('/')
    }

    /// Whether a segment names service accounts, in any spelling: `service-accounts`, `serviceAccounts`.
    pub fn concerns_accounts(&self) -> bool {
        self.segments().any(names_accounts)
    }

    /// The segments, without the empty one after a trailing slash. The root has none.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.as_str().split('/').filter(|segment| !segment.is_empty())
    }
}

/// Whether a segment names service accounts, in any spelling.
pub fn names_accounts(segment: &str) -> bool {
    let letters = segment.bytes().filter(u8::is_ascii_alphanumeric);
    letters.map(|byte| byte.to_ascii_lowercase()).eq(*b"serviceaccounts")
}

impl From<CommonPath> for MetadataPath {
    fn from(common: CommonPath) -> Self {
        Self(Text::Common(common))
    }
}

impl fmt::Display for MetadataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for MetadataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl PartialEq for MetadataPath {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for MetadataPath {}

/// Whether a metadata path may contain the byte unescaped. `;` is not among them: a lenient server reads `name;x` as
/// `name`.
fn is_plain(byte: u8) -> bool {
    PLAIN[usize::from(byte)]
}

const PLAIN: [bool; 256] = letters_digits_and(b"-_.~@+!$'()*,:");

/// Table of the bytes that are letters, digits or one of these marks. A table, because every byte of every path is
/// looked up.
pub(super) const fn letters_digits_and(marks: &[u8]) -> [bool; 256] {
    let mut among = [false; 256];
    let mut byte = 0;
    while byte < 128_u8 {
        among[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < marks.len() {
        among[marks[at] as usize] = true;
        at += 1;
    }
    among
}

/// Letters, digits and `-._~` never need an escape (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Whether a path can be used as received: plain bytes only, no empty segments and no dot segments.
fn is_canonical(path: &[u8]) -> bool {
    let [b'/', rest @ ..] = path else { return false };
    let mut rest = rest;
    loop {
        let end = rest.iter().position(|byte| !is_plain(*byte)).unwrap_or(rest.len());
        match rest.split_at(end) {
            (b"." | b"..", _) => return false,
            (_, []) => return true,
            (b"", _) => return false,
            (_, [b'/', below @ ..]) => rest = below,
            _ => return false,
        }
    }
}

fn normalise(path: &str) -> Result<String, PathError> {
    let decoded = decode(path.as_bytes())?;
    let mut kept: Vec<&str> = Vec::new();
    let mut names_directory = true;
    for segment in decoded.split('/') {
        names_directory = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop().ok_or(PathError::ClimbsAboveRoot)?;
            }
            name => kept.push(name),
        }
    }
    let mut text = String::with_capacity(decoded.len() + 1);
    for segment in &kept {
        text.push('/');
        text.push_str(segment);
    }
    if names_directory || kept.is_empty() {
        text.push('/');
    }
    Ok(text)
}

/// Decodes the escapes that an encoder has reason to write (`%40` for `@`), and refuses all others.
fn decode(path: &[u8]) -> Result<String, PathError> {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let [byte, tail @ ..] = rest {
        let (byte, tail) = match byte {
            b'%' => unescape(tail)?,
            b'/' => (b'/', tail),
            _ => (check(*byte)?, tail),
        };
        decoded.push(char::from(byte));
        rest = tail;
    }
    Ok(decoded)
}

fn unescape(after_percent: &[u8]) -> Result<(u8, &[u8]), PathError> {
    let [high, low, tail @ ..] = after_percent else {
        return Err(PathError::BrokenEscape);
    };
    match unhex(*high, *low).ok_or(PathError::BrokenEscape)? {
        b'/' | b'\\' => Err(PathError::EncodedSeparator),
        b'%' => Err(PathError::EncodedTwice),
        byte if is_unreserved(byte) => Err(PathError::NeedlessEscape(char::from(byte))),
        byte => Ok((check(byte)?, tail)),
    }
}

fn check(byte: u8) -> Result<u8, PathError> {
    match byte {
        b'\\' => Err(PathError::Backslash),
        byte if byte.is_ascii_control() => Err(PathError::Control),
        byte if is_plain(byte) => Ok(byte),
        byte => Err(PathError::Foreign(byte)),
    }
}

/// The value of two hexadecimal digits of either case.
pub(super) fn unhex(high: u8, low: u8) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests;
