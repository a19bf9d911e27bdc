//! [`CredentialBoard`]: the rights of the proxy's own credential for the API server.

use parking_lot::Mutex;

use prometheus::IntGaugeVec;
use serde::Serialize;

use telemetry::labels;
use telemetry::labels::Label;
use telemetry::registry::Registry;
use telemetry::table;

labels! {
    /// The rights of the credential.
    CredentialState {
        /// Not known yet.
        Unknown = "unknown",
        /// The rights that the proxy needs, for its node.
        Confined = "confined",
        /// The rights that the proxy needs, for the cluster; an admission policy refuses the rest.
        LastResort = "last_resort",
        /// Fewer rights than the proxy needs.
        Missing = "missing",
        /// More rights than it should have.
        Dangerous = "dangerous",
    }
}

/// The rights of the credential, for pages.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CredentialStatus {
    /// The state, as in metrics.
    pub state: &'static str,
    /// The findings, in sentences.
    pub findings: Vec<String>,
}

/// Keeps the status, and exports it as a metric.
#[derive(Debug)]
pub struct CredentialBoard {
    current: Mutex<CredentialStatus>,
    gauge: IntGaugeVec,
}

impl CredentialBoard {
    pub(super) fn new(registry: &Registry) -> Self {
        let board = Self { current: Mutex::default(), gauge: registry.gauge_vec(&table::IDENTITY_RIGHTS) };
        board.set(CredentialState::Unknown, Vec::new());
        board
    }

    /// Sets the state, with the findings in sentences.
    pub fn set(&self, state: CredentialState, findings: Vec<String>) {
        for each in CredentialState::ALL {
            self.gauge.with_label_values(&[each.label()]).set(i64::from(each == state));
        }
        *self.current.lock() = CredentialStatus { state: state.label(), findings };
    }

    /// Sets the reason for [`CredentialState::Unknown`], unless the state is known.
    pub fn unknown(&self, why: String) {
        if self.get().state == CredentialState::Unknown.label() {
            self.set(CredentialState::Unknown, vec![why]);
        }
    }

    /// The last status.
    pub fn get(&self) -> CredentialStatus {
        self.current.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_state_at_a_time() {
        let registry = Registry::default();
        let board = CredentialBoard::new(&registry);
        let set = |state: &str| format!("metadata_proxy_identity_rights{{state=\"{state}\"}} 1\n");
        board.unknown("away".to_owned());
        assert!(registry.render().contains(&set("unknown")));
        assert_eq!(board.get().findings, ["away"]);
        board.set(CredentialState::Dangerous, vec!["why".to_owned()]);
        let text = registry.render();
        assert!(text.contains(&set("dangerous")), "{text}");
        assert_eq!(text.matches("} 1\n").count(), 1, "{text}");
        board.unknown("away".to_owned());
        assert_eq!(board.get().findings, ["why"], "what was found stays");
    }
}
