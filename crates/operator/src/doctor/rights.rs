//! The credential's unneeded rights ([`identity::cluster::rights`]).

use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::Deadline;
use super::judge;
use super::report::Finding;
use identity::Settings;
use identity::cluster::Cluster;
use identity::workloads::Federation;

/// A review that runs beside the other steps. These are about twenty requests, one after another, so it may take all the time.
/// Dropping it ends it.
pub(super) struct Review(JoinSet<Vec<Finding>>);

impl Review {
    /// Starts to query the API server.
    pub(super) fn start(settings: &Settings, cluster: Cluster, deadline: Deadline) -> Self {
        let audience = settings.federation.as_ref().map(|federation| Federation::token_audience(federation).to_owned());
        let mut review = JoinSet::new();
        review.spawn(async move {
            let found = timeout_at(deadline.end, cluster.rights(audience.as_deref())).await.ok();
            judge::rights::found(found.as_ref().map(Result::as_ref))
        });
        Self(review)
    }

    pub(super) async fn found(mut self) -> Vec<Finding> {
        self.0.join_next().await.and_then(Result::ok).unwrap_or_else(|| judge::rights::found(None))
    }
}
