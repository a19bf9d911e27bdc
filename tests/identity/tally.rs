//! [`Tally`]: the answers to all clients.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::Told;

/// Minimum share of requests of known pods that must get the right answer, in percent.
const LEAST_SERVED: u64 = 95;

/// Number of requests between two progress lines.
const REPORTED: u64 = 20_000;

/// Time for which the API server must have been heard while a pod existed, until the pod is known.
const KNOWN: Duration = Duration::from_secs(2);

/// Counts until this number of answers is reached.
pub struct Tally {
    wanted: u64,
    heard: Mutex<Heard>,
    asked: AtomicU64,
    right: AtomicU64,
    unavailable: AtomicU64,
    broken: AtomicU64,
    /// Requests of pods that must be known, and those of them that got the right answer.
    known: AtomicU64,
    known_right: AtomicU64,
    wrong: Mutex<Vec<String>>,
    odd: Mutex<Vec<String>>,
}

/// For how long the proxy has heard of the API server: before, and since then if it does now.
#[derive(Debug)]
struct Heard {
    before: Duration,
    since: Option<Instant>,
}

impl Tally {
    pub fn new(wanted: u64) -> Self {
        let heard = Mutex::new(Heard { before: Duration::ZERO, since: Some(Instant::now()) });
        let [asked, right, unavailable, broken, known, known_right] = [const { AtomicU64::new(0) }; 6];
        let [wrong, odd] = [(); 2].map(|()| Mutex::default());
        Self { wanted, heard, asked, right, unavailable, broken, known, known_right, wrong, odd }
    }

    /// From now on the proxy hears of the API server, or does not: then it cannot know the pods that begin.
    pub fn hears(&self, from_now_on: bool) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = Heard { before: heard.so_far(), since: from_now_on.then(Instant::now) };
    }

    /// For how long the proxy has heard of the API server so far.
    pub fn heard(&self) -> Duration {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).so_far()
    }

    /// Whether a pod must be known that began when the API server had been heard for this time.
    pub fn must_know(&self, since: Duration) -> bool {
        self.heard() > since + KNOWN
    }

    pub fn count(&self, told: Told, is_known: bool) {
        let asked = self.asked.fetch_add(1, Relaxed) + 1;
        self.known.fetch_add(is_known.into(), Relaxed);
        match told {
            Told::Itself => {
                self.right.fetch_add(1, Relaxed);
                self.known_right.fetch_add(is_known.into(), Relaxed);
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
        let (served, of) = (self.known_right.load(Relaxed), self.known.load(Relaxed));
        assert!(of > 0 && served * 100 >= of * LEAST_SERVED, "{served} of {of} requests of pods that are known");
    }
}

impl Heard {
    fn so_far(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [asked, right, unavailable, broken, known, served] =
            [&self.asked, &self.right, &self.unavailable, &self.broken, &self.known, &self.known_right]
                .map(|count| count.load(Relaxed));
        let wrong = self.wrong().len();
        write!(
            f,
            "{asked} requests: {wrong} wrong, {right} right, {unavailable} times 503, {broken} without an answer; "
        )?;
        write!(f, "of pods that are known: {served} of {known}")
    }
}

fn push(list: &Mutex<Vec<String>>, what: String) {
    list.lock().unwrap_or_else(PoisonError::into_inner).push(what);
}
