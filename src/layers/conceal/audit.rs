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
    /// Refuse what it conceals.
    #[default]
    Enforce,
    /// Log what it would conceal, and serve it.
    Audit,
}

/// Between two lines about one client and one rule.
const EVERY: Duration = Duration::from_secs(60);

/// Most clients and rules that are remembered; a node has 110 pods. Beyond, all are forgotten and told again.
const MOST: usize = 1024;

/// Tells what would be done, once a minute for each client and rule.
#[derive(Debug, Default)]
pub(super) struct AuditLog(Mutex<HashMap<Topic, Told>>);

/// Who, for what kind of cause, and by which rule: its place in the policy, or 0 for what no rule says.
type Topic = (IpAddr, &'static str, usize);

#[derive(Debug)]
struct Told {
    at: Instant,
    untold: u64,
}

impl AuditLog {
    /// Tells what the policy would do to a request.
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

    /// How many there were since the last line, if it is time for another.
    fn due(&self, topic: Topic, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST && !told.contains_key(&topic) {
            told.clear();
        }
        match told.get_mut(&topic) {
            Some(last) if now < last.at + EVERY => {
                last.untold += 1;
                None
            }
            last => {
                let untold = last.map_or(0, |last| last.untold);
                told.insert(topic, Told { at: now, untold: 0 });
                Some(untold + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_once_a_minute_for_each_client_and_rule() {
        let log = AuditLog::default();
        let start = Instant::now();
        let client = IpAddr::from([10, 0, 0, 9]);
        assert_eq!(log.due((client, "rule", 1), start), Some(1));
        assert_eq!(log.due((client, "rule", 1), start + EVERY - Duration::from_secs(1)), None);
        assert_eq!(log.due((client, "rule", 2), start), Some(1));
        assert_eq!(log.due(([10, 0, 0, 10].into(), "rule", 1), start), Some(1));
        assert_eq!(log.due((client, "recursive", 0), start), Some(1));
        assert_eq!(log.due((client, "unmatched", 0), start), Some(1));
        assert_eq!(log.due((client, "rule", 1), start + EVERY), Some(2));
    }

    #[test]
    fn a_flood_of_clients_is_not_remembered_for_ever() {
        let log = AuditLog::default();
        for client in 0..10_000_u32 {
            log.due((IpAddr::from(client.to_be_bytes()), "unmatched", 0), Instant::now());
        }
        assert!(log.0.lock().expect("no panic").len() <= MOST);
    }
}
