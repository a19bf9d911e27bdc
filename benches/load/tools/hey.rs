//! `hey`: a closed loop over kept-alive connections.

use std::collections::BTreeMap;

use super::{FLAVOR, Outcome, Unreadable, after, note, ratio};

pub fn args(url: &str, requests: u64, concurrency: u32) -> Vec<String> {
    let (requests, concurrency) = (requests.to_string(), concurrency.to_string());
    ["-n", &requests, "-c", &concurrency, "-t", "30", "-H", FLAVOR, url].map(str::to_owned).into()
}

pub fn read(report: &str) -> Result<Outcome, Unreadable> {
    let missing = |what| Unreadable { tool: "hey", what };
    let rate = after(report, "Requests/sec:").ok_or(missing("rate"))?;
    let mut outcome = Outcome::default();
    for (count, status) in statuses(report) {
        outcome.requests += count;
        if status == "200" {
            outcome.answered += count;
        } else {
            note(&mut outcome.failures, &format!("status {status}"), count);
        }
    }
    for (count, kind) in errors(report) {
        outcome.requests += count;
        note(&mut outcome.failures, kind, count);
    }
    if outcome.requests == 0 {
        return Err(missing("status code distribution"));
    }
    outcome.throughput = rate * ratio(outcome.answered, outcome.requests);
    if outcome.answered > 0 {
        let milliseconds = |label| after(report, label).map(|seconds| (seconds * 1e6).round() / 1e3);
        outcome.p50 = milliseconds("50% in");
        outcome.p99 = milliseconds("99% in");
        outcome.max = milliseconds("Slowest:");
    }
    Ok(outcome)
}

/// Parses lines such as `[200] 1000 responses`.
fn statuses(report: &str) -> impl Iterator<Item = (u64, &str)> {
    section(report, "Status code distribution:").filter_map(|(status, rest)| {
        let count = rest.strip_suffix("responses")?.trim().parse().ok()?;
        Some((count, status))
    })
}

/// Parses lines such as `[12] Get "http://...": ...: connection reset by peer`, by their last words.
fn errors(report: &str) -> impl Iterator<Item = (u64, &str)> {
    let mut kinds = BTreeMap::new();
    for (count, text) in section(report, "Error distribution:") {
        let kind = text.rsplit(": ").next().unwrap_or(text).trim();
        *kinds.entry(kind).or_default() += count.parse::<u64>().unwrap_or(0);
    }
    kinds.into_iter().map(|(kind, count)| (count, kind))
}

fn section<'a>(report: &'a str, title: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let lines = report.split_once(title).map_or("", |(_, rest)| rest).lines().skip(1);
    lines.map_while(|line| line.trim().strip_prefix('[')?.split_once(']'))
}
