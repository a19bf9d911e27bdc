//! [`TraceParent`]: the trace that a request belongs to, as its client says (W3C Trace Context, level 1 and later).

use std::str::FromStr;

use http::HeaderMap;
use opentelemetry::trace::TraceState;
use opentelemetry::{SpanId, TraceId};

/// Longest `tracestate` that is kept, in bytes: as much as everybody has to keep (W3C Trace Context, section 3.3.1.5).
const LONGEST_STATE: usize = 512;

/// A trace and the span in it that asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TraceParent {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    /// Whether whoever asked records its part.
    pub(super) is_sampled: bool,
}

/// It is not one in a form that everybody reads alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl TraceParent {
    /// What the headers say; nothing where they say it wrongly, or twice.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        value.to_str().ok()?.parse().ok()
    }
}

impl FromStr for TraceParent {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut fields = text.splitn(5, '-');
        let mut field = |digits| fields.next().and_then(|field| hex(field, digits)).ok_or(Malformed);
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_known_form = match version {
            0 => fields.next().is_none(),
            // A later version begins like this one, and may go on.
            1..0xff => true,
            _ => false,
        };
        let span = u64::try_from(span).map_err(|_| Malformed)?;
        if !is_known_form || trace == 0 || span == 0 {
            return Err(Malformed);
        }
        Ok(Self { trace_id: trace.into(), span_id: span.into(), is_sampled: flags & 1 == 1 })
    }
}

/// So many digits, and lower case, or it is not a field.
fn hex(field: &str, digits: usize) -> Option<u128> {
    let is_hex = field.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && field.len() == digits).then(|| u128::from_str_radix(field, 16).ok()).flatten()
}

/// `tracestate`, which others wrote for others; empty where it is none.
pub(super) fn state(headers: &HeaderMap) -> String {
    let lines: Option<Vec<&str>> = headers.get_all("tracestate").iter().map(|line| line.to_str().ok()).collect();
    let state = lines.unwrap_or_default().join(",");
    let is_kept = state.len() <= LONGEST_STATE;
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
    fn a_valid_parent_is_read() {
        for (version_and_flags, is_sampled) in [("00-01", true), ("00-00", false), ("00-03", true), ("cc-02", false)] {
            let (version, flags) = version_and_flags.split_once('-').expect("two");
            let parent: TraceParent = format!("{version}-{TRACE}-{SPAN}-{flags}").parse().expect("valid");
            assert_eq!((parent.trace_id.to_string(), parent.span_id.to_string()), (TRACE.into(), SPAN.into()));
            assert_eq!(parent.is_sampled, is_sampled, "{version_and_flags}");
        }
        assert!(format!("01-{TRACE}-{SPAN}-01-more").parse::<TraceParent>().is_ok(), "a later version may go on");
    }

    #[test]
    fn what_is_malformed_is_none() {
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
            assert_eq!(text.parse::<TraceParent>(), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn two_parents_are_none() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        assert!(TraceParent::of(&headers(&[("traceparent", &parent)])).is_some());
        assert_eq!(TraceParent::of(&headers(&[("traceparent", &parent), ("traceparent", &parent)])), None);
        assert_eq!(TraceParent::of(&HeaderMap::new()), None);
    }

    #[test]
    fn the_state_is_kept_whole_or_not_at_all() {
        assert_eq!(state(&headers(&[("tracestate", "a=1"), ("tracestate", "b=2")])), "a=1,b=2");
        let half = format!("={}", "x".repeat(LONGEST_STATE / 2 - 3));
        let whole = format!("a{half},b{half}");
        assert_eq!(state(&headers(&[("tracestate", &whole)])), whole);
        for line in ["nonsense", &format!("{whole},c=3")] {
            assert_eq!(state(&headers(&[("tracestate", line)])), "");
        }
    }
}
