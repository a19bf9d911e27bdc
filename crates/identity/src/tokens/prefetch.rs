//! [`prefetch`]: fetches the tokens that pods request first, in advance.
//!
//! A pod is known from the moment it is scheduled on this node, seconds before its first container runs. Its account is
//! read then (`workloads`), and if it is likely to request a token, the token is fetched for the first request to
//! collect. At most [`MAX_AT_ONCE`] are fetched at a time. No request waits for a place here: it begins its own
//! exchange, or joins the one in progress for its account.
//!
//! # Quota
//!
//! Google allows 6,000 exchanges a minute for all nodes of a project. So fetches that can wait are spread:
//!
//! - Pods that were scheduled before the proxy started, over [`START_SPREAD`]: all proxies of a cluster may be updated at
//!   once, and such pods are rarely at their first request.
//! - More than [`BURST`] new accounts within [`BURST_SPREAD`], over that time.
//! - After a failure at Google nothing is fetched in advance for a while, for longer each time. When the quota at IAM of one account's
//!   project is used up, only that account pauses.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::WorkloadSource;
use crate::pods::AccountKey;
use crate::workloads::{Prefetch, Workload};
use base::backoff::{Backoff, Jitter};
use base::clock::{BootTime, sleep_until};
use protocol::metadata::WorkloadId;
use proxy::failure::{ExchangeFailure, TokenFailure, Withheld};
use proxy::tokens::NoToken;

/// Maximum accounts for which tokens are fetched at once.
const MAX_AT_ONCE: usize = 4;

/// Time over which the accounts of pods that were scheduled before the proxy started are spread. 1,000 nodes with 50
/// accounts each take 5,000 of the 6,000 exchanges that Google allows a minute.
pub(super) const START_SPREAD: Duration = Duration::from_secs(600);

/// Number of new accounts whose tokens are fetched at once, and time over which further ones are spread.
const BURST: usize = 20;
const BURST_SPREAD: Duration = Duration::from_secs(30);

/// Pause of an account after a failure at the API server, or when the quota of its project is used up.
const OWN_PAUSE: Duration = Duration::from_secs(120);

/// Initial and maximum pause of all accounts after a failure at Google.
const BACK_OFF: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_secs(600)).with(JITTER);

/// Jitter of pauses: never shorter, and not the same on all nodes.
const JITTER: Jitter = Jitter(1.0, 1.5);

/// Maximum number of remembered accounts without a link that have requested a token.
const MAX_ASKERS: usize = 256;

/// The accounts without a link whose pods have requested a token. Most such accounts never do.
#[derive(Debug, Default)]
pub(super) struct Askers(Mutex<HashSet<AccountKey>>);

impl Askers {
    /// Records a request by a pod of this account.
    pub(super) fn saw(&self, workload: &Workload) {
        let mut seen = self.0.lock();
        let key = workload.key();
        if seen.len() >= MAX_ASKERS && !seen.contains(&key) {
            // Most of these accounts are gone. Those in use are recorded again.
            seen.clear();
        }
        seen.insert(key);
    }

    pub(super) fn has(&self, workload: &Workload) -> bool {
        self.0.lock().contains(&workload.key())
    }
}

/// Fetches tokens before they are requested, forever.
pub async fn prefetch(source: Arc<WorkloadSource>) -> Infallible {
    if source.means.federation.prefetch == Prefetch::None {
        return pending().await;
    }
    let mut changes = source.means.workloads.subscribe();
    let running = running(&source).await;
    let mut plan = Plan::new(running, BootTime::now());
    let mut fetching = JoinSet::new();
    loop {
        plan.take_in(&wanted(&source), BootTime::now(), fastrand::f64);
        let next = plan.next().filter(|_| fetching.len() < MAX_AT_ONCE);
        tokio::select! {
            _ = changes.changed() => {}
            () = until(next) => {
                if let Some(number) = plan.begin() {
                    let source = Arc::clone(&source);
                    fetching.spawn(async move { (number, source.prepare(number).await) });
                }
            }
            Some(ended) = fetching.join_next() => {
                // The outcome for an account that is gone says nothing about the servers.
                if let Ok((number, outcome)) = ended && source.means.workloads.has(number) {
                    plan.ended(number, outcome, BootTime::now(), fastrand::f64());
                }
            }
        }
    }
}

async fn until(moment: Option<BootTime>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// The accounts of the pods in the API server's first list.
async fn running(source: &WorkloadSource) -> HashSet<AccountKey> {
    let pods = &source.means.pods;
    pods.known().await;
    let pods = pods.all();
    pods.iter().filter(|pod| !pod.ended).map(|pod| pod.account_key()).collect()
}

/// The accounts whose tokens are to be fetched.
fn wanted(source: &WorkloadSource) -> Vec<(WorkloadId, AccountKey)> {
    let is_all = source.means.federation.prefetch == Prefetch::All;
    let is_wanted = |workload: &Workload| {
        let link = workload.link.as_ref();
        link.is_ok_and(|link| is_all || link.google_account.is_some() || source.askers.has(workload))
    };
    let known = source.means.workloads.all().into_iter();
    known.filter(|(_, workload)| is_wanted(workload)).map(|(number, workload)| (number, workload.key())).collect()
}

/// The schedule of the fetches.
#[derive(Debug, Default)]
struct Plan {
    /// The accounts whose pods were scheduled before the proxy started, for a while after that.
    running: HashSet<AccountKey>,
    began: Option<BootTime>,
    /// Accounts that are planned, or were.
    taken_in: HashSet<WorkloadId>,
    queue: BinaryHeap<Reverse<(BootTime, WorkloadId)>>,
    /// Times at which the last new accounts were taken in.
    burst: Vec<BootTime>,
    /// Nothing is fetched before this time.
    paused_until: Option<BootTime>,
    failures: u32,
}

impl Plan {
    fn new(running: HashSet<AccountKey>, now: BootTime) -> Self {
        Self { running, began: Some(now), ..Self::default() }
    }

    /// Plans the accounts that are new among `wanted`, which must be complete. `jitter` is between 0 and 1.
    fn take_in(&mut self, wanted: &[(WorkloadId, AccountKey)], now: BootTime, jitter: impl Fn() -> f64) {
        let numbers: HashSet<_> = wanted.iter().map(|(number, _)| *number).collect();
        self.taken_in.retain(|number| numbers.contains(number));
        self.queue.retain(|Reverse((_, number))| numbers.contains(number));
        if self.began.is_some_and(|began| now.since(began) >= START_SPREAD) {
            self.running.clear();
        }
        self.burst.retain(|taken| now.since(*taken) < BURST_SPREAD);
        for (number, account) in wanted {
            if !self.taken_in.insert(*number) {
                continue;
            }
            // Only once: a changed account has another number, and is fetched at once.
            let spread = if self.running.remove(account) {
                START_SPREAD
            } else {
                let is_burst = self.burst.len() >= BURST;
                self.burst.push(now);
                if is_burst { BURST_SPREAD } else { Duration::ZERO }
            };
            self.queue.push(Reverse((now + spread.mul_f64(jitter()), *number)));
        }
    }

    /// Time to begin the next fetch.
    fn next(&self) -> Option<BootTime> {
        let Reverse((due, _)) = self.queue.peek()?;
        Some(self.paused_until.map_or(*due, |until| until.max(*due)))
    }

    /// Begins the next fetch.
    fn begin(&mut self) -> Option<WorkloadId> {
        self.queue.pop().map(|Reverse((_, number))| number)
    }

    /// Records the outcome of a fetch. After a failure it is tried again; after a refusal it is left to the next
    /// request, which is told the reason.
    fn ended(&mut self, number: WorkloadId, outcome: Result<Prepared, NoToken>, now: BootTime, jitter: f64) {
        match outcome {
            Ok(Prepared::Fetched) => self.failures = 0,
            Ok(Prepared::Needless) => {}
            Err(why) if is_its_own(&why) => self.queue.push(Reverse((now + JITTER.of(OWN_PAUSE, jitter), number))),
            Err(why) if !why.is_outage() => {}
            Err(_) => {
                // Failures of fetches that ran together count once.
                if self.paused_until.is_none_or(|until| until <= now) {
                    self.failures = self.failures.saturating_add(1);
                    self.paused_until = Some(now + BACK_OFF.wait(self.failures, jitter));
                }
                self.queue.push(Reverse((now, number)));
            }
        }
    }
}

/// Outcome of the fetch of an account's first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prepared {
    Fetched,
    /// Its pods have requested one already.
    Needless,
}

/// Whether a failure concerns one account and may pass: the API server's answer about it, or a quota that others do not share.
fn is_its_own(why: &NoToken) -> bool {
    match why {
        NoToken::Refused(refused) => refused.withheld == Some(Withheld::Project),
        NoToken::Failed(failure) => {
            use ExchangeFailure::{Account, Kubernetes, KubernetesRefused};
            matches!(**failure, TokenFailure::Exchange(Account(_) | Kubernetes(_) | KubernetesRefused(_), _))
        }
        NoToken::Overloaded(_) => false,
    }
}

impl WorkloadSource {
    /// Fetches the token that an account's pods request first, unless they have requested one already.
    async fn prepare(&self, number: WorkloadId) -> Result<Prepared, NoToken> {
        let steps = self.steps(number).await?;
        if steps.stages.were_asked() {
            return Ok(Prepared::Needless);
        }
        steps.prepare().await?;
        steps.stages.asked(BootTime::now());
        Ok(Prepared::Fetched)
    }
}

#[cfg(test)]
mod tests;
