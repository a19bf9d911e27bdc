//! Pods: when they ask for a token, what they do while there is none, and what they got.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::node::{Answer, Node};

/// A library asks for the next token when its own has this long left.
const LIBRARY: Duration = Duration::from_secs(225);

/// First and longest pause of a client between attempts, with jitter.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// How a pod uses tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Use {
    /// It keeps a token until it has 225 s left, as client libraries do.
    Library,
    /// It keeps none, and asks each minute.
    EachMinute,
    /// Once.
    Once,
}

/// What pods got.
#[derive(Debug, Default)]
pub struct Seen {
    /// Pods without a valid token that want one.
    waiting: AtomicUsize,
    /// Answers with 429, and other refusals.
    pub throttled: AtomicUsize,
    pub refused: AtomicUsize,
    /// Pods whose token ended before they got the next.
    pub lost: AtomicUsize,
    /// Seconds from the first request to the first token, of all pods that began.
    pub first: Mutex<Vec<f64>>,
}

impl Seen {
    /// Forgets what was seen. Pods that wait still do.
    pub fn forget(&self) {
        for count in [&self.throttled, &self.refused, &self.lost] {
            count.store(0, Relaxed);
        }
        self.first.lock().expect("no panic").clear();
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

/// The proxy of a node at present. `None` while there is none.
pub type Place = Arc<Mutex<Option<Arc<Node>>>>;

/// A pod that begins at a moment and asks for its token.
pub async fn pod(place: Place, account: u16, began: Instant, used: Use, seen: Arc<Seen>) {
    sleep_until(began).await;
    let mut ends = None;
    loop {
        let asked = Instant::now();
        let life = get(&place, account, ends, &seen).await;
        if ends.is_none() {
            seen.first.lock().expect("no panic").push(asked.elapsed().as_secs_f64());
        }
        ends = Some(Instant::now() + life);
        match used {
            Use::Library => sleep(life.saturating_sub(LIBRARY).max(Duration::from_secs(30))).await,
            Use::EachMinute => sleep(Duration::from_secs(60)).await,
            Use::Once => return,
        }
    }
}

/// Asks until there is a token. Returns its life.
async fn get(place: &Place, account: u16, ends: Option<Instant>, seen: &Seen) -> Duration {
    let (mut pause, mut is_waiting) = (PAUSE.0, false);
    let life = loop {
        if !is_waiting && ends.is_none_or(|ends| ends <= Instant::now()) {
            seen.waiting.fetch_add(1, Relaxed);
            seen.lost.fetch_add(usize::from(ends.is_some()), Relaxed);
            is_waiting = true;
        }
        let node = place.lock().expect("no panic").clone();
        if let Some(node) = node {
            match node.ask(account).await {
                Answer::Token(seconds) => break Duration::from_secs(seconds),
                Answer::Refused(429) => seen.throttled.fetch_add(1, Relaxed),
                Answer::Refused(_) => seen.refused.fetch_add(1, Relaxed),
            };
        }
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(PAUSE.1);
    };
    seen.waiting.fetch_sub(usize::from(is_waiting), Relaxed);
    life
}
