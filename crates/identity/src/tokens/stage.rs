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
    /// Whether the last flight began for nobody that waits.
    is_background: bool,
    /// Consecutive failures since the last token, each within [`SAME_TROUBLE`] after the rest before it, that
    /// [count](super::rest::Rest::is_counted).
    failures: u32,
}

/// The immediate result.
enum Look {
    Kept(Arc<Secret>),
    Failed(NoToken),
    /// A flight, a fallback token, and whether the flight began in the background.
    Flying(Landing<Outcome>, Option<Arc<Secret>>, bool),
}

impl Stage {
    /// Returns the token. Begins a flight with `work` if needed, and waits for it until `deadline`. `work` is told its
    /// urgency: [`Urgency::Background`] if there is a valid token that does not end soon. If a flight that nobody waited
    /// for fails, a caller that waits begins another one.
    pub(super) async fn get<W, F>(&self, want: Want, (deadline, urgency): (Instant, Urgency), work: W) -> Outcome
    where
        W: FnOnce(Urgency) -> F,
        F: Future<Output = Result<Secret, Halt>> + Send + 'static,
    {
        let mut work = Some(work);
        loop {
            let (mut landing, otherwise, is_background) = match self.look(want, urgency, &mut work) {
                Look::Kept(secret) => return Ok(secret),
                Look::Failed(why) => return Err(why),
                Look::Flying(landing, otherwise, is_background) => (landing, otherwise, is_background),
            };
            // A caller with a valid token waits only briefly.
            let deadline = otherwise.as_ref().map_or(deadline, |_| deadline.min(Instant::now() + MAX_RENEWAL_WAIT));
            let outcome = match timeout_at(deadline, landing.result()).await {
                Ok(Some(outcome)) => outcome,
                // The deadline, or a panic in the flight.
                Ok(None) | Err(_) => Err(slow()),
            };
            let outcome = outcome.or_else(|why| otherwise.filter(|kept| kept.is_valid(BootTime::now())).ok_or(why));
            let is_anothers = is_background && urgency == Urgency::Demanded && work.is_some();
            if outcome.is_ok() || !is_anothers || Instant::now() >= deadline {
                return outcome;
            }
        }
    }

    /// Takes `work` if it begins a flight.
    fn look<W, F>(&self, want: Want, urgency: Urgency, work: &mut Option<W>) -> Look
    where
        W: FnOnce(Urgency) -> F,
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
        let has_time = kept.as_ref().is_some_and(|kept| !kept.ends_soon(now));
        let urgency = if has_time { Urgency::Background } else { urgency };
        if state.flight().is_none() {
            state.is_background = urgency == Urgency::Background;
        }
        let landing = state.join(
            || {
                let work = work.take().expect("it is taken once: no later look follows a flight of its own");
                timeout(MAX_FLIGHT, work(urgency))
            },
            |state, outcome| state.land(outcome.unwrap_or_else(|_| Err(slow().into()))),
        );
        match kept {
            Some(kept) if want == Want::Valid => Look::Kept(kept),
            kept => Look::Flying(landing, kept, state.is_background),
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::time::sleep;
    use zeroize::Zeroizing;

    use super::super::rest::Rest;
    use super::*;

    /// Counts flights, and sets their results and their durations in milliseconds.
    struct Work {
        begun: Arc<AtomicUsize>,
        takes: u64,
        rest: Option<Rest>,
    }

    impl Work {
        fn new() -> Self {
            Self { begun: Arc::default(), takes: 100, rest: None }
        }

        async fn get(&self, stage: &Stage, want: Want) -> Result<String, String> {
            let deadline = Instant::now() + Duration::from_secs(2);
            let (begun, takes, rest) = (Arc::clone(&self.begun), self.takes, self.rest);
            let work = |_| async move {
                let number = begun.fetch_add(1, SeqCst) + 1;
                let asked = BootTime::now();
                sleep(Duration::from_millis(takes)).await;
                match rest {
                    None => Ok(Secret::new(Zeroizing::new(number.to_string()), asked, Duration::from_secs(3600))),
                    Some(rest) => Err(Halt { why: no_token(ExchangeFailure::Sts(number.to_string())), rest }),
                }
            };
            let got = stage.get(want, (deadline, Urgency::Demanded), work).await;
            got.map(|secret| secret.text.to_string()).map_err(|why| why.to_string())
        }
    }

    const SLOW: &str = "no answer came within 2400 ms; it is still being waited for";

    #[tokio::test(start_paused = true)]
    async fn a_request_is_told_at_its_deadline_and_the_next_one_gets_the_token() {
        let (stage, mut work) = (Stage::default(), Work::new());
        work.takes = 2500;
        let (one, other) = tokio::join!(work.get(&stage, Want::Young), work.get(&stage, Want::Young));
        assert_eq!((one, other), (Err(SLOW.to_owned()), Err(SLOW.to_owned())));
        let began = Instant::now();
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("1"));
        assert_eq!(began.elapsed(), Duration::from_millis(500), "it goes on from where it was");
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("1"));
        assert_eq!(work.begun.load(SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_renewed_when_it_is_due_and_does_if_that_fails() {
        let (stage, mut work) = (Stage::default(), Work::new());
        assert_eq!(work.get(&stage, Want::Valid).await.as_deref(), Ok("1"));
        sleep(Duration::from_secs(1439)).await;
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("1"));
        sleep(Duration::from_secs(722)).await;
        assert_eq!(work.get(&stage, Want::Valid).await.as_deref(), Ok("1"), "renewed in the background");
        sleep(Duration::from_millis(101)).await;
        assert_eq!(work.get(&stage, Want::Valid).await.as_deref(), Ok("2"));

        sleep(Duration::from_secs(2161)).await;
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("3"), "waited for");
        sleep(Duration::from_secs(2161)).await;
        work.takes = 1500;
        let began = Instant::now();
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("3"));
        assert_eq!(began.elapsed(), MAX_RENEWAL_WAIT);
        sleep(Duration::from_secs(2161)).await;
        (work.takes, work.rest) = (100, Some(Rest::Brief));
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("4"));
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("4"));
        assert_eq!(work.begun.load(SeqCst), 5, "it rests");
        sleep(Duration::from_secs(1425)).await;
        work.rest = Some(Rest::None);
        assert_eq!(work.get(&stage, Want::Young).await.as_deref(), Ok("4"));
        assert_eq!(work.begun.load(SeqCst), 6);
        sleep(Duration::from_secs(4)).await;
        assert!(work.get(&stage, Want::Young).await.is_err(), "never past its end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_the_answer_until_the_step_has_rested() {
        let (stage, mut work) = (Stage::default(), Work::new());
        work.rest = Some(Rest::Fixed);
        let failed = |number| Err(format!("Google's Security Token Service: {number}"));
        assert_eq!(work.get(&stage, Want::Valid).await, failed(1));
        sleep(Duration::from_millis(9999)).await;
        assert_eq!(work.get(&stage, Want::Valid).await, failed(1));
        sleep(Duration::from_millis(2)).await;
        assert_eq!(work.get(&stage, Want::Valid).await, failed(2));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_that_are_far_apart_do_not_make_the_rest_longer() {
        let (stage, mut work) = (Stage::default(), Work::new());
        work.rest = Some(Rest::Throttled(Duration::ZERO));
        for begun in 1..=5 {
            assert!(work.get(&stage, Want::Young).await.is_err());
            assert_eq!(work.begun.load(SeqCst), begun);
            sleep(Duration::from_secs(100)).await;
        }
        assert!(work.get(&stage, Want::Young).await.is_err());
        // The first rest, with its jitter.
        sleep(Duration::from_millis(1501)).await;
        assert!(work.get(&stage, Want::Young).await.is_err());
        assert_eq!(work.begun.load(SeqCst), 7, "it asks again");
        sleep(Duration::from_millis(1999)).await;
        assert!(work.get(&stage, Want::Young).await.is_err());
        assert_eq!(work.begun.load(SeqCst), 7, "this one was soon after the one before");
    }

    #[tokio::test(start_paused = true)]
    async fn what_its_server_was_not_asked_does_not_make_a_later_rest_longer() {
        // It waits for a turn, the step before has failed, or the server gets no requests at present.
        for unsent in [Rest::Held(Duration::from_millis(500)), Rest::None, Rest::Unasked] {
            let (stage, mut work) = (Stage::default(), Work::new());
            work.rest = Some(unsent);
            for _ in 0..6 {
                assert!(work.get(&stage, Want::Young).await.is_err());
                sleep(Duration::from_millis(501)).await;
            }
            work.rest = Some(Rest::Doubling);
            assert!(work.get(&stage, Want::Young).await.is_err());
            assert_eq!(work.begun.load(SeqCst), 7);
            sleep(Duration::from_millis(5001)).await;
            assert!(work.get(&stage, Want::Young).await.is_err());
            assert_eq!(work.begun.load(SeqCst), 8, "{unsent:?}: the first rest");
            sleep(Duration::from_millis(5001)).await;
            assert!(work.get(&stage, Want::Young).await.is_err());
            assert_eq!(work.begun.load(SeqCst), 8, "{unsent:?}: the second one is longer");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rest_that_a_token_allows_ends_with_it_but_not_before_a_server_wants_to_be_asked() {
        // As without a token. The ninth failure would rest for ten seconds with it, or for a minute.
        for (rest, least, most) in [(Rest::Brief, 600, 900), (Rest::Demanded(Duration::from_secs(7)), 7_000, 10_500)] {
            let (stage, mut work) = (Stage::default(), Work::new());
            work.takes = 0;
            work.get(&stage, Want::Young).await.expect("a token");
            work.rest = Some(rest);
            let mut known = stage.0.lock();
            known.failures = 8;
            known.failed = Some(Remembered::until(slow(), BootTime::now() + Duration::from_millis(3_589_499)));
            drop(known);
            // It is used for half a second more.
            sleep(Duration::from_millis(3_589_500)).await;
            work.get(&stage, Want::Young).await.expect("the token");
            assert_eq!(work.begun.load(SeqCst), 2);
            let began = Instant::now();
            while work.begun.load(SeqCst) == 2 {
                sleep(Duration::from_millis(10)).await;
                let _ = work.get(&stage, Want::Young).await;
            }
            let rested = began.elapsed().as_millis();
            assert!((least..=most + 20).contains(&rested), "{rest:?}: {rested}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_ends_soon_is_renewed_as_if_there_were_none() {
        let (stage, work) = (Stage::default(), Work::new());
        for (left, expected) in [(301, Urgency::Background), (299, Urgency::Demanded)] {
            work.get(&stage, Want::Young).await.expect("a token");
            sleep(Duration::from_millis((3600 - left) * 1000 - 100)).await;
            let (sender, told) = tokio::sync::oneshot::channel();
            let got = |urgency| async move {
                sender.send(urgency).expect("it is waited for");
                Err(Halt::failed(ExchangeFailure::Sts("away".to_owned())))
            };
            let deadline = Instant::now() + Duration::from_secs(2);
            stage.get(Want::Young, (deadline, Urgency::Demanded), got).await.expect("the one before");
            assert_eq!(told.await, Ok(expected), "{left} s");
            sleep(Duration::from_secs(400)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_does_not_share_the_failure_of_a_flight_that_began_for_nobody() {
        let (stage, mut work) = (Stage::default(), Work::new());
        work.rest = Some(Rest::Unasked);
        let renewing = |urgency| {
            let (stage, held_back) = (stage.clone(), Halt::resting(ExchangeFailure::Sts("held back".to_owned())));
            let work = |_| async {
                sleep(Duration::from_millis(100)).await;
                Err(held_back)
            };
            tokio::spawn(async move { stage.get(Want::Young, (Instant::now() + MAX_FLIGHT, urgency), work).await })
        };
        let renewal = renewing(Urgency::Background);
        sleep(Duration::from_millis(50)).await;
        work.rest = None;
        let got = tokio::join!(work.get(&stage, Want::Young), work.get(&stage, Want::Young));
        assert_eq!(got, (Ok("1".to_owned()), Ok("1".to_owned())));
        assert!(renewal.await.expect("no panic").is_err());

        // The failure of a flight that began for somebody is everybody's.
        let (stage, mut work) = (Stage::default(), Work::new());
        work.rest = Some(Rest::None);
        let got = tokio::join!(work.get(&stage, Want::Young), work.get(&stage, Want::Young));
        assert!(got.0.is_err() && got.1.is_err());
        assert_eq!(work.begun.load(SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_of_no_use_any_more_is_dropped() {
        let (stage, work) = (Stage::default(), Work::new());
        assert!(stage.sweep(Want::Young, BootTime::now()));
        work.get(&stage, Want::Young).await.expect("a token");
        let kept = stage.0.read().kept.clone().expect("a token");
        assert!(!stage.sweep(Want::Young, BootTime::now() + Duration::from_secs(3500)));
        assert_eq!(Arc::strong_count(&kept), 2);
        assert!(stage.sweep(Want::Young, BootTime::now() + Duration::from_secs(3600)));
        assert_eq!(Arc::strong_count(&kept), 1);
        work.get(&stage, Want::Young).await.expect("a token");
        assert!(!stage.sweep(Want::Recent, BootTime::now()));
        assert!(stage.sweep(Want::Recent, BootTime::now() + Duration::from_secs(61)));
    }
}
