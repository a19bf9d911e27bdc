//! What the credential may do besides ([`crate::cluster::rights`]).

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
    let found: Option<Result<_, RequestError>> = deadline.within(asked).await;
    judge::rights::found(found.as_ref().map(Result::as_ref))
}
