//! What the credential may do besides ([`crate::cluster::rights`]).

use tokio::time::timeout_at;

use super::Deadline;
use super::judge;
use super::report::Finding;
use crate::cluster::{Cluster, RequestError};
use crate::identity::Settings;
use crate::workloads::Federation;

/// Asks the API server.
pub(super) async fn ask(settings: &Settings, deadline: Deadline) -> Vec<Finding> {
    let audience = settings.federation.as_ref().map(Federation::token_audience);
    let asked = async {
        let cluster = Cluster::connect(&settings.cluster).await?;
        cluster.rights(audience).await
    };
    // Some twenty requests, so they may take all the time that there is.
    let found: Option<Result<_, RequestError>> = timeout_at(deadline.0, asked).await.ok();
    judge::rights::found(found.as_ref().map(Result::as_ref))
}
