//! Collects the data of the status page from the parts of the proxy that own the data.

use std::time::Duration;

use super::data::{
    Exchange, FilterStatus, Flag, Memory, PodsStatus, Quantiles, Room, Status, TokenStatus, Upstream, ValueStatus,
};
use super::overview::{Count, Overview};
use crate::cli;
use crate::shared::Shared;
use base::clock::BootTime;
use identity::Identity;
use proxy::layers::leaves::LeafRow;
use proxy::layers::token_cache::TokenRow;
use proxy::memory::Pressure;
use telemetry::histogram::Snapshot;
use telemetry::history::{self, Course};
use telemetry::labels::Label;
use telemetry::latency::Latency;

/// Maximum number of token cache entries shown.
const MAX_TOKENS: usize = 50;

/// Maximum characters shown of an account and of parameters, which are chosen by pods.
const MAX_TEXT_CHARS: usize = 100;

impl Status {
    /// Collects the current state.
    pub fn of(shared: &Shared) -> Self {
        let Shared { config, measures, limits, .. } = shared;
        let instruments = &measures.instruments;
        let courses = measures.history.courses(&instruments.latency);
        let (weight, weight_limit) = limits.connections.weight();
        let (tokens, tokens_not_shown) = shared.tokens.store().rows(MAX_TOKENS, BootTime::now());
        let points = courses.first().map_or(0, |course| course.points.len());
        Self {
            overview: Overview::of(shared),
            flags: cli::flags(config).into_iter().map(|(name, value)| Flag { name, value }).collect(),
            room: vec![
                room("requests in flight", limits.seats.taken(), limits.seats.limit()),
                room("connections", limits.connections.count(), config.max_connections),
                room("memory charged to connections, KiB", weight / 1024, weight_limit / 1024),
                room("wait_for_change requests", limits.watches.count(), limits.watches.limit()),
            ],
            memory: Memory::from_pressure(&limits.pressure),
            sheds: counts(measures.shedding.counts()),
            refusals: counts(measures.requests.refusals()),
            window_seconds: history::INTERVAL.as_secs() * points as u64,
            point_seconds: history::INTERVAL.as_secs(),
            filters: courses.iter().map(FilterStatus::from_course).collect(),
            requests: exchanges(&instruments.latency),
            upstream: Upstream::from_shared(shared),
            tokens: self::tokens(&tokens),
            tokens_not_shown,
            values: shared.leaves.rows(BootTime::now()).iter().map(ValueStatus::from_row).collect(),
            pods: shared.identity.as_deref().map(PodsStatus::from_identity),
        }
    }
}

fn room(of: &'static str, used: usize, limit: usize) -> Room {
    Room { of, used: used as u64, limit: limit as u64 }
}

fn counts<R: Into<String>>(counted: impl IntoIterator<Item = (R, u64)>) -> Vec<Count> {
    counted.into_iter().map(|(reason, count)| Count { reason: reason.into(), count }).collect()
}

fn exchanges(latency: &Latency) -> Vec<Exchange> {
    let seen = latency.requests.last_byte.series().into_iter().filter(|(_, snapshot)| snapshot.count() > 0);
    seen.map(|(labels, snapshot)| Exchange {
        endpoint: labels[0].1,
        outcome: labels[1].1,
        count: snapshot.count(),
        duration: Quantiles::from_snapshot(&snapshot),
    })
    .collect()
}

fn tokens(rows: &[TokenRow]) -> Vec<TokenStatus> {
    let mut tokens: Vec<TokenStatus> = rows.iter().map(TokenStatus::from_row).collect();
    tokens.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.account.cmp(&b.account)));
    tokens
}

impl PodsStatus {
    fn from_identity(identity: &Identity) -> Self {
        Self { summary: identity.summary(), credential: identity.credential().get(), callers: identity.rows() }
    }
}

impl Memory {
    fn from_pressure(pressure: &Pressure) -> Self {
        let usage = pressure.usage();
        Self {
            level: pressure.level().label(),
            usage_bytes: usage.map(|usage| usage.current),
            limit_bytes: usage.map(|usage| usage.limit),
        }
    }
}

impl Quantiles {
    fn from_snapshot(snapshot: &Snapshot) -> Option<Self> {
        let seconds = |share| snapshot.quantile(share).as_ref().map(Duration::as_secs_f64);
        Some(Self { p50: seconds(0.5)?, p90: seconds(0.9)?, p99: seconds(0.99)? })
    }
}

impl FilterStatus {
    fn from_course(course: &Course) -> Self {
        Self {
            filter: course.filter.label(),
            requests: course.work.count(),
            work: Quantiles::from_snapshot(&course.work),
            waited: course.wait.count(),
            wait: Quantiles::from_snapshot(&course.wait),
            course: course.points.iter().map(Quantiles::from_snapshot).collect(),
        }
    }
}

impl Upstream {
    fn from_shared(shared: &Shared) -> Self {
        let mut all: Option<Snapshot> = None;
        for (_, snapshot) in shared.measures.instruments.latency.upstream.last_byte.series() {
            all.get_or_insert_with(|| Snapshot::empty(snapshot.bounds)).add(&snapshot);
        }
        Self {
            address: shared.config.upstream.to_string(),
            failure: shared.upstream.health.failure(),
            outcomes: counts(shared.upstream.metrics.outcomes()),
            duration: all.as_ref().and_then(Quantiles::from_snapshot),
        }
    }
}

impl TokenStatus {
    fn from_row(row: &TokenRow) -> Self {
        let parameters = row.key.params().enumerate();
        let parameters =
            parameters.flat_map(|(at, (param, value))| [if at == 0 { "" } else { " " }, param.key(), "=", value]);
        Self {
            account: cut([&*row.key.account.to_string()]),
            kind: row.key.kind.label(),
            parameters: cut(parameters),
            age_seconds: row.token.map(|(age, _)| age.as_secs()),
            expires_in_seconds: row.token.map(|(_, expires_in)| expires_in),
            requests: row.asked,
        }
    }
}

impl ValueStatus {
    fn from_row(row: &LeafRow) -> Self {
        Self { path: row.leaf.to_string(), status: row.status.as_u16(), age_seconds: row.age.as_secs() }
    }
}

/// Text that is cut after [`MAX_TEXT_CHARS`] characters. The rest is not even copied.
fn cut<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut letters = texts.into_iter().flat_map(str::chars);
    let mut text: String = letters.by_ref().take(MAX_TEXT_CHARS).collect();
    text.extend(letters.next().map(|_| '…'));
    text
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
            assert_eq!(cut(texts), shown);
        }
    }
}
