//! [`Query`]: the request parameters, parsed once and encoded again for the upstream.
//!
//! Only parameters of the protocol are kept, each at most once and decoded once. The upstream receives them
//! encoded again, never the client's own string, so a spelling that another parser would read as `recursive`
//! (a `;`, an escape, a control character) cannot pass unnoticed.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr_iter;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::path::unhex;

/// Characters escaped in upstream requests: all except the unreserved ones of RFC 3986 and a few that no parser treats
/// as separators in a query. So a scope (`https://www.googleapis.com/auth/...`) is sent unchanged, and a list of scopes
/// does not get longer.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b',')
    .remove(b'@')
    .remove(b'*');

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident = $key:literal),+ $(,)?) => {
        /// A query parameter that the metadata protocol knows. The order is the order on the upstream wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub enum Param { $($(#[$doc])* #[serde(rename = $key)] $name),+ }

        impl Param {
            /// All parameters, in upstream order.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Its name on the wire. Names are case-sensitive.
            pub fn key(self) -> &'static str {
                match self { $(Self::$name => $key),+ }
            }

            fn from_key(key: &str) -> Option<Self> {
                match key { $($key => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

params! {
    /// `json` or `text`, on a leaf or a recursive directory.
    Alt = "alt",
    /// The audience of an identity token; some clients send it for access tokens too.
    Audience = "audience",
    /// `on` or `iam-policy`: the token is bound to the caller's certificate.
    BindingEnforcement = "binding-enforcement",
    /// The certificate to bind a token to.
    BindCertificateFingerprint = "bindCertificateFingerprint",
    /// OS Login: the user whose access is checked.
    Email = "email",
    /// Whether `scopes` narrows the token.
    EnforceScopes = "enforce_scopes",
    /// `standard` or `full`: the format of an identity token.
    Format = "format",
    /// OS Login: a group's name.
    GroupName = "groupname",
    /// With `wait_for_change`: the etag of the value that the client has.
    LastEtag = "last_etag",
    /// `TRUE`: include the image's licenses in an identity token.
    Licenses = "licenses",
    /// OS Login: page size.
    PageSize = "pagesize",
    /// OS Login: the page to return.
    PageToken = "pagetoken",
    /// OS Login: the policy to check.
    Policy = "policy",
    /// Return a whole subtree.
    Recursive = "recursive",
    /// The legacy trees' spelling of `scopes`.
    Scope = "scope",
    /// Comma-separated OAuth scopes of an access token.
    Scopes = "scopes",
    /// The legacy trees' way to name an account.
    ServiceAccount = "service_account",
    /// With `wait_for_change`: return the current value after this many whole seconds.
    TimeoutSec = "timeout_sec",
    /// `mtls` or `alts`: how the token will be used.
    Transport = "transport",
    /// OS Login: a user's numeric ID.
    Uid = "uid",
    /// OS Login: a user's name.
    Username = "username",
    /// Respond only when the value changes.
    WaitForChange = "wait_for_change",
}

/// The parameters of a request: known ones in a fixed order, each once.
///
/// Flags are normalised: `recursive` and `wait_for_change` are either present as `true` or absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    known: Vec<(Param, Box<str>)>,
    unknown: Option<Box<str>>,
}

/// Reason why a query was refused. A refused query never reaches the upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// `;` separates parameters for some servers and not for others.
    #[error("it contains a `;`, which some servers treat as a separator; write %3B in a value")]
    Semicolon,
    /// A control character such as NUL, CR or LF, escaped or not.
    #[error("it contains a control character")]
    Control,
    /// An escape that is not two hexadecimal digits, or bytes that are not UTF-8.
    #[error("it is not properly percent-encoded UTF-8")]
    Encoding,
    /// Two values for one parameter: servers differ on which one counts.
    #[error("it gives `{}` more than once", .0.key())]
    Repeated(Param),
    /// `timeout_sec` with `wait_for_change` that is not a whole number of seconds below 2^32. It is read in one way only, so this
    /// is a client's mistake.
    #[error("its timeout_sec is not a whole number of seconds")]
    Timeout,
}

impl Query {
    /// Builds a query for a request that the proxy itself sends.
    pub fn from_params(params: impl IntoIterator<Item = (Param, Box<str>)>) -> Self {
        let mut known: Vec<_> = params.into_iter().collect();
        known.sort_unstable_by_key(|(param, _)| *param);
        Self { known, unknown: None }
    }

    /// Parses the text after the `?`. `None` is an empty query.
    pub fn parse(text: Option<&str>) -> Result<Self, QueryError> {
        let mut query = Self::default();
        let Some(text) = text else { return Ok(query) };
        if text.contains(';') {
            return Err(QueryError::Semicolon);
        }
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            query.add(pair)?;
        }
        query.known.sort_unstable_by_key(|(param, _)| *param);
        query.known.retain(|(param, value)| !param.is_flag() || !value.is_empty());
        if query.waits_for_change()
            && query.value(Param::TimeoutSec).is_some_and(|seconds| seconds.parse::<u32>().is_err())
        {
            return Err(QueryError::Timeout);
        }
        Ok(query)
    }

    /// The decoded value of a parameter.
    pub fn value(&self, param: Param) -> Option<&str> {
        self.known.iter().find(|(known, _)| *known == param).map(|(_, value)| &**value)
    }

    /// All parameters in their canonical order.
    pub fn params(&self) -> impl Iterator<Item = (Param, &str)> {
        self.known.iter().map(|(param, value)| (*param, &**value))
    }

    /// Length in bytes of the encoded query, including the `?`.
    pub fn encoded_len(&self) -> usize {
        let value_len = |value| utf8_percent_encode(value, ESCAPED).map(str::len).sum::<usize>();
        self.params().map(|(param, value)| "?".len() + param.key().len() + "=".len() + value_len(value)).sum()
    }

    /// Whether there are no parameters, known or unknown.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unknown.is_none()
    }

    /// The first unknown parameter. It is never sent upstream.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// Whether a whole subtree is requested.
    pub fn is_recursive(&self) -> bool {
        self.value(Param::Recursive).is_some()
    }

    /// Whether the response may wait for the value to change (a hanging GET).
    pub fn waits_for_change(&self) -> bool {
        self.value(Param::WaitForChange).is_some()
    }

    /// Timeout of a hanging GET, in seconds. After it, the current value is returned.
    pub fn timeout_seconds(&self) -> Option<u32> {
        self.value(Param::TimeoutSec).and_then(|seconds| seconds.parse().ok())
    }

    /// Whether the requested format is one of a tree's formats.
    pub fn is_format_of_tree(&self) -> bool {
        matches!(self.value(Param::Alt), None | Some("json" | "text"))
    }

    /// Returns the query without a parameter.
    #[must_use]
    pub fn without(mut self, param: Param) -> Self {
        self.known.retain(|(known, _)| *known != param);
        self
    }

    /// Returns the query with only the parameters for which `keep` returns `true`.
    #[must_use]
    pub fn only(mut self, keep: impl Fn(Param) -> bool) -> Self {
        self.known.retain(|(known, _)| keep(*known));
        self
    }

    fn add(&mut self, pair: &str) -> Result<(), QueryError> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decode(key)?;
        let value = decode(value)?;
        let Some(param) = Param::from_key(&key) else {
            self.unknown.get_or_insert_with(|| key.into());
            return Ok(());
        };
        if self.known.iter().any(|(known, _)| *known == param) {
            return Err(QueryError::Repeated(param));
        }
        let value = if param.is_flag() { flag(&value).into() } else { value };
        self.known.push((param, value.into()));
        Ok(())
    }
}

impl Param {
    fn is_flag(self) -> bool {
        matches!(self, Self::Recursive | Self::WaitForChange)
    }
}

/// Formats the encoded query, including the `?`, as it is sent upstream. An empty query is an empty string.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (param, value)) in self.params().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(f, "{separator}{}={}", param.key(), utf8_percent_encode(value, ESCAPED))?;
        }
        Ok(())
    }
}

/// Normalises a flag. Only explicit negatives turn it off: a bare `?recursive`, and any value that some server might
/// treat as true, turns it on. Off is the empty string, which [`Query::parse`] drops.
fn flag(value: &str) -> &'static str {
    let off = ["false", "off", "no", "0"].iter().any(|word| value.eq_ignore_ascii_case(word));
    if off { "" } else { "true" }
}

/// Decodes one layer of form encoding: `+` for a space, and percent-escapes. Most texts contain neither.
fn decode(text: &str) -> Result<Cow<'_, str>, QueryError> {
    let escapes = memchr_iter(b'%', text.as_bytes()).count();
    let decoded = if escapes == 0 && !text.contains('+') {
        Cow::Borrowed(text)
    } else {
        // The exact size, so that converting to `Box<str>` does not reallocate.
        let mut bytes = Vec::with_capacity(text.len().saturating_sub(2 * escapes));
        unescape(text, &mut bytes).ok_or(QueryError::Encoding)?;
        Cow::Owned(String::from_utf8(bytes).map_err(|_| QueryError::Encoding)?)
    };
    if has_control(&decoded) {
        return Err(QueryError::Control);
    }
    Ok(decoded)
}

/// `None` if an escape is invalid.
fn unescape(text: &str, bytes: &mut Vec<u8>) -> Option<()> {
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => unhex(rest.next()?, rest.next()?)?,
            b'+' => b' ',
            plain => plain,
        });
    }
    Some(())
}

/// Whether the text contains a control character. Nearly all text is ASCII, which needs no decoding.
fn has_control(text: &str) -> bool {
    if text.is_ascii() {
        text.bytes().fold(false, |found, byte| found | byte.is_ascii_control())
    } else {
        text.chars().any(char::is_control)
    }
}

#[cfg(test)]
mod tests;
