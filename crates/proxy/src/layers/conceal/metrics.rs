//! [`PolicyMetrics`]: counts verdicts, and exports the policy in force.

use prometheus::{IntGauge, IntGaugeVec};

use super::audit::Mode;
use crate::policy::{Policy, Reloaded};
use telemetry::labels;
use telemetry::registry::{CounterGrid, Counters, Registry};
use telemetry::table;

labels! {
    /// The policy's verdict on a request.
    Verdict {
        /// The request is served unchanged.
        Allowed = "allowed",
        /// Concealed values are removed from the response.
        Redacted = "redacted",
        /// The request is refused.
        Concealed = "concealed",
    }
}

labels! {
    /// Result of a change of the policy file.
    Reload {
        /// The new policy is in force.
        Applied = "applied",
        /// The previous policy stays in force.
        Rejected = "rejected",
    }
}

/// Counts verdicts, and exports the policy in force.
#[derive(Debug)]
pub struct PolicyMetrics {
    pub(super) verdicts: CounterGrid<Verdict, Mode>,
    info: IntGaugeVec,
    rejected: IntGauge,
    reloads: Counters<Reload>,
}

impl PolicyMetrics {
    /// Registers its metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            verdicts: registry.counter_grid(&table::POLICY_VERDICTS),
            info: registry.gauge_vec(&table::POLICY_INFO),
            rejected: registry.gauge(&table::POLICY_REJECTED),
            reloads: registry.counters(&table::POLICY_RELOADS),
        }
    }

    /// Number of requests that audit mode answered although the policy conceals the response or parts of it.
    pub fn audited(&self) -> u64 {
        let count = |verdict| self.verdicts.of(verdict, Mode::Audit).get();
        count(Verdict::Concealed) + count(Verdict::Redacted)
    }

    /// Exports the policy in force.
    pub fn in_force(&self, policy: &Policy) {
        self.info.reset();
        self.info.with_label_values(&[policy.name(), policy.version(), policy.hash()]).set(1);
    }

    /// Counts a change of the policy file.
    pub fn reloaded(&self, reloaded: &Reloaded<'_>) {
        let outcome = match reloaded {
            Reloaded::Applied(policy) => {
                self.in_force(policy);
                Reload::Applied
            }
            Reloaded::Rejected { .. } => Reload::Rejected,
        };
        self.rejected.set(i64::from(outcome == Reload::Rejected));
        self.reloads.of(outcome).inc();
    }
}

/// Not registered anywhere.
impl Default for PolicyMetrics {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}
