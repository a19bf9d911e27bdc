//! [`Script`]: determines the fault for each request, of the mock and of the fake Google.

use std::cmp::Reverse;

use parking_lot::Mutex;
use tokio::sync::watch;

/// The requests that get a fault.
pub(super) trait Target: PartialEq {
    /// The properties of a request.
    type Request<'a>: Copy;

    fn holds(&self, request: Self::Request<'_>) -> bool;

    /// More precise targets have precedence.
    fn precision(&self) -> usize;
}

/// Determines the fault for each request.
#[derive(Debug)]
pub(super) struct Script<T, F> {
    rules: Mutex<Rules<T, F>>,
    /// Number of calls of `heal`. Hanging requests wait for the next one.
    heals: watch::Sender<u64>,
}

#[derive(Debug)]
struct Rules<T, F> {
    /// In the order of the calls, each with its remaining number of requests.
    next: Vec<(usize, T, F)>,
    /// The most precise first, one for each target.
    standing: Vec<(T, F)>,
}

impl<T, F> Default for Rules<T, F> {
    fn default() -> Self {
        Self { next: Vec::new(), standing: Vec::new() }
    }
}

impl<T, F> Default for Script<T, F> {
    fn default() -> Self {
        Self { rules: Mutex::default(), heals: watch::Sender::default() }
    }
}

impl<T: Target, F: Clone> Script<T, F> {
    /// Sets the fault for all requests of a target.
    pub(super) fn stand(&self, target: T, fault: F) {
        let mut rules = self.rules.lock();
        rules.standing.retain(|(other, _)| *other != target);
        rules.standing.push((target, fault));
        rules.standing.sort_by_key(|(target, _)| Reverse(target.precision()));
    }

    /// Sets the fault for the next requests of a target, after those of earlier calls.
    pub(super) fn next(&self, requests: usize, target: T, fault: F) {
        if requests > 0 {
            self.rules.lock().next.push((requests, target, fault));
        }
    }

    /// Removes all faults.
    pub(super) fn heal(&self) {
        let mut rules = self.rules.lock();
        *rules = Rules::default();
        self.heals.send_modify(|heals| *heals += 1);
    }

    /// The fault for a request, and the current state for [`Script::healed`].
    pub(super) fn take(&self, request: T::Request<'_>) -> Option<(F, u64)> {
        let mut rules = self.rules.lock();
        let fault = rules.take(request)?;
        Some((fault, *self.heals.borrow()))
    }

    /// Waits until `heal` was called after the fault was taken.
    pub(super) async fn healed(&self, since: u64) {
        let healed = self.heals.subscribe().wait_for(|heals| *heals != since).await.is_ok();
        debug_assert!(healed, "the script has the sender");
    }
}

impl<T: Target, F: Clone> Rules<T, F> {
    fn take(&mut self, request: T::Request<'_>) -> Option<F> {
        if let Some(place) = self.next.iter().position(|(_, target, _)| target.holds(request)) {
            let (left, _, fault) = &mut self.next[place];
            *left -= 1;
            let (left, fault) = (*left, fault.clone());
            if left == 0 {
                self.next.remove(place);
            }
            return Some(fault);
        }
        self.standing.iter().find(|(target, _)| target.holds(request)).map(|(_, fault)| fault.clone())
    }
}
