//! [`Status`]: the data of the status page.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::cli;
use crate::clock::BootTime;
use crate::config::Config;
use crate::layers::token_cache::TokenRow;
use crate::memory::Pressure;
use crate::metadata::ServiceAccount;
use crate::readiness;
use crate::shared::Shared;
use crate::telemetry::Moment;
use crate::telemetry::histogram::Snapshot;
use crate::telemetry::history::{self, Course};
use crate::telemetry::labels::Label;
use crate::telemetry::latency::Latency;
use crate::telemetry::talkers::Talker;
use crate::tokens::TokenKind;

/// Maximum addresses shown.
const TALKERS: usize = 10;

/// Maximum token cache entries shown.
const TOKENS: usize = 50;

/// Maximum characters shown of an account and of parameters, which pods choose.
const MAX_TEXT_CHARS: usize = 100;

/// All of it. Durations are in seconds, as in the metrics.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Of the running binary.
    pub version: &'static str,
    /// Since the process began.
    pub uptime_seconds: u64,
    /// Whether pods should be sent here, and what is amiss.
    pub readiness: readiness::State,
    /// By which rules secrets are concealed.
    pub policy: Policy,
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
    /// How much time the filters' numbers are of, and how much each point of their course.
    pub window_seconds: u64,
    /// Likewise.
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
    /// Who asked most in the last minute.
    pub talkers: Vec<Talker>,
}

/// The rules in force.
#[derive(Debug, Serialize)]
pub struct Policy {
    /// What it calls itself.
    pub name: String,
    /// The version that it gives itself.
    pub version: String,
    /// The beginning of its file's SHA-256.
    pub hash: String,
    /// Where it comes from: built in, or a path.
    pub source: String,
    /// Whether it is carried out (enforce) or only logged (audit).
    pub mode: String,
    /// What becomes of recursive reads.
    pub recursive: String,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, hash, source, mode, recursive } = self;
        write!(f, "{name}, version {version} ({hash}, from {source}), mode {mode}, recursive reads: {recursive}")
    }
}

impl Policy {
    fn of(policy: &crate::policy::Policy, config: &Config) -> Self {
        Self {
            name: policy.name().to_owned(),
            version: policy.version().to_owned(),
            hash: policy.hash().to_owned(),
            source: config.policy.source.to_string(),
            mode: config.policy_mode.to_string(),
            recursive: policy.recursive().to_string(),
        }
    }
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

impl Memory {
    fn of(pressure: &Pressure) -> Self {
        let usage = pressure.usage();
        Self {
            level: pressure.level().label(),
            usage_bytes: usage.map(|usage| usage.current),
            limit_bytes: usage.map(|usage| usage.limit),
        }
    }
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

/// How often something happened.
#[derive(Debug, Serialize)]
pub struct Count {
    /// What.
    pub reason: String,
    /// How often.
    pub count: u64,
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

impl Status {
    /// As of now.
    pub fn of(shared: &Shared) -> Self {
        let now = Instant::now();
        let Shared { config, instruments, .. } = shared;
        let courses = shared.history.courses(&instruments.latency);
        let (weight, weight_limit) = shared.connections.weight();
        let (tokens, tokens_not_shown) = shared.store.rows(TOKENS, BootTime::now());
        let points = courses.first().map_or(0, |course| course.points.len());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: now.saturating_duration_since(shared.began).as_secs(),
            readiness: shared.readiness.state(),
            policy: Policy::of(&shared.policy.current(), config),
            flags: cli::flags(config).into_iter().map(|(name, value)| Flag { name, value }).collect(),
            room: vec![
                room("requests in flight", shared.seats.taken(), shared.seats.limit()),
                room("connections", shared.connections.count(), config.max_connections),
                room("memory charged to connections, KiB", weight / 1024, weight_limit / 1024),
                room("wait_for_change requests", shared.watches.count(), shared.watches.limit()),
            ],
            memory: Memory::of(&shared.pressure),
            sheds: shared.shedding.counts().map(|(reason, count)| Count { reason: reason.to_owned(), count }).collect(),
            refusals: counts(shared.requests.refusals()),
            window_seconds: history::INTERVAL.as_secs() * points as u64,
            point_seconds: history::INTERVAL.as_secs(),
            filters: courses.iter().map(FilterStatus::of).collect(),
            requests: exchanges(&instruments.latency),
            upstream: Upstream::of(shared),
            tokens: self::tokens(&tokens),
            tokens_not_shown,
            talkers: instruments.talkers.top(TALKERS, Moment::now()),
        }
    }
}

fn room(of: &'static str, used: usize, limit: usize) -> Room {
    Room { of, used: used as u64, limit: limit as u64 }
}

fn counts(counted: Vec<(String, u64)>) -> Vec<Count> {
    counted.into_iter().map(|(reason, count)| Count { reason, count }).collect()
}

fn exchanges(latency: &Latency) -> Vec<Exchange> {
    let seen = latency.requests.last_byte.series().into_iter().filter(|(_, snapshot)| snapshot.count() > 0);
    seen.map(|(labels, snapshot)| Exchange {
        endpoint: labels[0].1,
        outcome: labels[1].1,
        count: snapshot.count(),
        duration: Quantiles::of(&snapshot),
    })
    .collect()
}

fn tokens(rows: &[TokenRow]) -> Vec<TokenStatus> {
    let mut tokens: Vec<TokenStatus> = rows.iter().map(TokenStatus::of).collect();
    tokens.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.account.cmp(&b.account)));
    tokens
}

impl Quantiles {
    fn of(snapshot: &Snapshot) -> Option<Self> {
        let seconds = |share| snapshot.quantile(share).as_ref().map(Duration::as_secs_f64);
        Some(Self { p50: seconds(0.5)?, p90: seconds(0.9)?, p99: seconds(0.99)? })
    }
}

impl FilterStatus {
    fn of(course: &Course) -> Self {
        Self {
            filter: course.filter.label(),
            requests: course.work.count(),
            work: Quantiles::of(&course.work),
            waited: course.wait.count(),
            wait: Quantiles::of(&course.wait),
            course: course.points.iter().map(Quantiles::of).collect(),
        }
    }
}

impl Upstream {
    fn of(shared: &Shared) -> Self {
        let mut all: Option<Snapshot> = None;
        for (_, snapshot) in shared.instruments.latency.upstream.last_byte.series() {
            all.get_or_insert_with(|| Snapshot::empty(snapshot.bounds)).add(&snapshot);
        }
        Self {
            address: shared.config.upstream.to_string(),
            failure: shared.health.failure(),
            outcomes: counts(shared.upstream_metrics.outcomes()),
            duration: all.as_ref().and_then(Quantiles::of),
        }
    }
}

impl TokenStatus {
    fn of(row: &TokenRow) -> Self {
        let mut parameters = Cut::default();
        for (at, (param, value)) in row.key.params().enumerate() {
            let blank = if at == 0 { "" } else { " " };
            for text in [blank, param.key(), "=", value] {
                parameters.push(text);
            }
        }
        let mut account = Cut::default();
        account.push(match &row.key.account {
            ServiceAccount::Default => "default",
            ServiceAccount::Email(email) => email,
        });
        Self {
            account: account.text,
            kind: match row.key.kind {
                TokenKind::Access => "access",
                TokenKind::Identity => "identity",
            },
            parameters: parameters.text,
            age_seconds: row.token.map(|(age, _)| age.as_secs()),
            expires_in_seconds: row.token.map(|(_, expires_in)| expires_in),
            requests: row.asked,
        }
    }
}

/// Text that is cut after [`MAX_TEXT_CHARS`] characters. What is cut off is not even copied.
#[derive(Default)]
struct Cut {
    text: String,
    length: usize,
}

impl Cut {
    fn push(&mut self, text: &str) {
        for letter in text.chars() {
            if self.length > MAX_TEXT_CHARS {
                return;
            }
            self.text.push(if self.length == MAX_TEXT_CHARS { '…' } else { letter });
            self.length += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_and_says_so() {
        for (texts, shown) in [
            (vec!["scopes", "=", "a"], "scopes=a".to_owned()),
            (vec![&*"a".repeat(MAX_TEXT_CHARS)], "a".repeat(MAX_TEXT_CHARS)),
            (vec![&*"ä".repeat(MAX_TEXT_CHARS), "b", "c"], "ä".repeat(MAX_TEXT_CHARS) + "…"),
        ] {
            let mut cut = Cut::default();
            for text in texts {
                cut.push(text);
            }
            assert_eq!(cut.text, shown);
        }
    }
}
