//! Measured figures, and their summary over several runs.

use std::collections::BTreeMap;

use serde::Serialize;

/// A figure, in the order of the table's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Requests per second.
    Throughput,
    /// Microseconds of CPU time per request; the next two are parts of it.
    Cpu,
    CpuUser,
    CpuSystem,
    /// Milliseconds.
    P50,
    P99,
    Max,
    /// Requests answered with 200, in per cent.
    Success,
    /// Peak memory of the control group, in MiB.
    Peak,
    /// Resident memory of the process, in MiB.
    Resident,
    /// Number of requests that reached the upstream.
    Upstream,
    /// Of these, requests for the default account's token.
    UpstreamTokens,
    /// Time from exec to the first response, in milliseconds.
    FirstAnswer,
    /// Size of the executable, in MB.
    Size,
}

impl Figure {
    pub fn heading(self) -> &'static str {
        match self {
            Self::Throughput => "requests/s",
            Self::Cpu => "CPU µs/request",
            Self::CpuUser => "in user mode",
            Self::CpuSystem => "in the kernel",
            Self::P50 => "p50 ms",
            Self::P99 => "p99 ms",
            Self::Max => "max ms",
            Self::Success => "answered %",
            Self::Peak => "peak MiB",
            Self::Resident => "resident MiB",
            Self::Upstream => "upstream requests",
            Self::UpstreamTokens => "for the token",
            Self::FirstAnswer => "first answer ms",
            Self::Size => "program MB",
        }
    }

    /// Formats a value with the significant digits.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Success if value < 100.0 => format!("{:.3}", value.min(99.999)),
            Self::Success | Self::Upstream | Self::UpstreamTokens => format!("{value:.0}"),
            _ if value >= 1000.0 => format!("{value:.0}"),
            _ if value >= 100.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }

    /// Whether the ratio of a peer's figure to ours is meaningful.
    pub fn has_ratio(self) -> bool {
        matches!(self, Self::Throughput | Self::Cpu | Self::P99 | Self::Resident | Self::FirstAnswer)
    }
}

/// One run: its figures, and failed requests by kind.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Run {
    pub figures: BTreeMap<Figure, f64>,
    pub failures: BTreeMap<String, u64>,
    /// The output of the load tool.
    pub report: String,
}

/// Summary of a figure over several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Summary {
    /// Summarises these values. `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self { median, least: values[0], most: values[values.len() - 1] })
    }

    /// Summarises a figure of these runs.
    pub fn of_figure(runs: &[Run], figure: Figure) -> Option<Self> {
        Self::of(runs.iter().filter_map(|run| run.figures.get(&figure).copied()))
    }
}
