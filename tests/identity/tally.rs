//! [`Tally`]: the answers to all clients.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::pod::Told;

/// Minimum share of requests of long-known pods that must get the right answer, in percent.
const LEAST_SERVED: u64 = 95;

/// Number of requests between two progress lines.
const REPORTED: u64 = 20_000;

/// Counts until this number of answers is reached.
pub struct Tally {
    wanted: u64,
    asked: AtomicU64,
    right: AtomicU64,
    unavailable: AtomicU64,
    broken: AtomicU64,
    /// Requests of long-known pods, and those of them that got the right answer.
    settled: AtomicU64,
    settled_right: AtomicU64,
    wrong: Mutex<Vec<String>>,
    odd: Mutex<Vec<String>>,
}

impl Tally {
    pub fn new(wanted: u64) -> Self {
        let [asked, right, unavailable, broken, settled, settled_right] = [const { AtomicU64::new(0) }; 6];
        let [wrong, odd] = [(); 2].map(|()| Mutex::default());
        Self { wanted, asked, right, unavailable, broken, settled, settled_right, wrong, odd }
    }

    pub fn count(&self, told: Told, is_settled: bool) {
        let asked = self.asked.fetch_add(1, Relaxed) + 1;
        self.settled.fetch_add(is_settled.into(), Relaxed);
        match told {
            Told::Itself => {
                self.right.fetch_add(1, Relaxed);
                self.settled_right.fetch_add(is_settled.into(), Relaxed);
            }
            Told::Unavailable => drop(self.unavailable.fetch_add(1, Relaxed)),
            Told::Broken(_) => drop(self.broken.fetch_add(1, Relaxed)),
            Told::Somebody(what) => {
                // At once: a full run takes long, and may be ended.
                println!("wrong: {what}");
                push(&self.wrong, what);
            }
            Told::Odd(what) => push(&self.odd, what),
        }
        // A full run takes long, and may be ended.
        if asked.is_multiple_of(REPORTED) && asked < self.wanted {
            println!("{self}");
        }
    }

    /// Whether there were enough answers.
    pub fn is_complete(&self) -> bool {
        self.asked.load(Relaxed) >= self.wanted
    }

    /// Answers that took a pod for another.
    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if a pod was taken for another, or if too many were not served.
    pub fn judge(&self) {
        println!("{self}");
        for (what, said) in [("taken for others", &self.wrong), ("answered oddly", &self.odd)] {
            let said = said.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(said.is_empty(), "{} {what}, as {:#?}", said.len(), &said[..said.len().min(5)]);
        }
        let (served, of) = (self.settled_right.load(Relaxed), self.settled.load(Relaxed));
        assert!(of > 0 && served * 100 >= of * LEAST_SERVED, "{served} of {of} requests of pods that are known");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [asked, right, unavailable, broken, settled, served] =
            [&self.asked, &self.right, &self.unavailable, &self.broken, &self.settled, &self.settled_right]
                .map(|count| count.load(Relaxed));
        let wrong = self.wrong().len();
        write!(
            f,
            "{asked} requests: {wrong} wrong, {right} right, {unavailable} times 503, {broken} without an answer; "
        )?;
        write!(f, "of pods that are known: {served} of {settled}")
    }
}

fn push(list: &Mutex<Vec<String>>, what: String) {
    list.lock().unwrap_or_else(PoisonError::into_inner).push(what);
}
