//! [`Stage`]: a token that is kept for the next step, fetched by one flight for all that wait for it.
//!
//! It is not a second token cache. The token cache keeps the tokens that are given to pods: it charges each token to a
//! pod, evicts it for another pod, and refreshes it while pods request it. A stage keeps a token that no pod gets to
//! see, one for each step of a workload, and rests after a failure for as long as the response of the step's server
//! requires. If these tokens were in the token cache, its source would have to call the cache that calls it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::TIMEOUT;
use super::halt::{Halt, no_token, resting};
use super::haste::Haste;
use super::secret::{Secret, Want};
use base::clock::BootTime;
use proxy::failure::ExchangeFailure;
use proxy::single_flight::{Landing, Remembered, SingleFlight};
use proxy::tokens::{NoToken, Urgency};

/// Maximum time of a flight. Each of its requests has a deadline of its own.
pub(super) const MAX_FLIGHT: Duration = Duration::from_secs(30);

/// Maximum time to wait for a renewal while there is a valid token.
const MAX_RENEWAL_WAIT: Duration = Duration::from_secs(1);

/// Time after the end of a rest within which the next failure still counts as the same trouble, so that the step rests
/// longer.
const SAME_TROUBLE: Duration = Duration::from_secs(60);

/// The result of a flight.
type Outcome = Result<Arc<Secret>, NoToken>;

/// A failure that is the answer, and the number of consecutive ones.
pub(super) type Failed = (Remembered<NoToken>, u32);

/// A kept token, and its flight. A clone is the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stage(SingleFlight<State, Outcome>);

#[derive(Debug, Default)]
struct State {
    kept: Option<Arc<Secret>>,
    failed: Option<Remembered<NoToken>>,
    /// That of the last flight.
    haste: Haste,
    /// Consecutive failures since the last token, each within [`SAME_TROUBLE`] after the rest before it, that
    /// [count](super::rest::Rest::is_counted).
    failures: u32,
}

/// The immediate result.
enum Look {
    Kept(Arc<Secret>),
    Failed(NoToken),
    /// A flight, a fallback token, and the urgency of the flight.
    Flying(Landing<Outcome>, Option<Arc<Secret>>, Haste),
}

impl Stage {
    /// Returns the token. Begins a flight with `work` if needed, and waits for it until `deadline`. `work` is told its
    /// urgency: [`Urgency::Background`] if there is a valid token, or [`Urgency::Soon`] if a caller waits and that token ends
    /// soon. A flight that began for nobody becomes urgent once a caller waits for it without a token. If it fails
    /// nevertheless, that caller begins another.
    pub(super) async fn get<W, F>(&self, want: Want, (deadline, haste): (Instant, &Haste), work: W) -> Outcome
    where
        W: FnOnce(Haste) -> F,
        F: Future<Output = Result<Secret, Halt>> + Send + 'static,
    {
        let mut work = Some(work);
        loop {
            let (mut landing, otherwise, flight) = match self.look(want, haste.now(), &mut work) {
                Look::Kept(secret) => return Ok(secret),
                Look::Failed(why) => return Err(why),
                Look::Flying(landing, otherwise, flight) => (landing, otherwise, flight),
            };
            // A caller with a valid token waits only briefly.
            let deadline = otherwise.as_ref().map_or(deadline, |_| deadline.min(Instant::now() + MAX_RENEWAL_WAIT));
            let result = async {
                tokio::select! {
                    biased;
                    result = landing.result() => return result,
                    // At once, or when a client joins the caller's own flight.
                    () = haste.demanded(), if otherwise.is_none() => flight.hurry(),
                }
                landing.result().await
            };
            let outcome = match timeout_at(deadline, result).await {
                Ok(Some(outcome)) => outcome,
                // The deadline, or a panic in the flight.
                Ok(None) | Err(_) => Err(slow()),
            };
            let outcome = outcome.or_else(|why| otherwise.filter(|kept| kept.is_valid(BootTime::now())).ok_or(why));
            let is_anothers = flight.began.is_background() && !haste.now().is_background() && work.is_some();
            if outcome.is_ok() || !is_anothers || Instant::now() >= deadline {
                return outcome;
            }
        }
    }

    /// Takes `work` if it begins a flight.
    fn look<W, F>(&self, want: Want, urgency: Urgency, work: &mut Option<W>) -> Look
    where
        W: FnOnce(Haste) -> F,
        F: Future<Output = Result<Secret, Halt>> + Send + 'static,
    {
        let now = BootTime::now();
        let mut state = self.0.lock();
        state.kept.take_if(|kept| !kept.is_of_use(want, now));
        let kept = state.kept.clone();
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_good(want, now)) {
            return Look::Kept(Arc::clone(kept));
        }
        if let Some(failed) = state.failed.as_ref().filter(|failed| failed.at(now).is_some()) {
            let resting = || Look::Failed(resting(failed.what.clone(), failed.until.since(now)));
            return kept.map_or_else(resting, Look::Kept);
        }
        let urgency = match &kept {
            Some(kept) if !kept.ends_soon(now) => Urgency::Background,
            Some(_) if urgency == Urgency::Demanded => Urgency::Soon,
            _ => urgency,
        };
        if state.flight().is_none() {
            state.haste = urgency.into();
        }
        let haste = state.haste.clone();
        let landing = state.join(
            || {
                let work = work.take().expect("it is taken once: no later look follows a flight of its own");
                timeout(MAX_FLIGHT, work(haste.clone()))
            },
            |state, outcome| state.land(outcome.unwrap_or_else(|_| Err(slow().into()))),
        );
        match kept {
            Some(kept) if want == Want::Valid => Look::Kept(kept),
            kept => Look::Flying(landing, kept, haste),
        }
    }

    /// The token, and the refusal that is the answer now, with the number of failures.
    pub(super) fn known(&self, now: BootTime) -> (Option<Arc<Secret>>, Option<Failed>) {
        let state = self.0.read();
        let kept = state.kept.clone().filter(|kept| kept.is_valid(now));
        let failed = state.failed.clone().filter(|failed| failed.at(now).is_some());
        (kept, failed.map(|failed| (failed, state.failures)))
    }

    /// Takes over what another process knows, if nothing is known here and no flight is under way. Returns whether it did.
    pub(super) fn take_over(&self, kept: Option<Secret>, failed: Option<Failed>) -> bool {
        let mut state = self.0.lock();
        let is_free = state.kept.is_none() && state.failed.is_none() && state.flight().is_none();
        if is_free {
            let (failed, failures) = failed.map_or((None, 0), |(failed, failures)| (Some(failed), failures));
            (state.kept, state.failed, state.failures) = (kept.map(Arc::new), failed, failures);
        }
        is_free
    }

    /// Drops a token that was refused, unless it was replaced meanwhile.
    pub(super) fn reject(&self, secret: &Arc<Secret>) {
        self.0.lock().kept.take_if(|kept| Arc::ptr_eq(kept, secret));
    }

    /// Makes a token due for renewal at this time, unless it is earlier or was replaced meanwhile. It stays in use until then.
    pub(super) fn is_due_at(&self, secret: &Arc<Secret>, due: BootTime) {
        let mut state = self.0.lock();
        if let Some(kept) = state.kept.as_mut().filter(|kept| Arc::ptr_eq(kept, secret)) {
            *kept = Arc::new(kept.due_at(due));
        }
    }

    /// Drops an expired token, which wipes it from memory. Returns whether nothing is left to remember.
    pub(super) fn sweep(&self, want: Want, now: BootTime) -> bool {
        let mut state = self.0.lock();
        state.kept.take_if(|kept| !kept.is_of_use(want, now));
        state.failed.take_if(|failed| now > failed.until + SAME_TROUBLE);
        state.kept.is_none() && state.flight().is_none() && state.failed.is_none()
    }

    /// Whether there is a valid token.
    pub(super) fn has_valid(&self, now: BootTime) -> bool {
        self.0.read().kept.as_ref().is_some_and(|kept| kept.is_valid(now))
    }

    /// When its token ends, if it is due for renewal.
    pub(super) fn aging_until(&self, now: BootTime) -> Option<BootTime> {
        self.0.read().kept.as_ref().filter(|kept| kept.is_valid(now) && !kept.is_young(now)).map(|kept| kept.expires)
    }

    /// The token, if it is valid and a flight would begin to renew it.
    pub(super) fn aging(&self, now: BootTime) -> Option<Arc<Secret>> {
        let state = self.0.read();
        let kept = state.kept.clone().filter(|kept| kept.is_valid(now) && !kept.is_young(now))?;
        let is_resting = state.failed.as_ref().is_some_and(|failed| failed.at(now).is_some());
        (state.flight().is_none() && !is_resting).then_some(kept)
    }

    /// Whether there is a token that should be renewed.
    pub(super) fn is_aging(&self, now: BootTime) -> bool {
        self.aging_until(now).is_some()
    }

    /// Waits for the flight in progress, if there is one.
    pub(super) async fn settled(&self) {
        let flight = self.0.read().flight().cloned();
        if let Some(mut flight) = flight {
            flight.result().await;
        }
    }

    /// Whether a flight is in progress.
    pub(super) fn is_flying(&self) -> bool {
        self.0.read().flight().is_some()
    }
}

impl State {
    fn land(&mut self, outcome: Result<Secret, Halt>) -> Outcome {
        match outcome {
            Ok(secret) => {
                let secret = Arc::new(secret);
                *self = Self { kept: Some(Arc::clone(&secret)), ..Self::default() };
                Ok(secret)
            }
            Err(Halt { why, rest }) => {
                let now = BootTime::now();
                let is_same = self.failed.as_ref().is_some_and(|failed| now <= failed.until + SAME_TROUBLE);
                let before = if is_same { self.failures } else { 0 };
                let valid_until = self.kept.as_ref().filter(|kept| kept.is_valid(now)).map(|kept| kept.valid_until());
                self.failures = before.saturating_add(rest.is_counted(valid_until.is_some()).into());
                let random = fastrand::f64();
                let until = |has_token| now + rest.time(self.failures, has_token, random);
                // A token allows a longer rest, but only while it is there.
                let until = match valid_until {
                    Some(end) => until(true).min(until(false).max(end)),
                    None => until(false),
                };
                self.failed = Some(Remembered::until(why.clone(), until));
                Err(resting(why, until.since(now)))
            }
        }
    }
}

/// The caller knows the server that the token waits for.
fn slow() -> NoToken {
    no_token(ExchangeFailure::Slow(None, TIMEOUT))
}

#[cfg(test)]
mod tests;
