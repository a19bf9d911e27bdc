//! [`Workloads`]: numbers for the Kubernetes service accounts of this node's pods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::metadata::WorkloadId;
use crate::pods::Pod;

/// A Kubernetes service account: its namespace and name.
pub(super) type Account = (Arc<str>, Arc<str>);

/// The service accounts that have a number.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Never reused, so that what was kept for a number cannot be taken for another account's.
    next: u64,
    numbers: HashMap<Account, WorkloadId>,
}

impl Workloads {
    /// The number of a pod's account.
    pub(super) fn number(&self, pod: &Pod) -> WorkloadId {
        let mut inner = self.lock();
        let account = account_of(pod);
        if let Some(number) = inner.numbers.get(&account) {
            return *number;
        }
        let number = WorkloadId(inner.next);
        inner.next += 1;
        inner.numbers.insert(account, number);
        number
    }

    /// Forgets the accounts that none of these pods has, and returns their numbers. The pods are listed while no account
    /// can get a number, so none that is in use is forgotten.
    pub(super) fn retain(&self, pods: impl FnOnce() -> Vec<Arc<Pod>>) -> Vec<WorkloadId> {
        let mut inner = self.lock();
        let live: Vec<Account> = pods().iter().filter(|pod| !pod.ended).map(|pod| account_of(pod)).collect();
        let mut forgotten = Vec::new();
        inner.numbers.retain(|account, number| {
            let is_live = live.contains(account);
            if !is_live {
                forgotten.push(*number);
            }
            is_live
        });
        forgotten
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is locked.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn account_of(pod: &Pod) -> Account {
    (Arc::clone(&pod.namespace), Arc::clone(&pod.account))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::pod;

    #[test]
    fn pods_of_one_account_share_a_number_and_namespaces_tell_accounts_apart() {
        let workloads = Workloads::default();
        let one = workloads.number(&pod(1, "a", "app"));
        assert_eq!(workloads.number(&pod(2, "a", "app")), one);
        assert_ne!(workloads.number(&pod(3, "b", "app")), one);
        assert_ne!(workloads.number(&pod(4, "a", "other")), one);
    }

    #[test]
    fn a_number_is_forgotten_with_the_last_pod_and_never_used_again() {
        let workloads = Workloads::default();
        let (app, other) = (pod(1, "a", "app"), pod(2, "a", "other"));
        let (first, kept) = (workloads.number(&app), workloads.number(&other));
        let ended = Pod { ended: true, ..app.clone() };
        assert_eq!(workloads.retain(|| vec![Arc::new(other.clone()), Arc::new(ended)]), [first]);
        assert_eq!(workloads.number(&other), kept);
        let again = workloads.number(&app);
        assert!(![first, kept].contains(&again));
    }
}
