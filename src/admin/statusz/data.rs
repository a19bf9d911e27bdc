//! [`Status`]: the data of the status page.
//!
//! `?format=json` returns it in this form.

use std::fmt;

use serde::Serialize;

use super::overview::{Count, Overview};
use identity::{CallerRow, CredentialStatus, Summary};

/// All data. Durations are in seconds, as in the metrics.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The condition, and the busiest and refused clients.
    #[serde(flatten)]
    pub overview: Overview,
    /// Each flag with its current value.
    pub flags: Vec<Flag>,
    /// Limited resources and their use.
    pub room: Vec<Room>,
    /// The process's use of its memory limit.
    pub memory: Memory,
    /// Sheds since the process began.
    pub sheds: Vec<Count>,
    /// Refusals and failures since the process began.
    pub refusals: Vec<Count>,
    /// The period that the filters' numbers cover.
    pub window_seconds: u64,
    /// Interval between the points of the filters' charts.
    pub point_seconds: u64,
    /// Durations of each filter.
    pub filters: Vec<FilterStatus>,
    /// Requests by outcome since the process began.
    pub requests: Vec<Exchange>,
    pub upstream: Upstream,
    /// The most requested entries of the token cache. Never a token.
    pub tokens: Vec<TokenStatus>,
    /// Number of other entries.
    pub tokens_not_shown: usize,
    /// Values that are served from memory.
    pub values: Vec<ValueStatus>,
    /// The identified pods. `None` without Workload Identity.
    pub pods: Option<PodsStatus>,
}

#[derive(Debug, Serialize)]
pub struct Flag {
    /// Includes the dashes.
    pub name: String,
    /// The value as on the command line.
    pub value: String,
}

/// A limited resource.
#[derive(Debug, Serialize)]
pub struct Room {
    /// Name of the resource.
    pub of: &'static str,
    /// Amount in use.
    pub used: u64,
    /// Maximum amount.
    pub limit: u64,
}

/// Memory, in bytes.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The current step of memory shedding.
    pub level: &'static str,
    /// Usage of the control group; `None` without a limit.
    pub usage_bytes: Option<u64>,
    /// Limit of the control group; `None` without a limit.
    pub limit_bytes: Option<u64>,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "for the eye")]
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match self.usage_bytes.zip(self.limit_bytes) {
            Some((usage, limit)) => write!(f, "{}: {:.1} of {:.1} MiB in use", self.level, mib(usage), mib(limit)),
            None => f.write_str("no memory limit is set"),
        }
    }
}

/// Estimates from a histogram, in seconds. `None` instead if nothing was counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

/// One filter over the last minutes.
#[derive(Debug, Serialize)]
pub struct FilterStatus {
    pub filter: &'static str,
    /// Requests that entered and left the filter.
    pub requests: u64,
    /// Working time of the filter itself.
    pub work: Option<Quantiles>,
    /// Requests that waited in the filter.
    pub waited: u64,
    /// Waiting time of those requests.
    pub wait: Option<Quantiles>,
    /// Working time of the filter itself in each interval, the oldest first.
    pub course: Vec<Option<Quantiles>>,
}

/// Requests of one kind with one outcome.
#[derive(Debug, Serialize)]
pub struct Exchange {
    /// The class of the requested path.
    pub endpoint: &'static str,
    pub outcome: &'static str,
    /// Number of these requests.
    pub count: u64,
    /// Time to the last byte.
    pub duration: Option<Quantiles>,
}

#[derive(Debug, Serialize)]
pub struct Upstream {
    pub address: String,
    /// Error of the last request; `None` if it succeeded.
    pub failure: Option<String>,
    /// Requests by outcome since the process began.
    pub outcomes: Vec<Count>,
    /// Duration of these requests.
    pub duration: Option<Quantiles>,
}

/// An entry of the token cache.
#[derive(Debug, Serialize)]
pub struct TokenStatus {
    /// The token's account, cut to 100 characters.
    pub account: String,
    /// `access` or `identity`.
    pub kind: &'static str,
    /// Scopes, audience and similar parameters, cut to 100 characters.
    pub parameters: String,
    /// Time since the token was received; `None` without a token.
    pub age_seconds: Option<u64>,
    /// Remaining lifetime of the token.
    pub expires_in_seconds: Option<u32>,
    /// Number of requests for this entry.
    pub requests: u64,
}

/// A value that is served from memory.
#[derive(Debug, Serialize)]
pub struct ValueStatus {
    pub path: String,
    /// 200, or 404 if the metadata server does not have it.
    pub status: u16,
    /// Seconds since the value was requested from the metadata server.
    pub age_seconds: u64,
}

/// The identification of pods.
#[derive(Debug, Serialize)]
pub struct PodsStatus {
    /// Summary in numbers.
    #[serde(flatten)]
    pub summary: Summary,
    /// Rights of the proxy's own credential for the API server.
    pub credential: CredentialStatus,
    /// The pods that have sent requests and are still running.
    pub callers: Vec<CallerRow>,
}
