//! [`follow`]: reads the accounts that are wanted.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Account, Workloads};
use crate::cluster::{Cluster, RequestError};

/// Maximum number of reads at once. When a node starts, it has some hundred accounts.
const MAX_READS: usize = 4;

/// Reads the wanted accounts of `workloads`, forever.
pub async fn follow(cluster: Cluster, workloads: Arc<Workloads>) -> Infallible {
    let permits = Arc::new(Semaphore::new(MAX_READS));
    let mut reads = JoinSet::new();
    loop {
        for account in workloads.wanted().await {
            let (cluster, workloads, permits) = (cluster.clone(), Arc::clone(&workloads), Arc::clone(&permits));
            reads.spawn(async move {
                let _permit = permits.acquire_owned().await;
                read(&cluster, &workloads, &account).await;
            });
        }
        while reads.try_join_next().is_some() {}
    }
}

async fn read(cluster: &Cluster, workloads: &Workloads, account: &Arc<Account>) {
    match cluster.service_account(&account.namespace, &account.name).await {
        Ok(Some(object)) => {
            let annotations = object.metadata.annotations.unwrap_or_default();
            workloads.found(account, &object.metadata.uid, &annotations);
        }
        Ok(None) => workloads.missing(account),
        Err(error) => failed(account, &error),
    }
}

/// Logs a failed read. The first failure may pass by itself: the API server learns a moment later than this node that a
/// pod was scheduled.
fn failed(account: &Account, error: &RequestError) {
    let failures = Workloads::unread(account, error);
    if failures == 2 {
        tracing::warn!(%account, "cannot read a service account: {error}. What was read before stays in use; retrying");
    } else {
        tracing::debug!(%account, failures, "cannot read a service account: {error}");
    }
}
