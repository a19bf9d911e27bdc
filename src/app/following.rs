//! [`follow`]: starts what follows the API server.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::cluster::rights::{self, Report, Severity};
use crate::cluster::{Cluster, RequestError};
use crate::identity::{CredentialState, Identity};
use crate::pods;
use crate::shared::Shared;
use crate::tokens::workload::{prefetch, renew};
use crate::workloads;

/// Follows this node's pods and their accounts, and what the proxy's credential may do, in tasks of this set.
pub(super) fn follow(cluster: Cluster, shared: &Shared, background: &mut JoinSet<()>) {
    let Some(identity) = &shared.identity else { return };
    let (pods, workloads) = (Arc::clone(identity.pods()), Arc::clone(identity.workloads()));
    if workloads.federation().is_some() {
        let cluster = cluster.clone();
        background.spawn(async move { match workloads::follow(cluster, workloads).await {} });
    }
    if let Some(source) = shared.tokens.source().of_workloads() {
        let (prefetched, renewed) = (Arc::clone(source), Arc::clone(source));
        background.spawn(async move { match prefetch(prefetched).await {} });
        background.spawn(async move { match renew(renewed).await {} });
    }
    let audience = identity.workloads().federation().map(|federation| federation.token_audience().into());
    let (of_rights, identity) = (cluster.clone(), Arc::clone(identity));
    background
        .spawn(async move { match rights::follow(of_rights, audience, |asked| judged(&identity, asked)).await {} });
    // The log says what happens to the watch, and the metrics how old its news is.
    background.spawn(async move { match pods::follow(cluster, pods, |_| {}).await {} });
}

/// Keeps what the credential for the API server was found to allow, for pages and metrics.
fn judged(identity: &Identity, asked: Result<&Report, &RequestError>) {
    match asked {
        Ok(report) => {
            let state = match report.severity() {
                None => CredentialState::Confined,
                Some(Severity::Unknown) => CredentialState::Unknown,
                Some(Severity::Notice) => CredentialState::LastResort,
                Some(Severity::Missing) => CredentialState::Missing,
                Some(Severity::Dangerous) => CredentialState::Dangerous,
            };
            identity.credential().set(state, report.findings.iter().map(ToString::to_string).collect());
        }
        // What was found before is still the best that is known.
        Err(error) => identity.credential().unknown(error.to_string()),
    }
}
