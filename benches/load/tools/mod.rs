//! The public load tools: what each is told, and what its report says.
//!
//! A report is believed only as far as it can be: how many requests were answered, with what, and how many were not. A
//! report that lacks what it should say is an error, never a zero.

pub mod ab;
pub mod hey;
pub mod oha;
pub mod wrk;

use std::collections::BTreeMap;

/// The header without which a metadata server answers nothing.
pub const FLAVOR: &str = "Metadata-Flavor: Google";

/// By which name clients ask.
pub const HOST: &str = "Host: metadata.google.internal";

/// What a tool reports of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Requests that were begun.
    pub requests: u64,
    /// Of these, those answered with success, whole.
    pub answered: u64,
    /// The others, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Answered requests a second.
    pub throughput: f64,
    /// Milliseconds; nothing where nothing was answered.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// A report that does not say what it should.
#[derive(Debug, thiserror::Error)]
#[error("the report of {tool} has no {what}")]
pub struct Unreadable {
    pub tool: &'static str,
    pub what: &'static str,
}

/// The first number after a label at the start of a line, spaces aside.
fn after(report: &str, label: &str) -> Option<f64> {
    let rest = report.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    let number = rest.trim_start().split(|c: char| !(c.is_ascii_digit() || c == '.')).next()?;
    number.parse().ok()
}

/// The same for counts.
fn count_after(report: &str, label: &str) -> Option<u64> {
    let rest = report.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "a load of 2^52 requests is far away")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Notes failures of a kind, unless there are none.
fn note(failures: &mut BTreeMap<String, u64>, kind: &str, count: u64) {
    if count > 0 {
        *failures.entry(kind.to_owned()).or_default() += count;
    }
}
