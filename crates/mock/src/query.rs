//! [`Query`]: a request's parameters as the emulator parsed them, more leniently than the proxy.

use std::borrow::Cow;

/// Decoded parameters in the order sent. The first of a name counts.
///
/// `;` is a separator like `&`, as in Python's parsers at the time of the emulator. A flag without a value is
/// on: Google's k8s-metadata-proxy once had to close a hole opened by `?recursive`. Both readings reveal more.
#[derive(Debug)]
pub(super) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Parses the text after the `?`.
    pub(super) fn parse(text: &'a str) -> Self {
        let pairs = text.split(['&', ';']).filter(|pair| !pair.is_empty());
        let split = |pair: &'a str| pair.split_once('=').unwrap_or((pair, ""));
        Self { pairs: pairs.map(split).map(|(key, value)| (decode(key), decode(value))).collect() }
    }

    /// A parameter's value, or an empty string.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Whether a flag is on: `true`, `on`, `yes`, `1`, in any case, or without a value.
    pub(super) fn flag(&self, key: &str) -> bool {
        const ON: [&str; 5] = ["true", "on", "yes", "1", ""];
        self.value(key).is_some_and(|value| ON.iter().any(|on| value.eq_ignore_ascii_case(on)))
    }
}

/// Decodes form encoding. Invalid escapes are kept.
fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.first_chunk::<2>().filter(|_| *first == b'%').and_then(|digits| byte(*digits));
        decoded.push(escaped.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

fn byte(digits: [u8; 2]) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(digits[0])? << 4 | digit(digits[1])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_once() {
        let query = Query::parse("scopes=https%3A%2F%2Fa+b&x=%252F&%72ecursive=1&y=%zz%4&é=%c3%a9");
        assert_eq!(query.value("scopes"), Some("https://a b"));
        assert_eq!(query.value("x"), Some("%2F"));
        assert_eq!(query.value("recursive"), Some("1"));
        assert_eq!(query.value("y"), Some("%zz%4"));
        assert_eq!(query.value("é"), Some("é"));
        assert_eq!(query.value("z"), None);
    }

    #[test]
    fn flags_have_many_spellings() {
        for on in ["recursive", "recursive=", "recursive=True", "recursive=ON", "recursive=yes", "a;recursive=1"] {
            assert!(Query::parse(on).flag("recursive"), "{on}");
        }
        for off in ["", "recursive=false", "recursive=0", "recursive=maybe", "Recursive=true"] {
            assert!(!Query::parse(off).flag("recursive"), "{off}");
        }
    }
}
