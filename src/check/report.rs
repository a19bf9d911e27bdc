//! [`Report`]: all findings, as text or JSON.

use std::fmt;

use serde::Serialize;
use strum::{Display, EnumString, VariantNames};

use super::judge::{Finding, Verdict};

/// Format of a report. The flag has the variants' names in lowercase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// Lines of text.
    #[default]
    Text,
    /// JSON, for scripts.
    Json,
}

/// All findings, and the worst verdict.
#[derive(Debug, Serialize)]
pub struct Report {
    verdict: Verdict,
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(findings: Vec<Finding>) -> Self {
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Trouble);
        Self { verdict, findings }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What the verdict is for, in one line, and what to do. Without times, so that it is the same as long as nothing changes.
    pub(super) fn reason(&self) -> String {
        let bad = || self.findings.iter().filter(|finding| finding.verdict == self.verdict && finding.advice.is_some());
        let seen: Vec<String> = bad().map(|finding| format!("{}: {}", finding.tried, finding.seen)).collect();
        // What is first is the cause of what follows.
        let fix = bad().find_map(|finding| finding.advice).map(|advice| format!(". Fix: {advice}"));
        seen.join("; ") + &fix.unwrap_or_default()
    }

    /// What is exposed on purpose, in one line.
    pub(super) fn allowed(&self) -> String {
        let allowed = self.findings.iter().filter(|finding| finding.verdict == Verdict::Allowed);
        allowed.map(|finding| finding.tried.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// 0 if protected but for what is exposed on purpose, 1 if unprotected, 2 if in trouble.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Protected | Verdict::Allowed => 0,
            Verdict::Unprotected => 1,
            Verdict::Trouble => 2,
        }
    }

    /// All findings, without the summary, which tells only of all checks.
    pub fn findings_as_text(&self) -> String {
        self.findings.iter().map(ToString::to_string).collect()
    }

    /// Renders the report, with a trailing newline.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.to_string(),
            Format::Json => serde_json::to_string_pretty(self).expect("text and numbers are always JSON") + "\n",
        }
    }
}

/// The findings, and a summary.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.findings_as_text())?;
        f.write_str(match self.verdict {
            Verdict::Protected => "Protected: requests reach the metadata server only through the proxy.\n",
            Verdict::Allowed => "Protected, except for what --redirect-allow leaves open.\n",
            Verdict::Trouble => "Trouble: nothing is marked OPEN, but some checks failed.\n",
            Verdict::Unprotected => "Unprotected: everything marked OPEN can be reached from here.\n",
        })
    }
}

/// One line, and one more for a fix.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.verdict {
            Verdict::Protected => "ok      ",
            Verdict::Allowed => "allowed ",
            Verdict::Trouble => "TROUBLE ",
            Verdict::Unprotected => "OPEN    ",
        };
        write!(f, "{mark}{}: {}", self.tried, self.seen)?;
        if let Some(milliseconds) = self.milliseconds {
            write!(f, " ({milliseconds} ms)")?;
        }
        writeln!(f)?;
        if let Some(advice) = self.advice {
            writeln!(f, "        fix: {advice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(verdict: Verdict, tried: &str, advice: Option<&'static str>) -> Finding {
        let seen = "seen".to_owned();
        Finding { check: "proxied", verdict, tried: tried.to_owned(), seen, advice, milliseconds: Some(3) }
    }

    #[test]
    fn the_reason_is_one_line_about_what_is_worst() {
        let report = Report::new(vec![
            finding(Verdict::Trouble, "t", Some("mend")),
            finding(Verdict::Unprotected, "u1", Some("close")),
            finding(Verdict::Protected, "p", None),
            finding(Verdict::Unprotected, "u2", Some("lock")),
        ]);
        assert_eq!(report.reason(), "u1: seen; u2: seen. Fix: close");
        assert_eq!(Report::new(vec![finding(Verdict::Protected, "p", None)]).reason(), "");
    }

    #[test]
    fn what_is_exposed_on_purpose_is_no_failure_and_named() {
        let allowed = |tried| finding(Verdict::Allowed, tried, None);
        let report = Report::new(vec![finding(Verdict::Protected, "p", None), allowed("a"), allowed("b")]);
        assert_eq!((report.exit_code(), report.allowed().as_str()), (0, "a; b"));
        assert!(report.to_string().ends_with("except for what --redirect-allow leaves open.\n"), "{report}");
    }
}
