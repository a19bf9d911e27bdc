//! `ab`: a closed loop, by default with one connection per request.
//!
//! Its own count of failures is useless: a reset counts twice (as `Receive` and as `Exceptions`), and a
//! connection that is closed without a byte counts as complete. So responses are counted by the total size of
//! their bodies, which are all of the same length.

use super::{FLAVOR, Outcome, Unreadable, after, count_after, note, ratio};

/// Accepts bodies of any length, because the first is not a better reference than any other, and continues
/// after a reset.
pub fn args(url: &str, requests: u64, concurrency: u32) -> Vec<String> {
    let (requests, concurrency) = (requests.to_string(), concurrency.to_string());
    ["-q", "-l", "-r", "-s", "120", "-n", &requests, "-c", &concurrency, "-H", FLAVOR, url].map(str::to_owned).into()
}

/// Parses a report on responses with bodies of this many bytes.
pub fn read(report: &str, body: u64) -> Result<Outcome, Unreadable> {
    let missing = |what| Unreadable { tool: "ab", what };
    let complete = count_after(report, "Complete requests:").ok_or(missing("number of requests"))?;
    let refused = count_after(report, "Non-2xx responses:").unwrap_or(0);
    let bytes = count_after(report, "HTML transferred:").ok_or(missing("number of bytes"))?;
    let rate = after(report, "Requests per second:").ok_or(missing("rate"))?;
    let broken = broken(report);
    // Refusals have bodies of other lengths, so with refusals the number of connections closed without a byte
    // is unknown.
    let unanswered = if refused == 0 { complete.saturating_sub(bytes / body.max(1)) } else { broken };
    let answered = complete.saturating_sub(refused + unanswered);
    let mut outcome =
        Outcome { requests: complete, answered, throughput: rate * ratio(answered, complete), ..Outcome::default() };
    note(&mut outcome.failures, "another status", refused);
    note(&mut outcome.failures, "reset", broken.min(unanswered));
    note(&mut outcome.failures, "closed without an answer", unanswered.saturating_sub(broken));
    if answered > 0 {
        (outcome.p50, outcome.p99, outcome.max) = (after(report, "50%"), after(report, "99%"), after(report, "100%"));
    }
    Ok(outcome)
}

/// Number of failed connections, from the line below the number of failures.
fn broken(report: &str) -> u64 {
    let Some(line) = report.lines().find(|line| line.trim_start().starts_with("(Connect:")) else { return 0 };
    let of = |kind: &str| line.split_once(kind).and_then(|(_, rest)| count_after(rest.trim_start(), "")).unwrap_or(0);
    of("Connect:") + of("Receive:").max(of("Exceptions:"))
}
