//! Judges rights of the credential that the proxy does not need.

use crate::doctor::report::{Finding, Step, Verdict};
use identity::cluster::RequestError;
use identity::cluster::rights::{Report, Severity};

/// The rights that are too wide. Missing rights show up in the steps that need them. `None` if the API server did not
/// answer in time.
pub(in crate::doctor) fn found(report: Option<Result<&Report, &RequestError>>) -> Vec<Finding> {
    let tried = Step::Rights.trying("rights of the credential");
    let report = match report {
        Some(Ok(report)) => report,
        Some(Err(error)) => return vec![tried.not_tried(error.to_string())],
        None => {
            let seen = "the API server did not answer in time, so it is not known whether they are too wide";
            return vec![tried.warning(seen)];
        }
    };
    let shown = |severity| match severity {
        Severity::Dangerous => Some(Verdict::Exposed),
        Severity::Notice => Some(Verdict::Warning),
        Severity::Missing | Severity::Unknown => None,
    };
    let wide: Vec<Finding> = report
        .findings
        .iter()
        .filter_map(|finding| Some(tried.found(shown(finding.severity())?, finding.to_string())))
        .collect();
    if wide.is_empty() {
        return vec![tried.ok(format!("none of the checked rights of {} is too wide", report.user))];
    }
    wide
}
