//! Audit mode: logs requests that a policy would refuse, without refusing them.

use std::net::IpAddr;
use std::time::Duration;

use strum::{Display, EnumString, VariantNames};
use tokio::time::Instant;

use crate::policy::{Decision, Policy};
use protocol::metadata::Request;
use telemetry::labels;
use telemetry::logging::POLICY_AUDIT;
use telemetry::sampled::{Brief, SampledBy};

labels! {
    /// Whether a policy is enforced. The values of the flag and of the label are the variants' names in lowercase.
    #[derive(Default, Display, EnumString, VariantNames)]
    #[strum(serialize_all = "lowercase")]
    Mode {
        /// Refuse requests that the policy conceals.
        #[default]
        Enforce = "enforce",
        /// Serve them, and log what would have been refused.
        Audit = "audit",
    }
}

/// Minimum interval between log lines about the same topic.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of topics with log lines of their own. A node has 110 pods.
const MAX_TOPICS: usize = 1024;

/// Logs requests that the policy would refuse, once a minute per client and rule.
#[derive(Debug)]
pub(super) struct AuditLog(SampledBy<Topic>);

/// Client, kind of cause, and number of the rule in the policy (0 if no rule decided).
type Topic = (IpAddr, &'static str, usize);

impl Default for AuditLog {
    fn default() -> Self {
        Self(SampledBy::new(LOG_INTERVAL, MAX_TOPICS))
    }
}

impl AuditLog {
    /// Logs the policy's decision on a request, if a line is due.
    pub(super) fn note(&self, policy: &Policy, request: &Request, decision: Decision<'_>) {
        let (cause, rule) = match decision {
            Decision::Allow | Decision::Flat | Decision::Redirect => return,
            Decision::Redact => ("redaction", 0),
            Decision::Conceal(cause) => (cause.kind(), policy.place_of(cause)),
        };
        let Some(client) = request.client() else { return };
        let Some(count) = self.0.due((client, cause, rule), Instant::now()) else { return };
        let what = match decision {
            Decision::Conceal(cause) => format!("would be refused: {cause}"),
            _ => "would be answered without the concealed values".to_owned(),
        };
        let (policy, path) = (policy.name(), Brief(&request.path));
        tracing::info!(target: POLICY_AUDIT, %client, %path, policy, cause, rule, count, "audit: this request {what}");
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
        assert_eq!(log.0.due((client, "rule", 1), start), Some(1));
        assert_eq!(log.0.due((client, "rule", 1), start + LOG_INTERVAL - Duration::from_secs(1)), None);
        assert_eq!(log.0.due((client, "rule", 2), start), Some(1));
        assert_eq!(log.0.due(([10, 0, 0, 10].into(), "rule", 1), start), Some(1));
        assert_eq!(log.0.due((client, "recursive", 0), start), Some(1));
        assert_eq!(log.0.due((client, "unmatched", 0), start), Some(1));
        assert_eq!(log.0.due((client, "rule", 1), start + LOG_INTERVAL), Some(2));
    }
}
