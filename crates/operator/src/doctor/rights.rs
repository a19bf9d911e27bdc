//! The credential's unneeded rights ([`identity::cluster::rights`]).

use tokio::time::timeout_at;

use super::Deadline;
use super::judge;
use super::report::Finding;
use identity::Settings;
use identity::cluster::Cluster;
use identity::workloads::Federation;

/// Queries the API server.
pub(super) async fn ask(settings: &Settings, cluster: &Cluster, deadline: Deadline) -> Vec<Finding> {
    let audience = settings.federation.as_ref().map(Federation::token_audience);
    // These are about twenty requests, so they may take all the remaining time.
    let found = timeout_at(deadline.end, cluster.rights(audience)).await.ok();
    judge::rights::found(found.as_ref().map(Result::as_ref))
}
