//! [`Standing`]: the state of this node's pods according to repeated checks. Pure.

use super::judge::Verdict;
use super::report::Report;

/// Failed checks in a row after which a ready node is no longer ready, if nothing is exposed. A proxy that is replaced or
/// restarts is unreachable for seconds at most. An exposure counts at once.
const MAX_TROUBLES: u32 = 3;

/// The result of the checks so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    /// Whether this node's pods count as protected and served.
    pub(super) is_ready: bool,
    /// The verdict of the last check.
    pub(super) verdict: Verdict,
    /// A summary in one line.
    pub(super) sentence: String,
    /// Number of checks in a row that found trouble.
    troubles: u32,
}

impl Standing {
    /// The standing after one more check on the node with this name.
    pub(super) fn after(before: Option<&Self>, report: &Report, node: &str) -> Self {
        let (verdict, why) = (report.verdict(), report.reason());
        let (was_ready, troubles) = before.map_or((false, 0), |before| (before.is_ready, before.troubles));
        let troubles = if verdict == Verdict::Trouble { troubles.saturating_add(1) } else { 0 };
        let is_ready = match verdict {
            Verdict::Protected | Verdict::Allowed => true,
            Verdict::Unprotected => false,
            Verdict::Trouble => was_ready && troubles < MAX_TROUBLES,
        };
        let sentence = match (verdict, is_ready) {
            (Verdict::Protected, _) => {
                format!("protected: pods of {node} reach the metadata server only through the proxy")
            }
            (Verdict::Allowed, _) => {
                let open = report.allowed();
                format!("protected, except for what --redirect-allow leaves open to pods of {node}: {open}")
            }
            (Verdict::Unprotected, _) => format!("UNPROTECTED: pods of {node} reach what they must not: {why}"),
            (Verdict::Trouble, true) => {
                format!(
                    "ready until {MAX_TROUBLES} checks in a row fail; on {node} nothing is exposed unintentionally, but {why}"
                )
            }
            (Verdict::Trouble, false) => {
                format!(
                    "TROUBLE: nothing is exposed unintentionally to pods of {node}, but they may get no metadata: {why}"
                )
            }
        };
        Self { is_ready, verdict, sentence, troubles }
    }

    /// Logs the standing, unless it is unchanged.
    pub(super) fn log(&self, before: Option<&Self>) {
        let Self { is_ready, sentence, .. } = self;
        if before.is_some_and(|before| before.sentence == *sentence) {
            return;
        }
        match self.verdict {
            Verdict::Protected | Verdict::Allowed => tracing::info!(is_ready, "{sentence}"),
            Verdict::Trouble => tracing::warn!(is_ready, "{sentence}"),
            Verdict::Unprotected => tracing::error!(is_ready, "{sentence}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Allowed, Protected, Trouble, Unprotected};
    use super::*;
    use crate::check::Finding;

    fn report(verdict: Verdict) -> Report {
        Report::new(vec![Finding::new("proxied", verdict, "GET /", "why").advising("mend it")])
    }

    /// Whether the node is ready after each of these checks.
    fn ready_after(checks: &[Verdict]) -> Vec<bool> {
        let mut standing: Option<Standing> = None;
        let mut next = |verdict: &Verdict| {
            let after = Standing::after(standing.as_ref(), &report(*verdict), "node-1");
            let is_ready = after.is_ready;
            standing = Some(after);
            is_ready
        };
        checks.iter().map(&mut next).collect()
    }

    #[test]
    fn what_is_exposed_counts_at_once() {
        assert_eq!(ready_after(&[Protected, Unprotected, Protected]), [true, false, true]);
        assert_eq!(
            ready_after(&[Allowed, Unprotected, Allowed]),
            [true, false, true],
            "what is open on purpose does not count"
        );
    }

    #[test]
    fn trouble_counts_when_it_stays() {
        assert_eq!(ready_after(&[Protected, Trouble, Trouble, Trouble, Trouble]), [true, true, true, false, false]);
        assert_eq!(ready_after(&[Protected, Trouble, Trouble, Protected, Trouble]), [true; 5], "two in a row, twice");
    }

    #[test]
    fn trouble_makes_nothing_ready() {
        assert_eq!(ready_after(&[Trouble, Trouble, Protected]), [false, false, true]);
        assert_eq!(ready_after(&[Protected, Unprotected, Trouble]), [true, false, false]);
    }

    #[test]
    fn the_sentence_says_where_and_what_to_do() {
        let protected = Standing::after(None, &report(Protected), "node-1");
        for (before, verdict, expected) in [
            (None, Allowed, "protected, except for what --redirect-allow leaves open to pods of node-1: GET /"),
            (None, Unprotected, "UNPROTECTED: pods of node-1 reach what they must not: GET /: why. Fix: mend it"),
            (
                None,
                Trouble,
                "TROUBLE: nothing is exposed unintentionally to pods of node-1, but they may get no metadata: GET /: why. Fix: ",
            ),
            (
                Some(&protected),
                Trouble,
                "ready until 3 checks in a row fail; on node-1 nothing is exposed unintentionally, but GET /: why",
            ),
        ] {
            let sentence = Standing::after(before, &report(verdict), "node-1").sentence;
            assert!(sentence.starts_with(expected), "{sentence}");
        }
    }
}
