//! [`prefetch`]: fetches the tokens that pods ask for first, before they ask.
//!
//! A pod is known from the moment it is scheduled on this node, seconds before its first container runs. Its account is
//! read then (`workloads`), and if it is likely to ask for a token, the token is fetched for the first request to
//! collect. At most [`MAX_AT_ONCE`] are fetched at a time. Nobody waits for a place here: a request begins its own
//! exchange, or joins the one that is under way for its account.
//!
//! # Quota
//!
//! Google allows 6,000 exchanges a minute for all nodes of a project. So what can wait is spread:
//!
//! - Pods that ran before the proxy did, over [`START_SPREAD`]: all proxies of a cluster may be updated at once, and
//!   such pods are rarely at their first request.
//! - More than [`BURST`] new accounts within [`BURST_SPREAD`], over that time.
//! - After a failure nothing is fetched for a while, for longer each time. Requests still are.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use super::WorkloadSource;
use crate::clock::{BootTime, sleep_until};
use crate::metadata::WorkloadId;
use crate::tokens::NoToken;
use crate::workloads::{Prefetch, Workload};

/// Maximum accounts for which tokens are fetched at once.
const MAX_AT_ONCE: usize = 4;

/// Over how long accounts are spread whose pods ran before the proxy did. 1,000 nodes with 50 accounts each take 5,000
/// of the 6,000 exchanges that Google allows a minute.
pub(super) const START_SPREAD: Duration = Duration::from_secs(600);

/// New accounts whose tokens are fetched at once, and over how long others are spread.
const BURST: usize = 20;
const BURST_SPREAD: Duration = Duration::from_secs(30);

/// First and longest pauses after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Maximum accounts without a link that are remembered to have asked.
const MAX_ASKERS: usize = 256;

/// Namespace and name of an account.
type AccountKey = (Arc<str>, Arc<str>);

/// The accounts without a link whose pods have asked for a token. Most of these never do.
#[derive(Debug, Default)]
pub(super) struct Askers(Mutex<HashSet<AccountKey>>);

impl Askers {
    /// A pod of this account asks.
    pub(super) fn saw(&self, workload: &Workload) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < MAX_ASKERS {
            seen.insert(key_of(workload));
        }
    }

    pub(super) fn has(&self, workload: &Workload) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&key_of(workload))
    }
}

fn key_of(workload: &Workload) -> AccountKey {
    (Arc::clone(&workload.namespace), Arc::clone(&workload.name))
}

/// Fetches tokens before they are asked for, for ever.
pub async fn prefetch(source: Arc<WorkloadSource>) -> Infallible {
    if source.means.federation.prefetch == Prefetch::None {
        return pending().await;
    }
    let mut changes = source.means.workloads.subscribe();
    let mut plan = Plan::new(running(&source).await);
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
            Some(Ok((number, outcome))) = fetching.join_next() => {
                let is_of_use = source.means.workloads.has(number);
                plan.ended(number, outcome.as_ref().err().filter(|_| is_of_use), BootTime::now(), fastrand::f64());
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

/// The accounts of the pods that the API server lists first.
async fn running(source: &WorkloadSource) -> HashSet<AccountKey> {
    let pods = &source.means.pods;
    let mut changes = pods.subscribe();
    while pods.age().is_none() {
        // The sender is in `pods`.
        let _ = changes.changed().await;
    }
    pods.all().iter().map(|pod| (Arc::clone(&pod.namespace), Arc::clone(&pod.account))).collect()
}

/// The accounts whose tokens are to be fetched.
fn wanted(source: &WorkloadSource) -> Vec<(WorkloadId, AccountKey)> {
    let is_all = source.means.federation.prefetch == Prefetch::All;
    let is_wanted = |workload: &Workload| {
        let link = workload.link.as_ref();
        link.is_ok_and(|link| is_all || link.google_account.is_some() || source.askers.has(workload))
    };
    let known = source.means.workloads.all().into_iter();
    known.filter(|(_, workload)| is_wanted(workload)).map(|(number, workload)| (number, key_of(&workload))).collect()
}

/// What is fetched when.
#[derive(Debug, Default)]
struct Plan {
    /// The accounts whose pods ran before the proxy did.
    running: HashSet<AccountKey>,
    /// Those that are planned, or were.
    taken_in: HashSet<WorkloadId>,
    queue: BinaryHeap<Reverse<(BootTime, WorkloadId)>>,
    /// When the last new accounts were taken in.
    burst: Vec<BootTime>,
    /// Nothing is fetched before.
    paused_until: Option<BootTime>,
    failures: u32,
}

impl Plan {
    fn new(running: HashSet<AccountKey>) -> Self {
        Self { running, ..Self::default() }
    }

    /// Plans those that are new among `wanted`, which are all there are. `jitter` is between 0 and 1.
    fn take_in(&mut self, wanted: &[(WorkloadId, AccountKey)], now: BootTime, jitter: impl Fn() -> f64) {
        let numbers: HashSet<_> = wanted.iter().map(|(number, _)| *number).collect();
        self.taken_in.retain(|number| numbers.contains(number));
        self.queue.retain(|Reverse((_, number))| numbers.contains(number));
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

    /// When to begin the next.
    fn next(&self) -> Option<BootTime> {
        let Reverse((due, _)) = self.queue.peek()?;
        Some(self.paused_until.map_or(*due, |until| until.max(*due)))
    }

    /// Begins the next.
    fn begin(&mut self) -> Option<WorkloadId> {
        self.queue.pop().map(|Reverse((_, number))| number)
    }

    /// Records how it ended. What failed is tried again; what was refused is left to who asks, and is told why.
    fn ended(&mut self, number: WorkloadId, failure: Option<&NoToken>, now: BootTime, jitter: f64) {
        match failure {
            None => self.failures = 0,
            Some(NoToken::Refused(refused)) if refused.status.is_client_error() => {}
            Some(NoToken::Refused(_) | NoToken::Failed(_) | NoToken::Overloaded(_)) => {
                let pause = PAUSES.0.saturating_mul(1 << self.failures.min(16)).min(PAUSES.1);
                // Those that were under way together count once.
                if self.paused_until.is_none_or(|until| until <= now) {
                    self.failures += 1;
                    self.paused_until = Some(now + pause.mul_f64(1.0 + 0.5 * jitter));
                }
                self.queue.push(Reverse((now, number)));
            }
        }
    }
}

impl WorkloadSource {
    /// Has the token fetched that an account's pods ask for first.
    async fn prepare(&self, number: WorkloadId) -> Result<(), NoToken> {
        let steps = self.steps(number).await?;
        steps.stages.asked(BootTime::now());
        steps.prepare().await
    }
}

#[cfg(test)]
mod tests;
