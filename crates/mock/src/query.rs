//! [`Query`]: a request's parameters as the emulator parsed them, more leniently than the proxy.

/// Decoded parameters in the order sent. The first of a name counts.
///
/// `;` is a separator like `&`, as in Python's parsers at the time of the emulator. A flag without a value is
/// on: Google's k8s-metadata-proxy once had to close a hole opened by `?recursive`. Both readings reveal more.
#[derive(Debug)]
pub(super) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses the text after the `?`. Invalid escapes are kept.
    pub(super) fn parse(text: &str) -> Self {
        let text = text.replace(';', "&");
        Self { pairs: form_urlencoded::parse(text.as_bytes()).into_owned().collect() }
    }

    /// A parameter's value, or an empty string.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether a flag is on: `true`, `on`, `yes`, `1`, in any case, or without a value.
    pub(super) fn flag(&self, key: &str) -> bool {
        const ON: [&str; 5] = ["true", "on", "yes", "1", ""];
        self.value(key).is_some_and(|value| ON.iter().any(|on| value.eq_ignore_ascii_case(on)))
    }
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
}
