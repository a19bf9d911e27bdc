//! Audit mode: logs what a policy would refuse, without refusing it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use strum::{Display, EnumString, VariantNames};
use tokio::time::Instant;

use crate::metadata::Request;
use crate::policy::{Decision, Policy};

/// Whether a policy is enforced. The flag has the variants' names in lowercase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// Refuse requests that the policy conceals.
    #[default]
    Enforce,
    /// Serve them, and log what would have been refused.
    Audit,
}

/// Minimum interval between log lines about the same topic.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum topics that are remembered; a node has 110 pods. At the limit all are forgotten, and logged again.
const MAX_TOPICS: usize = 1024;

/// Logs what the policy would refuse, once a minute for each client and rule.
#[derive(Debug, Default)]
pub(super) struct AuditLog(Mutex<HashMap<Topic, LastLine>>);

/// Client, kind of cause, and rule: its number in the policy, or 0 if no rule decided.
type Topic = (IpAddr, &'static str, usize);

/// The last log line about a topic.
#[derive(Debug)]
struct LastLine {
    at: Instant,
    /// Requests since then.
    unlogged: u64,
}

impl AuditLog {
    /// Logs what the policy would do with a request, if a line is due.
    pub(super) fn note(&self, policy: &Policy, request: &Request, decision: Decision<'_>) {
        let (cause, rule) = match decision {
            Decision::Allow | Decision::Flat | Decision::Redirect => return,
            Decision::Redact => ("redaction", 0),
            Decision::Conceal(cause) => (cause.kind(), policy.place_of(cause)),
        };
        let Some(client) = request.client() else { return };
        let Some(count) = self.due((client, cause, rule), Instant::now()) else { return };
        let what = match decision {
            Decision::Conceal(cause) => format!("would be refused: {cause}"),
            _ => "would be answered without the concealed values".to_owned(),
        };
        let (policy, path) = (policy.name(), &request.path);
        tracing::info!(%client, %path, policy, cause, rule, count, "audit: this request {what}");
    }

    /// Counts a request. If a log line is due, returns the number of requests since the last one.
    fn due(&self, topic: Topic, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MAX_TOPICS && !lines.contains_key(&topic) {
            lines.clear();
        }
        match lines.get_mut(&topic) {
            Some(last) if now < last.at + LOG_INTERVAL => {
                last.unlogged += 1;
                None
            }
            last => {
                let unlogged = last.map_or(0, |last| last.unlogged);
                lines.insert(topic, LastLine { at: now, unlogged: 0 });
                Some(unlogged + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_and_rule_is_logged_once_a_minute() {
        let log = AuditLog::default();
        let start = Instant::now();
        let client = IpAddr::from([10, 0, 0, 9]);
        assert_eq!(log.due((client, "rule", 1), start), Some(1));
        assert_eq!(log.due((client, "rule", 1), start + LOG_INTERVAL - Duration::from_secs(1)), None);
        assert_eq!(log.due((client, "rule", 2), start), Some(1));
        assert_eq!(log.due(([10, 0, 0, 10].into(), "rule", 1), start), Some(1));
        assert_eq!(log.due((client, "recursive", 0), start), Some(1));
        assert_eq!(log.due((client, "unmatched", 0), start), Some(1));
        assert_eq!(log.due((client, "rule", 1), start + LOG_INTERVAL), Some(2));
    }

    #[test]
    fn the_number_of_topics_is_limited() {
        let log = AuditLog::default();
        for client in 0..10_000_u32 {
            log.due((IpAddr::from(client.to_be_bytes()), "unmatched", 0), Instant::now());
        }
        assert!(log.0.lock().expect("no panic").len() <= MAX_TOPICS);
    }
}
