//! The rights of the proxy's credential: whether an attacker on the node would get more than the node's rights, and
//! whether the proxy lacks a right.
//!
//! Requests are made as the credential's own user, not as the node, which would need one more right. RBAC reviews are
//! not enough. An admission policy may refuse what RBAC allows, and a node may lack the right to an audience. Both show
//! only when a token is requested, so one is requested, in ways that must fail (`facts::Attempt`).
//!
//! `ask` gathers the facts, `judge` derives the findings, and [`Finding`] explains them. Nothing depends on the result:
//! pods are served, and the proxy is ready, before and after.

mod ask;
mod facts;
mod finding;
mod follow;
mod judge;
mod right;

use super::{Acting, Cluster, RequestError};

pub use finding::{Danger, Finding, Lack, Severity};
pub use follow::follow;
pub use right::Right;

/// The findings about a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its user, such as `system:serviceaccount:kube-system:gce-metadata-proxy`.
    pub user: String,
    /// The findings, the worst first. None if the credential is confined to its node and lacks nothing.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst of the findings.
    pub fn severity(&self) -> Option<Severity> {
        self.findings.iter().map(Finding::severity).max()
    }
}

/// The rights that the proxy's account needs for itself: those of `deploy/components/identity-own-node`, or of
/// `identity-fenced`.
pub fn needed(acting: Acting) -> Vec<Right> {
    judge::needed(acting)
}

impl Cluster {
    /// Reviews the rights of the credential, in some 20 requests, one after another. `audience` is that of pods'
    /// tokens; `None` if they have none. Mints no token.
    pub async fn rights(&self, audience: Option<&str>) -> Result<Report, RequestError> {
        let facts = ask::facts(self, audience).await?;
        let findings = judge::judge(&facts);
        Ok(Report { user: facts.user.name, findings })
    }
}
