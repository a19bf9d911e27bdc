//! Header names of the metadata protocol, and the rules for them.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// `Metadata-Flavor`: proves that a client intends to call the metadata server, and identifies the server in
/// responses.
pub const METADATA_FLAVOR: HeaderName = HeaderName::from_static("metadata-flavor");
/// The only value of [`METADATA_FLAVOR`].
pub const GOOGLE: HeaderValue = HeaderValue::from_static("Google");
/// Client libraries identify themselves in this header.
pub const X_GOOG_API_CLIENT: HeaderName = HeaderName::from_static("x-goog-api-client");

/// The headers with which a client identifies itself. No other client headers are forwarded: ranges, conditions
/// and encodings would change a response unnoticed by the policy and the cache.
const FORWARDED: [HeaderName; 2] = [header::USER_AGENT, X_GOOG_API_CLIENT];

/// Maximum length of a forwarded value, in bytes. Longer values are dropped; client libraries send about 100 bytes.
const MAX_FORWARDED_VALUE_BYTES: usize = 1024;

/// The forwarded headers.
pub fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, &HeaderValue)> {
    let short = |name| Some((headers.get(&name)?, name)).filter(|(value, _)| value.len() <= MAX_FORWARDED_VALUE_BYTES);
    FORWARDED.into_iter().filter_map(short).map(|(value, name)| (name, value))
}

/// Copies the forwarded headers into their own memory.
pub fn copy_forwarded(headers: &HeaderMap) -> HeaderMap {
    let copy = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
    forwarded(headers).filter_map(|(name, value)| Some((name, copy(value)?))).collect()
}

/// The request headers that affect the verdict. Collected in one pass: a request has two to six headers, and each
/// lookup would hash a name.
#[derive(Debug, Default)]
pub struct Signs<'a> {
    /// `Host`.
    pub host: Lines<'a>,
    /// `Transfer-Encoding`.
    pub transfer_encoding: Lines<'a>,
    x_forwarded_for: Option<&'a HeaderName>,
    forwarded: Option<&'a HeaderName>,
    /// Whether each `Metadata-Flavor` is `Google`. `None` without one.
    flavor: Option<bool>,
    /// First `X-Google-Metadata-Request`, the older proof that the server still accepts.
    older_flavor: Option<&'a HeaderValue>,
}

/// Occurrences of a header that may appear once.
#[derive(Debug, Clone, Copy, Default)]
pub enum Lines<'a> {
    /// There is none.
    #[default]
    None,
    /// There is one.
    One(&'a HeaderValue),
    /// There are more.
    Several,
}

impl<'a> Signs<'a> {
    /// Reads the relevant headers.
    pub fn new(headers: &'a HeaderMap) -> Self {
        let mut signs = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "host" => signs.host.add(value),
                "transfer-encoding" => signs.transfer_encoding.add(value),
                "x-forwarded-for" => signs.x_forwarded_for = Some(name),
                "forwarded" => signs.forwarded = Some(name),
                "metadata-flavor" => signs.flavor = Some(signs.flavor.unwrap_or(true) && value == GOOGLE),
                "x-google-metadata-request" => signs.older_flavor = signs.older_flavor.or(Some(value)),
                _ => {}
            }
        }
        signs
    }

    /// Whether the client intends to call a metadata server: `Metadata-Flavor: Google`, or the older header.
    ///
    /// The value of the first is case-sensitive, as on the server; the parser has trimmed surrounding whitespace. A
    /// client may send the header more than once, but only with this value: another value was added by an intermediary.
    pub fn has_flavor(&self) -> bool {
        let is_true = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"true");
        self.flavor.unwrap_or_else(|| self.older_flavor.is_some_and(is_true))
    }

    /// The header that shows that the request was forwarded by another proxy, if any, with any value. The server
    /// refuses such requests, because they come from SSRF and not from pods.
    pub fn forwarded_by(&self) -> Option<HeaderName> {
        self.x_forwarded_for.or(self.forwarded).cloned()
    }
}

impl<'a> Lines<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = if let Self::None = self { Self::One(value) } else { Self::Several };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn appended(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn only_the_right_flavor_is_accepted() {
        assert!(Signs::new(&headers(&[("metadata-flavor", "Google")])).has_flavor());
        assert!(!Signs::new(&headers(&[])).has_flavor());
        for (value, is_right) in [("True", true), ("true", true), ("1", false), ("", false)] {
            let older = headers(&[("x-google-metadata-request", value)]);
            assert_eq!(Signs::new(&older).has_flavor(), is_right, "{value:?}");
        }
        for value in ["google", "Google, Google", "Not Google", ""] {
            assert!(!Signs::new(&headers(&[("metadata-flavor", value)])).has_flavor(), "{value:?}");
        }
    }

    #[test]
    fn a_repeated_flavor_is_accepted_only_with_the_same_value() {
        for (second, is_right) in [("Google", true), ("evil", false), ("google", false), ("", false)] {
            for values in [["Google", second], [second, "Google"]] {
                let lines = values.map(|value| ("metadata-flavor", value));
                assert_eq!(Signs::new(&appended(&lines)).has_flavor(), is_right, "{values:?}");
            }
        }
        assert!(
            !Signs::new(&headers(&[("metadata-flavor", "evil"), ("x-google-metadata-request", "True")])).has_flavor()
        );
    }

    #[test]
    fn an_empty_forwarded_header_counts() {
        let forwarded_by = |lines| Signs::new(&headers(lines)).forwarded_by().map(|name| name.to_string());
        assert_eq!(forwarded_by(&[("x-forwarded-for", "")]).as_deref(), Some("x-forwarded-for"));
        assert_eq!(forwarded_by(&[("forwarded", "for=1")]).as_deref(), Some("forwarded"));
        assert_eq!(forwarded_by(&[("via", "1.1 x"), ("x-real-ip", "1.2.3.4")]), None);
    }
}
