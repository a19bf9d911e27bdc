//! [`follow`]: starts the tasks that follow the API server.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::describing::describe;
use crate::shared::Shared;
use identity::cluster::rights::{self, Report, Severity};
use identity::cluster::{Cluster, RequestError};
use identity::pods::{self, Store, WatchEvent};
use identity::tokens::{prefetch, renew};
use identity::workloads;
use identity::{CredentialState, Identity};

/// Maximum time to wait for the first list of pods before the API server is also queried about rights.
const MAX_WAIT_FOR_LIST: Duration = Duration::from_secs(5);

/// Starts tasks that follow the API server: in `following` those for whose news requests wait, and in `background` the others.
pub(super) fn follow(
    cluster: Cluster,
    shared: &Arc<Shared>,
    following: &mut JoinSet<()>,
    background: &mut JoinSet<()>,
) {
    let Some(identity) = &shared.identity else { return };
    identity.follows(cluster.clone());
    let (pods, workloads) = (Arc::clone(identity.pods()), Arc::clone(identity.workloads()));
    let dir = shared.config.identity.as_ref().and_then(|settings| settings.state_dir.as_ref());
    if let Some(dir) = dir {
        let store = Store::new(dir, cluster.node());
        store.restore(&pods);
        let (pods, written) = (Arc::clone(&pods), Arc::clone(identity));
        background.spawn(async move { match pods::keep(store, pods, |error| written.stored(error)).await {} });
    }
    if workloads.federation().is_some() {
        let cluster = cluster.clone();
        let handed = Arc::clone(shared);
        following.spawn(async move {
            // Otherwise tokens that may be handed over would be requested from the API server and Google.
            handed.handover.settled().await;
            match workloads::follow(cluster, workloads).await {}
        });
    }
    if let Some(source) = shared.tokens.source().of_workloads() {
        let (prefetched, renewed) = (Arc::clone(source), Arc::clone(source));
        let handed = Arc::clone(shared);
        background.spawn(async move {
            handed.handover.settled().await;
            match prefetch(prefetched).await {}
        });
        background.spawn(async move { match renew(renewed).await {} });
    }
    if let Some(values) = shared.upstream.forward.values().filter(|values| values.awaits_node()) {
        background.spawn(describe(cluster.clone(), Arc::clone(values), Arc::clone(&shared.leaves)));
    }
    background.spawn(follow_rights(cluster.clone(), Arc::clone(identity)));
    // The log reports what happens to the watch, the metrics the age of its last event, and pages its last error.
    let watched = Arc::clone(identity);
    let on = move |event: WatchEvent<'_>| match event {
        WatchEvent::Listed { .. } | WatchEvent::Recovered => {
            watched.watched(None);
            watched.workloads().retry();
        }
        WatchEvent::Failed { error, .. } => watched.watched(Some(error)),
    };
    following.spawn(async move { match pods::follow(cluster, pods, on).await {} });
}

/// Checks the rights of the credential, but only after the first list of pods, or after some seconds without one: pods
/// wait for that list, but not for this check.
async fn follow_rights(cluster: Cluster, identity: Arc<Identity>) {
    let (pods, audience) = (identity.pods(), identity.workloads().federation());
    let audience = audience.map(|federation| federation.token_audience().into());
    // Continues even without a list.
    let _ = timeout(MAX_WAIT_FOR_LIST, pods.known()).await;
    match rights::follow(cluster, audience, |asked| judged(&identity, asked)).await {}
}

/// Stores the rights of the API server credential for pages and metrics.
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
        // The previous result is still the best available.
        Err(error) => identity.credential().unknown(error.to_string()),
    }
}
