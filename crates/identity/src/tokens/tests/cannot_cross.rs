//! A stolen or confused token cannot cross.
//!
//! Pods of several accounts come and go at few addresses, and request tokens under all names, while annotations change,
//! accounts are deleted and created again, Google fails, and the cache evicts. Every token names its subject, its
//! issuer and its purpose. [`truth`] knows the state at each time, and judges each token that a request gets.

mod servers;
mod truth;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use tokio::time::{advance, sleep};

use super::super::sts::CLOUD_PLATFORM;
use base::clock::{BootTime, suspend};
use truth::{ACCOUNTS, Failing, GOOGLE, Name, What};
use world::World;

const CASES: u32 = 80;

/// The setup of a case.
#[derive(Debug, Clone)]
struct Case {
    /// Time that every server takes.
    delay: Duration,
    /// Lifetime of Google's tokens.
    life: Duration,
    /// The limit of the token cache.
    cache_bytes: usize,
    /// The seed of all jitter.
    seed: u64,
    steps: Vec<Step>,
}

/// A request for a token.
#[derive(Debug, Clone, Copy)]
struct Asking {
    /// The address of the pod; `None` for the node itself.
    at: Option<usize>,
    name: Name,
    what: What,
    /// Whether it opens a connection.
    is_new: bool,
    /// Time at which it is sent, in milliseconds after the step began.
    after: u64,
}

/// The next event.
#[derive(Debug, Clone)]
enum Step {
    /// A pod begins at an address, in place of the one that was there.
    Begin {
        at: usize,
        account: usize,
        is_late: bool,
    },
    End {
        at: usize,
        is_late: bool,
    },
    Annotate {
        account: usize,
        google: Option<usize>,
    },
    /// Deletes an account, and creates it again under the same name.
    Make {
        account: usize,
        google: Option<usize>,
    },
    Delete {
        account: usize,
    },
    /// The next step waits neither for the responses nor for requests that are sent later.
    Ask(Vec<Asking>),
    Fail {
        server: usize,
        failing: Failing,
        seconds: u64,
    },
    /// Milliseconds, within which answers arrive.
    Blink(u64),
    Wait(u64),
    /// Seconds for which the machine sleeps.
    Suspend(u64),
}

fn asking() -> impl Strategy<Value = Asking> {
    let at = prop_oneof![6 => (0..4usize).prop_map(Some), 1 => Just(None)];
    let google = (0..GOOGLE.len()).prop_map(Name::Google);
    let name = prop_oneof![5 => Just(Name::Default), 2 => Just(Name::Pool), 2 => google];
    let scopes = select(vec!["", "", "a", "b", "b,a", CLOUD_PLATFORM]).prop_map(What::Access);
    let audience = select(vec!["https://a", "https://b"]).prop_map(What::Identity);
    let what = prop_oneof![3 => scopes, 2 => audience];
    let after = prop_oneof![Just(0), 0..1000u64];
    let asking = (at, name, what, any::<bool>(), after);
    asking.prop_map(|(at, name, what, is_new, after)| Asking { at, name, what, is_new, after })
}

fn step() -> impl Strategy<Value = Step> {
    let account = || 0..ACCOUNTS.len();
    let google = || proptest::option::weighted(0.7, 0..GOOGLE.len());
    let failing =
        select(vec![Failing::Unreachable, Failing::Refuses(403), Failing::Refuses(429), Failing::Refuses(503)]);
    prop_oneof![
        3 => (0..4usize, account(), any::<bool>()).prop_map(|(at, account, is_late)| Step::Begin { at, account, is_late }),
        2 => (0..4usize, any::<bool>()).prop_map(|(at, is_late)| Step::End { at, is_late }),
        3 => (account(), google()).prop_map(|(account, google)| Step::Annotate { account, google }),
        2 => (account(), google()).prop_map(|(account, google)| Step::Make { account, google }),
        1 => account().prop_map(|account| Step::Delete { account }),
        14 => vec(asking(), 1..6).prop_map(Step::Ask),
        1 => (0..2usize, failing, 1..90u64)
            .prop_map(|(server, failing, seconds)| Step::Fail { server, failing, seconds }),
        5 => (0..600u64).prop_map(Step::Blink),
        3 => (1..80u64).prop_map(Step::Wait),
        3 => (59..63u64).prop_map(Step::Wait),
        1 => (80..7200u64).prop_map(Step::Wait),
        1 => (1..7200u64).prop_map(Step::Suspend),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let delay = select(vec![0, 20, 100, 300]).prop_map(Duration::from_millis);
    let life = select(vec![3600, 3600, 400]).prop_map(Duration::from_secs);
    // Each token takes about 4.4 KB.
    let cache_bytes = select(vec![14_000, 40_000, 1_000_000]);
    (delay, life, cache_bytes, any::<u64>(), vec(step(), 20..60))
        .prop_map(|(delay, life, cache_bytes, seed, steps)| Case { delay, life, cache_bytes, seed, steps })
}

/// Lets time pass. Everything in progress ends before a long time does.
async fn pass(time: Duration) {
    if time < Duration::from_secs(80) {
        return sleep(time).await;
    }
    sleep(Duration::from_secs(5)).await;
    for _ in 0..30 {
        advance(time / 30).await;
        sleep(Duration::from_secs(1)).await;
    }
}

impl Step {
    async fn take(self, world: &mut World) {
        let named = |google: Option<usize>| google.map(|google| GOOGLE[google]);
        match self {
            Self::Begin { at, account, is_late } => world.begin(at, account, is_late).await,
            Self::End { at, is_late } => world.end(at, is_late),
            Self::Annotate { account, google } => world.truth().annotate(account, named(google)),
            Self::Make { account, google } => world.truth().make(account, named(google)),
            Self::Delete { account } => world.truth().delete(account),
            Self::Ask(all) => all.into_iter().for_each(|asking| world.ask(asking)),
            Self::Fail { server, failing, seconds } => {
                world.truth().failing[server] = Some((failing, BootTime::now() + Duration::from_secs(seconds)));
            }
            Self::Blink(millis) => pass(Duration::from_millis(millis)).await,
            Self::Wait(seconds) => pass(Duration::from_secs(seconds)).await,
            Self::Suspend(seconds) => {
                pass(Duration::from_secs(5)).await;
                suspend(Duration::from_secs(seconds));
                // Timers stand still meanwhile.
                pass(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The results of all cases, so that a proxy that refuses everything does not pass.
#[derive(Debug, Default)]
struct Tally {
    /// Requests, and how many of them got a token.
    asked: BTreeMap<&'static str, (u32, u32)>,
    evictions: u64,
}

impl Tally {
    fn count(&mut self, kind: &'static str, has_token: bool) {
        let (asked, answered) = self.asked.entry(kind).or_default();
        *asked += 1;
        *answered += u32::from(has_token);
    }

    fn percent(&self, kind: &str) -> u32 {
        let (asked, answered) = self.asked[kind];
        answered * 100 / asked
    }
}

fn kind(asking: Asking) -> &'static str {
    match asking {
        Asking { at: None, .. } => "node",
        Asking { what: What::Access(_), name: Name::Default | Name::Pool, .. } => "access",
        Asking { what: What::Identity(_), name: Name::Default | Name::Pool, .. } => "identity",
        Asking { name: Name::Google(_), .. } => "by e-mail",
    }
}

async fn run(case: Case, tally: &RefCell<Tally>) -> Result<(), TestCaseError> {
    fastrand::seed(case.seed);
    let mut world = World::new(&case);
    // Every account has a pod from the beginning.
    for account in 0..ACCOUNTS.len() {
        world.begin(account, account, false).await;
    }
    for step in case.steps {
        step.take(&mut world).await;
    }
    let left = world.leave().await;
    for outcome in world.outcomes().await {
        if let Some(fault) = outcome.fault {
            return Err(TestCaseError::fail(fault));
        }
        if outcome.is_due {
            tally.borrow_mut().count(kind(outcome.asking), outcome.has_token);
        }
    }
    tally.borrow_mut().evictions += world.evictions();
    left.map_or(Ok(()), |left| Err(TestCaseError::fail(left)))
}

#[test]
fn every_token_is_for_whoever_gets_it() {
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let tally = RefCell::default();
    let checked = TestRunner::new(config).run(&case(), |case| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(run(case, &tally))
    });
    let tally = tally.into_inner();
    if let Err(fault) = checked {
        panic!("{fault}");
    }
    for (kind, least) in [("node", 80), ("access", 40), ("identity", 25), ("by e-mail", 10)] {
        assert!(tally.percent(kind) >= least, "{kind}: {tally:?}");
    }
    assert!(tally.evictions > 20, "{tally:?}");
}
