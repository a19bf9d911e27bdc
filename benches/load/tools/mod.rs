//! The public load tools: their arguments, and parsers of their reports.
//!
//! Only the reliable parts of a report are used: the number of requests answered, with which status, and the
//! number of failures. A report that lacks an expected value is an error, never a zero.

pub mod ab;
pub mod hey;
pub mod oha;
pub mod wrk;

use std::collections::BTreeMap;

/// The header that a metadata server requires.
pub const FLAVOR: &str = "Metadata-Flavor: Google";

/// The host name that clients use.
pub const HOST: &str = "Host: metadata.google.internal";

/// A tool's report of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Requests started.
    pub requests: u64,
    /// Requests answered successfully and completely.
    pub answered: u64,
    /// Failed requests by kind.
    pub failures: BTreeMap<String, u64>,
    /// Answered requests per second.
    pub throughput: f64,
    /// Latency in milliseconds. `None` if nothing was answered.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// A report that lacks an expected value.
#[derive(Debug, thiserror::Error)]
#[error("the report of {tool} has no {what}")]
pub struct Unreadable {
    pub tool: &'static str,
    pub what: &'static str,
}

/// The first number after a label at the start of a line, ignoring spaces.
fn after(report: &str, label: &str) -> Option<f64> {
    let rest = report.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    let number = rest.trim_start().split(|c: char| !(c.is_ascii_digit() || c == '.')).next()?;
    number.parse().ok()
}

/// Like [`after`], for counts.
fn count_after(report: &str, label: &str) -> Option<u64> {
    let rest = report.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "a load of 2^52 requests is far away")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Records failures of a kind, unless there are none.
fn note(failures: &mut BTreeMap<String, u64>, kind: &str, count: u64) {
    if count > 0 {
        *failures.entry(kind.to_owned()).or_default() += count;
    }
}
