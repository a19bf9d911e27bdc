//! `SingleFlight`: the state of an item, and at most one flight that fetches it.
//!
//! A flight is shared by all requests that wait for it and belongs to none of them. It runs in a task of its own and
//! continues when they have left, so that the next request finds its result. The user of this type decides how a result
//! or a failure changes `S`, and for how long it is `Remembered`.
//!
//! It is used by `layers::leaves` and the steps of `identity::tokens`. A watch of `layers::hanging` ends with its last
//! watcher, so it has its own table and shares only `Publisher` and `Landing`. The token cache's flights belong to its
//! keepers, which also refresh tokens without waiting requests, and begin no flight for requests that have left; it
//! shares only `Remembered`.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

use base::clock::BootTime;

/// The state `S`, and the current flight, whose result is `T`. Clones share both.
#[derive(Debug)]
pub struct SingleFlight<S, T>(Arc<RwLock<State<S, T>>>);

/// The state. Dereferences to `S`.
#[derive(Debug)]
pub struct State<S, T> {
    known: S,
    flight: Option<Landing<T>>,
}

/// Exclusive access to the state. No flight begins or ends meanwhile.
pub struct Held<'a, S, T> {
    of: &'a SingleFlight<S, T>,
    state: RwLockWriteGuard<'a, State<S, T>>,
}

/// Publishes the result of a flight. If it is dropped without publishing, there is no result.
#[derive(Debug)]
pub struct Publisher<T>(watch::Sender<Option<T>>);

/// Waits for the result of a flight.
#[derive(Debug, Clone)]
pub struct Landing<T>(watch::Receiver<Option<T>>);

/// An answer, usually a failure, that is given to all requests until some time.
#[derive(Debug, Clone)]
pub struct Remembered<T> {
    /// The answer.
    pub what: T,
    /// Time when it expires.
    pub until: BootTime,
}

impl<S, T> SingleFlight<S, T> {
    /// Reads the state, and whether a flight is active.
    pub fn read(&self) -> RwLockReadGuard<'_, State<S, T>> {
        self.0.read()
    }

    /// Locks the state, to begin a flight or to change it.
    pub fn lock(&self) -> Held<'_, S, T> {
        Held { of: self, state: self.0.write() }
    }
}

impl<S, T> State<S, T> {
    /// The current flight.
    pub fn flight(&self) -> Option<&Landing<T>> {
        // A flight whose task panicked no longer has a publisher.
        self.flight.as_ref().filter(|flight| flight.0.has_changed().is_ok())
    }
}

impl<S, T> Held<'_, S, T>
where
    S: Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Joins the current flight. If there is none, begins one that does this `work`. `land` records the outcome at the
    /// moment when the flight ends, so that no other flight begins in between.
    pub fn join<F>(
        &mut self,
        work: impl FnOnce() -> F,
        land: impl FnOnce(&mut S, F::Output) -> T + Send + 'static,
    ) -> Landing<T>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        if let Some(flight) = self.flight() {
            return flight.clone();
        }
        let publisher = Publisher::default();
        let landing = publisher.landing();
        let (of, work) = (self.of.clone(), work());
        tokio::spawn(async move {
            let outcome = work.await;
            let result = {
                let mut held = of.lock();
                held.flight = None;
                land(&mut held.known, outcome)
            };
            publisher.publish(result);
        });
        self.flight.insert(landing).clone()
    }
}

impl<T> Default for Publisher<T> {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl<T> Publisher<T> {
    /// A landing that waits for this publisher's result.
    pub fn landing(&self) -> Landing<T> {
        Landing(self.0.subscribe())
    }

    /// Publishes the result, unless one was already published.
    pub fn publish(&self, result: T) {
        self.0.send_if_modified(|published| {
            let is_first = published.is_none();
            published.get_or_insert(result);
            is_first
        });
    }
}

impl<T: Clone> Landing<T> {
    /// Waits for the result. `None` if there will be none, because the task of the flight panicked.
    pub async fn result(&mut self) -> Option<T> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|result| result.clone())
    }
}

impl<T> Remembered<T> {
    /// An answer that expires at this time.
    pub fn until(what: T, until: BootTime) -> Self {
        Self { what, until }
    }

    /// An answer that stays until it is replaced.
    pub fn always(what: T) -> Self {
        Self::until(what, BootTime::from_nanos(u64::MAX))
    }

    /// The answer at this time.
    pub fn at(&self, now: BootTime) -> Option<&T> {
        (now < self.until).then_some(&self.what)
    }
}

impl<S: Default, T> Default for SingleFlight<S, T> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(State { known: S::default(), flight: None })))
    }
}

/// Whether both are clones of the same flight.
impl<S, T> PartialEq for SingleFlight<S, T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<S, T> Clone for SingleFlight<S, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, T> Deref for State<S, T> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.known
    }
}

impl<S, T> DerefMut for State<S, T> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.known
    }
}

impl<S, T> Deref for Held<'_, S, T> {
    type Target = State<S, T>;

    fn deref(&self) -> &State<S, T> {
        &self.state
    }
}

impl<S, T> DerefMut for Held<'_, S, T> {
    fn deref_mut(&mut self) -> &mut State<S, T> {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::task::{JoinSet, yield_now};
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    /// Duration of a flight.
    const FLIGHT: Duration = Duration::from_secs(2);

    /// Counts flights, and stores the number of the last one that landed.
    #[derive(Default)]
    struct Numbered {
        flights: SingleFlight<usize, usize>,
        begun: Arc<AtomicUsize>,
    }

    impl Numbered {
        fn join(&self) -> Landing<usize> {
            let begun = Arc::clone(&self.begun);
            let work = || async move {
                let number = begun.fetch_add(1, Relaxed) + 1;
                sleep(FLIGHT).await;
                number
            };
            self.flights.lock().join(work, |last, number| {
                *last = number;
                number
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_join_get_the_result_of_one_flight() {
        let numbered = Numbered::default();
        let mut crowd = JoinSet::new();
        for _ in 0..250 {
            let mut landing = numbered.join();
            crowd.spawn(async move { landing.result().await });
            yield_now().await;
        }
        assert!(crowd.join_all().await.iter().all(|result| *result == Some(1)));
        assert_eq!(numbered.begun.load(Relaxed), 1);
        assert_eq!(numbered.join().result().await, Some(2), "the first has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flight_goes_on_when_nobody_waits_any_more() {
        let (numbered, began) = (Numbered::default(), Instant::now());
        assert!(timeout(FLIGHT / 2, numbered.join().result()).await.is_err(), "it takes longer");
        let mut landing = numbered.join();
        assert_eq!((landing.result().await, began.elapsed()), (Some(1), FLIGHT), "it goes on from where it was");
        assert_eq!(landing.result().await, Some(1), "it can be asked for again");
    }

    #[tokio::test]
    async fn a_flight_that_ends_is_known_at_that_moment() {
        let (flights, may_end) = (SingleFlight::<usize, usize>::default(), Arc::<Notify>::default());
        let ends = Arc::clone(&may_end);
        let work = || async move { ends.notified().await };
        let mut landing = flights.lock().join(work, |known, ()| {
            *known = 1;
            *known
        });
        may_end.notify_one();
        // Reads the state between any two steps of the flight.
        for _ in 0..16 {
            assert!({
                let state = flights.read();
                state.flight().is_some() || **state == 1
            });
            yield_now().await;
        }
        assert!(flights.read().flight().is_none());
        assert_eq!(landing.result().await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flight_that_panics_has_no_result_and_is_not_under_way() {
        let numbered = Numbered::default();
        let mut landing = numbered.flights.lock().join(|| async { panic!("on purpose") }, |_, ()| 0);
        assert_eq!(landing.result().await, None);
        assert!(numbered.flights.read().flight().is_none());
        assert_eq!(numbered.join().result().await, Some(1));
    }

    #[tokio::test]
    async fn the_first_result_stays() {
        let publisher = Publisher::default();
        let mut before = publisher.landing();
        publisher.publish(1);
        publisher.publish(2);
        let mut after = publisher.landing();
        drop(publisher);
        assert_eq!((before.result().await, after.result().await), (Some(1), Some(1)));
    }

    #[test]
    fn what_is_remembered_is_the_answer_until_then() {
        let now = BootTime::now();
        let remembered = Remembered::until("no", now + Duration::from_secs(1));
        assert_eq!(remembered.at(now + Duration::from_millis(999)), Some(&"no"));
        assert_eq!(remembered.at(now + Duration::from_secs(1)), None);
        assert!(Remembered::always(()).at(now + Duration::from_secs(1 << 30)).is_some());
    }
}
