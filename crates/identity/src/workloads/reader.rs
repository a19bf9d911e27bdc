//! [`follow`]: reads the accounts that are wanted.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Account, Workloads};
use crate::cluster::{Cluster, RequestError};

/// Maximum number of reads at once of accounts that are not known. When a node starts, it has some hundred.
const MAX_FIRST_READS: usize = 4;

/// Maximum number of reads at once of known accounts. They have time, and would keep pods of others waiting while the API server is
/// slow.
pub(crate) const MAX_REPEATED_READS: usize = 2;

/// Reads the wanted accounts of `workloads`, forever.
pub async fn follow(cluster: Cluster, workloads: Arc<Workloads>) -> Infallible {
    let [of_unknown, of_known] = [MAX_FIRST_READS, MAX_REPEATED_READS].map(|most| Arc::new(Semaphore::new(most)));
    let mut reads = JoinSet::new();
    loop {
        for account in workloads.wanted().await {
            let permits = Arc::clone(if account.workload().is_none() { &of_unknown } else { &of_known });
            let (cluster, workloads) = (cluster.clone(), Arc::clone(&workloads));
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
