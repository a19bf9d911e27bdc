//! `wrk`: a closed loop over kept-alive connections: the highest throughput, and latencies that are too
//! optimistic.

use std::fmt::Write;

use super::{FLAVOR, HOST, Outcome, Unreadable, after, count_after, note, ratio};

pub fn args(url: &str, seconds: u64, connections: u32) -> Vec<String> {
    let (seconds, connections) = (format!("{seconds}s"), connections.to_string());
    ["-t", "1", "-c", &connections, "-d", &seconds, "--latency", "--timeout", "10s", "-H", FLAVOR, "-H", HOST, url]
        .map(str::to_owned)
        .into()
}

/// A script that requests these targets in turn.
pub fn script(targets: &[String]) -> String {
    let mut script = "local targets = {\n".to_owned();
    for target in targets {
        writeln!(script, "  {target:?},").expect("a string takes whatever is written");
    }
    script
        + "}\nlocal next = 0\nfunction request()\n  next = next % #targets + 1\n  \
              return wrk.format(nil, targets[next])\nend\n"
}

pub fn read(report: &str) -> Result<Outcome, Unreadable> {
    let missing = |what| Unreadable { tool: "wrk", what };
    let line = report.lines().find(|line| line.contains(" requests in ")).ok_or(missing("number of requests"))?;
    let complete = count_after(line, "").ok_or(missing("number of requests"))?;
    let rate = after(report, "Requests/sec:").ok_or(missing("rate"))?;
    let refused = count_after(report, "Non-2xx or 3xx responses:").unwrap_or(0);
    let answered = complete.saturating_sub(refused);
    let mut outcome =
        Outcome { requests: complete, answered, throughput: rate * ratio(answered, complete), ..Outcome::default() };
    note(&mut outcome.failures, "another status", refused);
    if let Some(errors) = report.lines().find_map(|line| line.trim().strip_prefix("Socket errors: ")) {
        for error in errors.split(", ") {
            let (kind, count) = error.rsplit_once(' ').unwrap_or((error, "0"));
            let count = count.parse().map_err(|_| missing("number of socket errors"))?;
            outcome.requests += count;
            note(&mut outcome.failures, &format!("{kind} error"), count);
        }
    }
    if answered > 0 {
        (outcome.p50, outcome.p99) = (time(report, "50%", 0), time(report, "99%", 0));
        // The line contains average, deviation and maximum.
        outcome.max = time(report, "Latency ", 2);
    }
    Ok(outcome)
}

/// The nth time after a label, in milliseconds.
fn time(report: &str, label: &str, nth: usize) -> Option<f64> {
    let lines = report.lines().filter_map(|line| line.trim_start().strip_prefix(label));
    lines.into_iter().find_map(|rest| milliseconds(rest.split_whitespace().nth(nth)?))
}

/// A time with its unit, in milliseconds.
pub fn milliseconds(time: &str) -> Option<f64> {
    let (number, factor) = [("us", 0.001), ("ms", 1.0), ("s", 1000.0), ("m", 60_000.0)]
        .into_iter()
        .find_map(|(unit, factor)| Some((time.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}
