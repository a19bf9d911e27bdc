//! [`Status`]: the data of the status page.
//!
//! `?format=json` returns it as it is here.

use std::fmt;

use serde::Serialize;

use super::overview::{Count, Overview};
use crate::identity::{CallerRow, CredentialStatus, Summary};

/// All of it. Durations are in seconds, as in the metrics.
#[derive(Debug, Serialize)]
pub struct Status {
    /// What is wrong, and who asks and is refused.
    #[serde(flatten)]
    pub overview: Overview,
    /// Each flag with its value in force.
    pub flags: Vec<Flag>,
    /// What there is room for.
    pub room: Vec<Room>,
    /// How near the process is to its memory limit.
    pub memory: Memory,
    /// What there was no room for since the process began.
    pub sheds: Vec<Count>,
    /// What was refused, or failed here, since the process began.
    pub refusals: Vec<Count>,
    /// The time that the filters' numbers cover.
    pub window_seconds: u64,
    /// The time between two points of their charts.
    pub point_seconds: u64,
    /// What each filter costs.
    pub filters: Vec<FilterStatus>,
    /// What became of requests since the process began.
    pub requests: Vec<Exchange>,
    /// The metadata server.
    pub upstream: Upstream,
    /// What the token cache holds: the entries that were asked for most often. Never a token.
    pub tokens: Vec<TokenStatus>,
    /// How many other entries there are.
    pub tokens_not_shown: usize,
    /// Values that are answered from memory.
    pub values: Vec<ValueStatus>,
    /// The pods that were identified. `None` without Workload Identity.
    pub pods: Option<PodsStatus>,
}

/// A flag.
#[derive(Debug, Serialize)]
pub struct Flag {
    /// With its dashes.
    pub name: String,
    /// As it would be typed.
    pub value: String,
}

/// Something of which there is only so much.
#[derive(Debug, Serialize)]
pub struct Room {
    /// What.
    pub of: &'static str,
    /// How much is in use.
    pub used: u64,
    /// How much there is.
    pub limit: u64,
}

/// Memory, in bytes.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The step of shedding that is in force.
    pub level: &'static str,
    /// What the control group uses; nothing without a limit.
    pub usage_bytes: Option<u64>,
    /// What it may use; nothing without a limit.
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

/// Estimates from a histogram; nothing where nothing was counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of all took no longer.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
}

/// One filter over the last minutes.
#[derive(Debug, Serialize)]
pub struct FilterStatus {
    /// Its name.
    pub filter: &'static str,
    /// Requests that came to it and left it.
    pub requests: u64,
    /// What it did itself.
    pub work: Option<Quantiles>,
    /// Requests that had to wait in it.
    pub waited: u64,
    /// How long.
    pub wait: Option<Quantiles>,
    /// What it did itself, point by point, the oldest first.
    pub course: Vec<Option<Quantiles>>,
}

/// Requests of one kind with one outcome.
#[derive(Debug, Serialize)]
pub struct Exchange {
    /// What was asked for.
    pub endpoint: &'static str,
    /// What became of it.
    pub outcome: &'static str,
    /// How many there were.
    pub count: u64,
    /// To the last byte.
    pub duration: Option<Quantiles>,
}

/// The metadata server.
#[derive(Debug, Serialize)]
pub struct Upstream {
    /// Where it is.
    pub address: String,
    /// Why it failed when it was last asked; nothing while it answers.
    pub failure: Option<String>,
    /// What came of requests to it since the process began.
    pub outcomes: Vec<Count>,
    /// How long they took.
    pub duration: Option<Quantiles>,
}

/// An entry of the token cache.
#[derive(Debug, Serialize)]
pub struct TokenStatus {
    /// Whose token, cut to 100 characters.
    pub account: String,
    /// `access` or `identity`.
    pub kind: &'static str,
    /// Scopes, audience and the like, cut to 100 characters.
    pub parameters: String,
    /// For how long the token has been known; nothing while there is none.
    pub age_seconds: Option<u64>,
    /// What it has left.
    pub expires_in_seconds: Option<u32>,
    /// How often it was asked for.
    pub requests: u64,
}

/// A value that is answered from memory.
#[derive(Debug, Serialize)]
pub struct ValueStatus {
    /// Its path and query.
    pub path: String,
    /// 200, or 404 if the metadata server does not have it.
    pub status: u16,
    /// Seconds since the metadata server was asked.
    pub age_seconds: u64,
}

/// What is known about pods.
#[derive(Debug, Serialize)]
pub struct PodsStatus {
    /// In numbers.
    #[serde(flatten)]
    pub summary: Summary,
    /// What the proxy's own credential for the API server allows.
    pub credential: CredentialStatus,
    /// The pods that sent requests and still run.
    pub callers: Vec<CallerRow>,
}
