//! [`TraceParent`]: the trace that a request belongs to, from its headers (W3C Trace Context, level 1 and later).

use std::str::FromStr;

use http::HeaderMap;
use opentelemetry::trace::TraceState;
use opentelemetry::{SpanId, TraceId};

/// Maximum `tracestate`, in bytes: the size that every implementation must propagate (W3C Trace Context, section
/// 3.3.1.5).
const MAX_STATE_BYTES: usize = 512;

/// A trace, and the span of the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TraceParent {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    /// Whether the sender sampled the trace.
    pub(super) is_sampled: bool,
}

/// The text is not a valid `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidTraceParent;

impl TraceParent {
    /// Parses the `traceparent` header. Returns `None` if it is missing, invalid, or present twice.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        value.to_str().ok()?.parse().ok()
    }
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        let mut fields = text.splitn(5, '-');
        let mut field = |digits| fields.next().and_then(|field| hex(field, digits)).ok_or(InvalidTraceParent);
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_known_form = match version {
            0 => fields.next().is_none(),
            // A later version begins like version 0, and may have more fields.
            1..0xff => true,
            _ => false,
        };
        let span = u64::try_from(span).map_err(|_| InvalidTraceParent)?;
        if !is_known_form || trace == 0 || span == 0 {
            return Err(InvalidTraceParent);
        }
        Ok(Self { trace_id: trace.into(), span_id: span.into(), is_sampled: flags & 1 == 1 })
    }
}

/// Parses a field of this many lowercase hexadecimal digits.
fn hex(field: &str, digits: usize) -> Option<u128> {
    let is_hex = field.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && field.len() == digits).then(|| u128::from_str_radix(field, 16).ok()).flatten()
}

/// The `tracestate` header, which is passed on unchanged. Empty if it is missing, invalid or too long.
pub(super) fn state(headers: &HeaderMap) -> String {
    let lines: Option<Vec<&str>> = headers.get_all("tracestate").iter().map(|line| line.to_str().ok()).collect();
    let state = lines.unwrap_or_default().join(",");
    let is_kept = state.len() <= MAX_STATE_BYTES;
    let state = is_kept.then(|| TraceState::from_str(&state).ok()).flatten();
    state.unwrap_or_default().header()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn a_valid_parent_is_parsed() {
        for (version_and_flags, is_sampled) in [("00-01", true), ("00-00", false), ("00-03", true), ("cc-02", false)] {
            let (version, flags) = version_and_flags.split_once('-').expect("two");
            let parent: TraceParent = format!("{version}-{TRACE}-{SPAN}-{flags}").parse().expect("valid");
            assert_eq!((parent.trace_id.to_string(), parent.span_id.to_string()), (TRACE.into(), SPAN.into()));
            assert_eq!(parent.is_sampled, is_sampled, "{version_and_flags}");
        }
        assert!(
            format!("01-{TRACE}-{SPAN}-01-more").parse::<TraceParent>().is_ok(),
            "a later version may have more fields"
        );
    }

    #[test]
    fn an_invalid_parent_is_rejected() {
        for text in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(text.parse::<TraceParent>(), Err(InvalidTraceParent), "{text:?}");
        }
    }

    #[test]
    fn two_parents_are_rejected() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        assert!(TraceParent::from_headers(&headers(&[("traceparent", &parent)])).is_some());
        assert_eq!(TraceParent::from_headers(&headers(&[("traceparent", &parent), ("traceparent", &parent)])), None);
        assert_eq!(TraceParent::from_headers(&HeaderMap::new()), None);
    }

    #[test]
    fn the_state_is_kept_whole_or_dropped() {
        assert_eq!(state(&headers(&[("tracestate", "a=1"), ("tracestate", "b=2")])), "a=1,b=2");
        let half = format!("={}", "x".repeat(MAX_STATE_BYTES / 2 - 3));
        let whole = format!("a{half},b{half}");
        assert_eq!(state(&headers(&[("tracestate", &whole)])), whole);
        for line in ["nonsense", &format!("{whole},c=3")] {
            assert_eq!(state(&headers(&[("tracestate", line)])), "");
        }
    }
}
