//! Header names of the metadata protocol, and the rules that hang on them.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// `Metadata-Flavor`: proof that a client means the metadata server, and on answers that it is one.
pub const METADATA_FLAVOR: HeaderName = HeaderName::from_static("metadata-flavor");
/// The only value of [`METADATA_FLAVOR`].
pub const GOOGLE: HeaderValue = HeaderValue::from_static("Google");
/// `X-Google-Metadata-Request: True`, the older proof that the server still takes.
pub const X_GOOGLE_METADATA_REQUEST: HeaderName = HeaderName::from_static("x-google-metadata-request");
/// Marks a request that came through another proxy; the server refuses it, since pods do not send it and SSRF does.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Client libraries name themselves here.
pub const X_GOOG_API_CLIENT: HeaderName = HeaderName::from_static("x-goog-api-client");

/// Headers that end with the hop they were sent on (RFC 9110, section 7.6.1, and the two of older practice).
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Whether a request carries the proof: exactly one `Metadata-Flavor: Google`, or the older header.
///
/// The value is case-sensitive, as on the server; blanks round it were trimmed when it was read. Two lines are no proof,
/// even two good ones: some intermediary has been adding.
pub fn has_flavor(headers: &HeaderMap) -> bool {
    let mut flavors = headers.get_all(METADATA_FLAVOR).iter();
    match (flavors.next(), flavors.next()) {
        (Some(value), None) => value == GOOGLE,
        (Some(_), Some(_)) => false,
        (None, _) => headers.get(X_GOOGLE_METADATA_REQUEST).is_some_and(|value| value == "True"),
    }
}

/// The header that shows a request came through another proxy, if one does. Presence decides, not the value.
pub fn forwarded_by(headers: &HeaderMap) -> Option<HeaderName> {
    [X_FORWARDED_FOR, header::FORWARDED].into_iter().find(|name| headers.contains_key(name))
}

/// Takes off what belongs to the hop, what the `Connection` header names included.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
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
    fn one_exact_flavor_is_proof() {
        assert!(has_flavor(&headers(&[("metadata-flavor", "Google")])));
        assert!(has_flavor(&headers(&[("x-google-metadata-request", "True")])));
        assert!(!has_flavor(&headers(&[])));
        for value in ["google", "Google, Google", "Not Google", ""] {
            assert!(!has_flavor(&headers(&[("metadata-flavor", value)])), "{value:?}");
        }
    }

    #[test]
    fn two_lines_are_no_proof() {
        assert!(!has_flavor(&appended(&[("metadata-flavor", "Google"), ("metadata-flavor", "evil")])));
        assert!(!has_flavor(&appended(&[("metadata-flavor", "Google"), ("metadata-flavor", "Google")])));
        assert!(!has_flavor(&headers(&[("metadata-flavor", "evil"), ("x-google-metadata-request", "True")])));
    }

    #[test]
    fn an_empty_forwarded_header_counts() {
        assert_eq!(forwarded_by(&headers(&[("x-forwarded-for", "")])), Some(X_FORWARDED_FOR));
        assert_eq!(forwarded_by(&headers(&[("forwarded", "for=1")])), Some(header::FORWARDED));
        assert_eq!(forwarded_by(&headers(&[("via", "1.1 x"), ("x-real-ip", "1.2.3.4")])), None);
    }

    #[test]
    fn hop_by_hop_headers_go_and_end_to_end_headers_stay() {
        let mut map = appended(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("etag", "0123456789abcdef"),
        ]);
        strip_hop_by_hop(&mut map);
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["etag"]);
    }
}
