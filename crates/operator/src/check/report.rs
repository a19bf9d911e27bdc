//! [`Report`]: all findings, as text or JSON.

use std::fmt;

use serde::{Serialize, Serializer};

use super::judge::{Finding, Verdict};
use crate::finding;

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

    /// The observations behind the verdict and the advice, in one line. Without times, so that it changes only with results.
    pub(super) fn reason(&self) -> String {
        let bad = || self.findings.iter().filter(|finding| finding.verdict == self.verdict && finding.advice.is_some());
        let seen: Vec<String> = bad().map(|finding| format!("{}: {}", finding.tried, finding.seen)).collect();
        // Earlier findings are the causes of later ones.
        let fix = bad().find_map(|finding| finding.advice.as_ref()).map(|advice| format!(". Fix: {advice}"));
        seen.join("; ") + &fix.unwrap_or_default()
    }

    /// The routes that are exposed on purpose, in one line.
    pub(super) fn allowed(&self) -> String {
        let allowed = self.findings.iter().filter(|finding| finding.verdict == Verdict::Allowed);
        allowed.map(|finding| finding.tried.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// 0 if protected, except for intended routes; 1 if unprotected; 2 if in trouble.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Protected | Verdict::Allowed => 0,
            Verdict::Unprotected => 1,
            Verdict::Trouble => 2,
        }
    }

    /// All findings, without the summary, which applies only to the full set of checks.
    pub fn findings_as_text(&self) -> String {
        self.findings.iter().map(ToString::to_string).collect()
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

impl finding::Verdict for Verdict {
    fn mark(self) -> &'static str {
        match self {
            Self::Protected => "ok      ",
            Self::Allowed => "allowed ",
            Self::Trouble => "TROUBLE ",
            Self::Unprotected => "OPEN    ",
        }
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            check: &'static str,
            verdict: Verdict,
            tried: &'a str,
            seen: &'a str,
            #[serde(rename = "do")]
            advice: Option<&'a str>,
            milliseconds: Option<u64>,
        }
        let Self { topic: check, verdict, tried, seen, advice, took, .. } = self;
        let milliseconds = took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let (check, verdict, advice) = (*check, *verdict, advice.as_deref());
        Fields { check, verdict, tried, seen, advice, milliseconds }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(verdict: Verdict, tried: &str, advice: Option<&'static str>) -> Finding {
        Finding { advice: advice.map(str::to_owned), ..Finding::new("proxied", verdict, tried, "seen") }
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

    #[test]
    fn scripts_get_every_field_of_a_finding() {
        let slow = Finding { took: Some(std::time::Duration::from_millis(7)), ..finding(Verdict::Allowed, "t", None) };
        let report = Report::new(vec![slow, finding(Verdict::Unprotected, "u", Some("close"))]);
        let json = r#"{"verdict":"unprotected","findings":[
            {"check":"proxied","verdict":"allowed","tried":"t","seen":"seen","do":null,"milliseconds":7},
            {"check":"proxied","verdict":"unprotected","tried":"u","seen":"seen","do":"close","milliseconds":null}]}"#;
        assert_eq!(serde_json::to_string(&report).expect("JSON"), json.replace("\n            ", ""));
    }
}
