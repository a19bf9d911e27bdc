//! `oha`: a constant rate. Latencies are measured from when a request was due, not from when it was sent.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{FLAVOR, Outcome, Unreadable, note};

/// Number of connections that requests are spread over. They are opened on demand.
const CONNECTIONS: u32 = 200;

pub fn args(url: &str, rate: u32, seconds: u64) -> Vec<String> {
    let (requests, rate) = ((u64::from(rate) * seconds).to_string(), rate.to_string());
    let connections = CONNECTIONS.to_string();
    let constant = ["-q", &rate, "--latency-correction", "-n", &requests, "-c", &connections];
    let rest = ["--no-tui", "--output-format", "json", "-t", "30s", "-H", FLAVOR, url];
    constant.into_iter().chain(rest).map(str::to_owned).collect()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    summary: Summary,
    latency_percentiles: Percentiles,
    status_code_distribution: BTreeMap<String, u64>,
    error_distribution: BTreeMap<String, u64>,
}

/// Seconds.
#[derive(Debug, Deserialize)]
struct Summary {
    total: f64,
    slowest: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Percentiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "a load of 2^52 requests is far away")]
pub fn read(report: &str) -> Result<Outcome, Unreadable> {
    let report: Report = serde_json::from_str(report).map_err(|_| Unreadable { tool: "oha", what: "readable JSON" })?;
    let mut outcome = Outcome::default();
    for (status, count) in report.status_code_distribution {
        outcome.requests += count;
        if status == "200" {
            outcome.answered += count;
        } else {
            note(&mut outcome.failures, &format!("status {status}"), count);
        }
    }
    for (kind, count) in report.error_distribution {
        outcome.requests += count;
        note(&mut outcome.failures, &kind, count);
    }
    outcome.throughput = outcome.answered as f64 / report.summary.total;
    if outcome.answered > 0 {
        let milliseconds = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1000.0);
        outcome.p50 = milliseconds(report.latency_percentiles.p50);
        outcome.p99 = milliseconds(report.latency_percentiles.p99);
        outcome.max = milliseconds(report.summary.slowest);
    }
    Ok(outcome)
}
