//! [`Kept`]: the tokens of all steps that are kept for each workload.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::pace::Pace;
use super::secret::Want;
use super::stage::Stage;
use super::sts::CLOUD_PLATFORM;
use base::clock::BootTime;
use protocol::metadata::{Fingerprint, WorkloadId};
use proxy::error::Overload;
use proxy::tokens::{NoToken, TokenKind};

/// Maximum Google tokens of one workload that are being fetched or were refused recently.
const MAX_ASKS: usize = 64;

/// Maximum concurrent exchanges of one workload's Google tokens, so that a workload that invents scopes leaves room for
/// others.
const MAX_EXCHANGES: usize = 4;

/// Time since the last request after which the tokens of a workload are not renewed any more. Longer than until the
/// token cache renews a token that is in use.
const MAX_IDLE: Duration = Duration::from_secs(3600);

/// Interval between scans for expired tokens.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The tokens of every step, by workload. Google tokens are kept by the token cache; here only until it has them.
#[derive(Debug, Default)]
pub struct Kept(Mutex<ByNumber>);

#[derive(Debug, Default)]
struct ByNumber {
    stages: HashMap<WorkloadId, Arc<Stages>>,
    swept: Option<BootTime>,
}

/// The steps of one workload.
pub(super) struct Stages {
    /// Its Kubernetes token.
    pub(super) subject: Stage,
    /// Its federated token from the Security Token Service, for all Google APIs.
    pub(super) federated: Stage,
    /// Limits the concurrent exchanges of its Google tokens.
    pub(super) permits: Arc<Semaphore>,
    /// Limits the rate of these exchanges.
    pub(super) pace: Pace,
    /// The same for those that are bound to a certificate.
    pub(super) bound_pace: Pace,
    /// Time of the last request for one of its tokens, in nanoseconds of [`BootTime`]. 0 if there was none.
    asked: AtomicU64,
    google: Mutex<HashMap<Ask, Stage>>,
}

/// The Google token that is requested.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    pub(super) kind: TokenKind,
    /// Scopes, separated by commas, or an audience. Empty for the default scopes.
    pub(super) what: Box<str>,
    /// The certificate that it is bound to.
    pub(super) bound_to: Option<Box<Fingerprint>>,
}

impl Ask {
    /// The token that pods request first.
    pub(super) fn default_token() -> Self {
        Self { kind: TokenKind::Access, what: Box::default(), bound_to: None }
    }

    pub(super) fn is_default_token(&self) -> bool {
        *self == Self::default_token()
    }

    /// The scopes to request from the Security Token Service, separated by spaces.
    pub(super) fn scopes(&self) -> String {
        if self.what.is_empty() { CLOUD_PLATFORM.to_owned() } else { self.what.replace(',', " ") }
    }

    /// The required freshness of a token that was not collected yet. Each identity token should be used only once, and soon.
    pub(super) fn want(&self) -> Want {
        match self.kind {
            TokenKind::Access => Want::Young,
            TokenKind::Identity => Want::Recent,
        }
    }
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            subject: Stage::default(),
            federated: Stage::default(),
            permits: Arc::new(Semaphore::new(MAX_EXCHANGES)),
            pace: Pace::default(),
            bound_pace: Pace::default(),
            asked: AtomicU64::new(0),
            google: Mutex::default(),
        }
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stages").field("google", &self.google.lock().len()).finish_non_exhaustive()
    }
}

impl Kept {
    /// Deletes the tokens of a workload that is gone. They are wiped with the last flight that has them.
    pub fn forget(&self, number: WorkloadId) {
        self.0.lock().stages.remove(&number);
    }

    /// The steps of a workload.
    pub(super) fn of(&self, number: WorkloadId, now: BootTime) -> Arc<Stages> {
        let mut by_number = self.0.lock();
        if by_number.swept.is_none_or(|swept| now.since(swept) >= SWEEP_INTERVAL) {
            by_number.swept = Some(now);
            by_number.stages.values().for_each(|stages| stages.sweep(now));
        }
        Arc::clone(by_number.stages.entry(number).or_default())
    }

    /// The steps of a workload, if something is kept for it.
    pub(super) fn find(&self, number: WorkloadId) -> Option<Arc<Stages>> {
        self.0.lock().stages.get(&number).cloned()
    }

    /// The steps of all workloads.
    pub(super) fn all(&self) -> Vec<Arc<Stages>> {
        self.0.lock().stages.values().cloned().collect()
    }

    /// The number of workloads in use, and those whose Kubernetes or federated token is due for renewal, with its end. The one that
    /// ends first is first.
    pub(super) fn aging(&self, now: BootTime) -> (usize, Vec<(BootTime, WorkloadId)>) {
        let by_number = self.0.lock();
        let in_use = by_number.stages.iter().filter(|(_, stages)| stages.is_in_use(now));
        let mut count = 0;
        let mut aging: Vec<_> = in_use
            .inspect(|_| count += 1)
            .filter_map(|(number, stages)| Some((stages.aging_until(now)?, *number)))
            .collect();
        aging.sort_unstable();
        (count, aging)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().stages.is_empty()
    }
}

impl Stages {
    /// Records a request for a token.
    pub(super) fn asked(&self, now: BootTime) {
        self.asked.store(now.as_nanos(), Relaxed);
    }

    /// Time of the last request for a token, in nanoseconds of [`BootTime`]. 0 if there was none.
    pub(super) fn last_asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// The Google tokens that are not collected yet, and refusals.
    pub(super) fn google_stages(&self) -> Vec<(Ask, Stage)> {
        self.google.lock().iter().map(|(ask, stage)| (ask.clone(), stage.clone())).collect()
    }

    /// Whether a token was requested.
    pub(super) fn were_asked(&self) -> bool {
        self.asked.load(Relaxed) > 0
    }

    fn is_in_use(&self, now: BootTime) -> bool {
        now.since(BootTime::from_nanos(self.asked.load(Relaxed))) < MAX_IDLE
    }

    /// The earliest expiry of those of its Kubernetes and federated tokens that are due for renewal.
    fn aging_until(&self, now: BootTime) -> Option<BootTime> {
        [&self.subject, &self.federated].into_iter().filter_map(|stage| stage.aging_until(now)).min()
    }

    /// The step for a Google token.
    pub(super) fn google_token(&self, ask: &Ask, now: BootTime) -> Result<Stage, NoToken> {
        let mut google = self.google.lock();
        if let Some(stage) = google.get(ask) {
            return Ok(stage.clone());
        }
        if google.len() >= MAX_ASKS {
            google.retain(|ask, stage| !stage.sweep(ask.want(), now));
        }
        if google.len() >= MAX_ASKS {
            // Refused and uncollected tokens give way.
            google.retain(|_, stage| stage.is_flying());
        }
        if google.len() >= MAX_ASKS && !ask.is_default_token() {
            return Err(NoToken::Overloaded(Overload::Tokens));
        }
        Ok(google.entry(ask.clone()).or_default().clone())
    }

    /// Records that the token cache has the token of this step now.
    pub(super) fn collected(&self, ask: &Ask, stage: &Stage) {
        let mut google = self.google.lock();
        if google.get(ask).is_some_and(|known| known == stage && !known.is_flying()) {
            google.remove(ask);
        }
    }

    #[cfg(test)]
    pub(super) fn google_is_empty(&self) -> bool {
        self.google.lock().is_empty()
    }

    fn sweep(&self, now: BootTime) {
        self.subject.sweep(Want::Valid, now);
        self.federated.sweep(Want::Valid, now);
        self.google.lock().retain(|ask, stage| !stage.sweep(ask.want(), now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(number: usize) -> Ask {
        Ask { kind: TokenKind::Access, what: number.to_string().into(), bound_to: None }
    }

    #[test]
    fn a_workload_that_invents_scopes_takes_bounded_memory() {
        let (kept, now) = (Kept::default(), BootTime::now());
        let stages = kept.of(WorkloadId(1), now);
        for number in 0..1000 {
            stages.google_token(&ask(number), now).expect("nothing is under way");
        }
        assert!(stages.google.lock().len() <= MAX_ASKS);
        let stage = stages.google_token(&ask(999), now).expect("room");
        stages.collected(&ask(999), &stage);
        assert!(!stages.google.lock().contains_key(&ask(999)));
    }

    #[test]
    fn what_is_forgotten_begins_anew() {
        let (kept, now) = (Kept::default(), BootTime::now());
        let (one, other) = (kept.of(WorkloadId(1), now), kept.of(WorkloadId(2), now));
        kept.forget(WorkloadId(1));
        assert!(!Arc::ptr_eq(&kept.of(WorkloadId(1), now), &one));
        assert!(Arc::ptr_eq(&kept.of(WorkloadId(2), now), &other));
    }
}
