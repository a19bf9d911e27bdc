//! [`Workloads`]: the Kubernetes service accounts of this node's pods, and how each acts at Google.
//!
//! Each account has a number, a [`WorkloadId`], under which all its state is kept. A number stands for one account as
//! it is now: when its annotations change, or it is deleted and created again, it gets another number, and the state
//! under the old one is forgotten. No number is used twice.
//!
//! Accounts are read by `follow`: when first seen or taken over, again when requested and older than a minute, and at each renewal
//! of their tokens. A request after a long pause waits for that read. While the API server is unreachable, the last state stays in
//! effect.

mod account;
pub(crate) mod federation;
mod link;
mod names;
mod reader;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

pub use account::Account;
pub(crate) use account::MAX_AGE;
use account::{Known, NOT_ANSWERED, Reading};
pub use federation::{ClusterUri, Endpoint, Federation, Prefetch, Provider, Trust, WorkloadPool};
pub use link::{GoogleAccount, Link, Malformed, QuotaProject};
pub use names::Names;
#[cfg(test)]
pub(crate) use reader::MAX_REPEATED_READS;
pub use reader::follow;

use crate::cluster::{Annotations, RequestError};
use crate::pods::{AccountKey, Pod};
use base::clock::{BootTime, sleep_until};
use protocol::metadata::{ServiceAccount, WorkloadId};

/// Maximum time to wait until an account is read. A little less than clients wait for a token, so that they get the reason.
const LINK_TIMEOUT: Duration = Duration::from_millis(2300);

/// Maximum time to wait until a known account is read again. Clients wait for longer, and the API server takes some milliseconds.
const REREAD_TIMEOUT: Duration = Duration::from_millis(500);

/// A Kubernetes service account and its parsed annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Its UID, which differs when it is deleted and created again.
    pub uid: Box<str>,
    /// Its Google identity.
    pub link: Result<Link, Malformed>,
}

impl Workload {
    pub(crate) fn key(&self) -> AccountKey {
        (Arc::clone(&self.namespace), Arc::clone(&self.name))
    }
}

/// Reason why the Google identity of an account is not known. The text is sent to the pod and logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The account could not be read yet.
    #[error("the Kubernetes service account {account} is not known yet: {why}")]
    Unread {
        /// Namespace and name.
        account: String,
        /// The error of the last read, or that the API server has not answered yet.
        why: Arc<str>,
    },
    /// It does not exist any more.
    #[error("the Kubernetes service account {account} was deleted")]
    Deleted {
        /// Namespace and name.
        account: String,
    },
    /// The number belongs to an account that has changed since, or whose last pod has ended.
    #[error("the pod's service account has changed")]
    Outdated,
}

/// The service accounts that have a number.
#[derive(Debug, Default)]
pub struct Workloads {
    /// `None` if accounts have no tokens of their own.
    federation: Option<Arc<Federation>>,
    /// `None` if accounts have no tokens of their own.
    names: Option<Arc<Names>>,
    inner: Mutex<Inner>,
    /// Notified when an account is to be read.
    wanted: Notify,
    /// Number of changes to the known accounts.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Never reused, so that state kept under a number cannot be taken for another account's.
    next: u64,
    accounts: HashMap<AccountKey, Arc<Account>>,
    by_number: HashMap<WorkloadId, Arc<Account>>,
    /// Replaced numbers, whose state is still to be forgotten.
    replaced: Vec<WorkloadId>,
}

impl Inner {
    fn number(&mut self) -> WorkloadId {
        let number = WorkloadId(self.next);
        self.next += 1;
        number
    }
}

impl Workloads {
    /// Starts without accounts. Without a federation, accounts have no tokens of their own.
    pub fn new(federation: Option<Federation>) -> Self {
        let names = federation.as_ref().map(|federation| Arc::new(Names::of(federation)));
        Self { federation: federation.map(Arc::new), names, ..Self::default() }
    }

    /// `None` if accounts have no tokens of their own.
    pub fn federation(&self) -> Option<&Arc<Federation>> {
        self.federation.as_ref()
    }

    /// `None` if accounts have no tokens of their own.
    pub fn names(&self) -> Option<&Arc<Names>> {
        self.names.as_ref()
    }

    /// Whether an account in a path is that of the workload with this number. Does not wait: `None` if that is not
    /// known yet.
    pub fn is_own(&self, number: WorkloadId, account: &ServiceAccount) -> Option<bool> {
        let names = self.names.as_ref()?;
        if names.is_everybodys(account) {
            return Some(true);
        }
        self.get(number).map(|workload| names.is_own(account, &workload))
    }

    /// Whether an account is known to be a workload's own, for the token cache.
    pub fn own_accounts(self: &Arc<Self>) -> impl Fn(WorkloadId, &ServiceAccount) -> bool + Send + Sync + use<> {
        let workloads = Arc::clone(self);
        move |number, account| workloads.is_own(number, account) == Some(true)
    }

    /// The account of a pod. A new one is read in the background.
    pub fn of_pod(&self, pod: &Pod) -> Arc<Account> {
        let mut inner = self.inner.lock();
        let key = pod.account_key();
        if let Some(account) = inner.accounts.get(&key) {
            return Arc::clone(account);
        }
        let number = inner.number();
        let account = Arc::new(Account::new(Arc::clone(&key.0), Arc::clone(&key.1), number, BootTime::now()));
        inner.accounts.insert(key, Arc::clone(&account));
        inner.by_number.insert(number, Arc::clone(&account));
        drop(inner);
        self.wanted.notify_one();
        account
    }

    /// Takes over what another process knows of a pod's account, which is due to be read again at `due`, and returns its number.
    /// `None` if something else is known here.
    pub(crate) fn take_over(&self, pod: &Pod, workload: &Workload, due: BootTime) -> Option<WorkloadId> {
        let account = self.of_pod(pod);
        if account.take_over(workload, due) {
            self.changes.send_modify(|changes| *changes += 1);
        }
        account.workload().filter(|(_, known)| **known == *workload).map(|(number, _)| number)
    }

    /// When the account with this number is due to be read again.
    pub(crate) fn due(&self, number: WorkloadId) -> Option<BootTime> {
        self.account(number).map(|account| account.state.borrow().due)
    }

    /// Like [`Workloads::get`], for a pod's request about the account: the account is read again if the last read was
    /// a minute ago. `None` also if the read is overdue; [`Workloads::reread`] waits for it.
    pub fn requested(&self, number: WorkloadId) -> Option<Arc<Workload>> {
        let account = self.account(number)?;
        account.requested();
        account.recent(number, BootTime::now())
    }

    /// Like [`Workloads::get`], unless a read is overdue.
    pub fn recent(&self, number: WorkloadId) -> Option<Arc<Workload>> {
        self.account(number)?.recent(number, BootTime::now())
    }

    /// Like [`Workloads::link`], for a pod's request about the account: an overdue read comes first. If it fails, or takes longer
    /// than 500 ms, what is known stays in effect.
    pub async fn reread(&self, number: WorkloadId) -> Result<Arc<Workload>, LinkError> {
        let account = self.account(number).ok_or(LinkError::Outdated)?;
        let mut changes = account.state.subscribe();
        if changes.borrow_and_update().is_overdue(BootTime::now()) {
            self.want(&account);
            let read = changes.wait_for(|state| !state.is_overdue(BootTime::now()));
            if timeout(REREAD_TIMEOUT, read).await.is_err() {
                account.waited();
            }
        }
        self.link(number).await
    }

    /// The account with this number, without waiting. `None` if it was not read yet, does not exist any more, or has
    /// another number now.
    pub fn get(&self, number: WorkloadId) -> Option<Arc<Workload>> {
        self.account(number)?.workload_of(number)
    }

    /// The known accounts, and their numbers.
    pub fn all(&self) -> Vec<(WorkloadId, Arc<Workload>)> {
        self.inner.lock().accounts.values().filter_map(|account| account.workload()).collect()
    }

    /// A receiver that is notified when a read may have changed an account.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether an account has this number now.
    pub fn has(&self, number: WorkloadId) -> bool {
        self.inner.lock().by_number.contains_key(&number)
    }

    /// The account with this number, and its Google identity. Waits until it is read, at most 2.3 s.
    pub async fn link(&self, number: WorkloadId) -> Result<Arc<Workload>, LinkError> {
        let account = self.account(number).ok_or(LinkError::Outdated)?;
        let mut changes = account.state.subscribe();
        let deadline = Instant::now() + LINK_TIMEOUT;
        loop {
            let (due, why, is_idle) = {
                let state = changes.borrow_and_update();
                match &state.known {
                    _ if state.number != number => return Err(LinkError::Outdated),
                    Known::Workload(workload) => return Ok(Arc::clone(workload)),
                    Known::Deleted => return Err(LinkError::Deleted { account: account.to_string() }),
                    Known::Nothing => (state.due, state.failure.clone(), state.reading == Reading::Idle),
                }
            };
            let unread =
                || LinkError::Unread { account: account.to_string(), why: why.unwrap_or_else(|| NOT_ANSWERED.into()) };
            let now = BootTime::now();
            // The next read is due only after the deadline.
            if is_idle && due.since(now) > deadline.saturating_duration_since(Instant::now()) {
                return Err(unread());
            }
            let next = async {
                if is_idle {
                    sleep_until(due).await;
                    self.want(&account);
                } else {
                    // The sender is in `account`.
                    let _ = changes.changed().await;
                }
            };
            if timeout_at(deadline, next).await.is_err() {
                return Err(unread());
            }
        }
    }

    /// Requests a new read of the account with this number if the last one is at least a minute old. Called at each renewal of its
    /// tokens.
    pub fn recheck(&self, number: WorkloadId) {
        if let Some(account) = self.account(number).filter(|account| account.is_due(BootTime::now())) {
            self.want(&account);
        }
    }

    /// Requests reads of the accounts that are due.
    pub fn tend(&self, now: BootTime) {
        let due = self.inner.lock().accounts.values().filter(|account| account.want_if_due(now)).count();
        if due > 0 {
            self.wanted.notify_one();
        }
    }

    /// Requests reads of the accounts that could never be read, because the API server answers again.
    pub fn retry(&self) {
        let now = BootTime::now();
        let unread = self.inner.lock().accounts.values().filter(|account| account.want_if_unread(now)).count();
        if unread > 0 {
            self.wanted.notify_one();
        }
    }

    /// Forgets the accounts that none of these pods has, and returns their numbers and the replaced ones. The pods are
    /// listed while no account can get a number, so no number in use is forgotten.
    pub fn retain(&self, pods: impl FnOnce() -> Vec<Arc<Pod>>) -> Vec<WorkloadId> {
        let mut inner = self.inner.lock();
        let live: HashSet<_> = pods().iter().filter(|pod| !pod.ended).map(|pod| pod.account_key()).collect();
        let Inner { accounts, by_number, replaced, .. } = &mut *inner;
        let mut forgotten = std::mem::take(replaced);
        accounts.retain(|key, account| {
            let is_live = live.contains(key);
            if !is_live {
                by_number.remove(&account.number());
                forgotten.push(account.number());
            }
            is_live
        });
        forgotten
    }

    /// The replaced numbers, whose state is to be forgotten. Each is returned once, by this or by `retain`.
    pub fn replaced(&self) -> Vec<WorkloadId> {
        std::mem::take(&mut self.inner.lock().replaced)
    }

    fn want(&self, account: &Account) {
        if account.want() {
            self.wanted.notify_one();
        }
    }

    fn account(&self, number: WorkloadId) -> Option<Arc<Account>> {
        self.inner.lock().by_number.get(&number).cloned()
    }
}

/// For the reader of the accounts.
impl Workloads {
    /// The accounts to be read now, each once. Waits for the first.
    pub async fn wanted(&self) -> Vec<Arc<Account>> {
        loop {
            let wanted: Vec<_> =
                self.inner.lock().accounts.values().filter(|account| account.begin()).cloned().collect();
            if !wanted.is_empty() {
                return wanted;
            }
            self.wanted.notified().await;
        }
    }

    /// Records that an account exists. If it has changed, it gets another number.
    pub fn found(&self, account: &Arc<Account>, uid: &str, annotations: &Annotations) {
        let workload = Workload {
            namespace: Arc::clone(&account.namespace),
            name: Arc::clone(&account.name),
            uid: uid.into(),
            link: Link::parse(annotations),
        };
        match account.workload() {
            Some((number, known)) if *known == workload => {
                account.learned(Known::Workload(known), number, BootTime::now());
            }
            known => self.learned(account, Known::Workload(Arc::new(workload)), known.is_some()),
        }
    }

    /// Records that an account does not exist.
    pub fn missing(&self, account: &Arc<Account>) {
        self.learned(account, Known::Deleted, account.workload().is_some());
    }

    /// Records that an account could not be read. Its known state stays in effect. Returns the number of failures since
    /// it was last read.
    pub fn unread(account: &Account, error: &RequestError) -> u32 {
        let random = fastrand::f64();
        account.failed(&error.to_string(), error.demanded(random), BootTime::now(), random)
    }

    /// Records the state of an account. If it has changed, it gets another number, and the caller of `retain` forgets
    /// the state under the old one. The first read is no change: nothing was given out under the number.
    fn learned(&self, account: &Arc<Account>, known: Known, is_change: bool) {
        let mut inner = self.inner.lock();
        let mut number = account.number();
        // Not if the account was forgotten while it was read.
        if is_change && inner.by_number.remove(&number).is_some() {
            inner.replaced.push(number);
            number = inner.number();
            inner.by_number.insert(number, Arc::clone(account));
            tracing::info!(%account, "a service account has changed; its tokens are fetched anew");
        }
        account.learned(known, number, BootTime::now());
        drop(inner);
        self.changes.send_modify(|changes| *changes += 1);
    }
}

#[cfg(test)]
pub(crate) mod tests;
