//! The tokens that are fetched in advance, and their use by requests.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::metrics::Step;
use super::super::not_given::NotGiven;
use super::super::prefetch::{START_SPREAD, prefetch};
use super::super::server::MAX_BACKGROUND;
use super::lab::{Does, GOOGLE_ACCOUNT, Lab};
use proxy::tokens::Urgency;

/// A lab whose pods are known, and the task.
fn prefetching(annotation: &'static str) -> Lab {
    let lab = Lab::new(annotation);
    tokio::spawn(prefetch(Arc::clone(&lab.source)));
    lab
}

#[tokio::test(start_paused = true)]
async fn the_first_request_finds_a_token_and_costs_nothing() {
    let lab = prefetching(GOOGLE_ACCOUNT);
    // Its pod ran before.
    sleep(START_SPREAD + Duration::from_secs(1)).await;
    assert_eq!(lab.servers.counts(), [1, 1, 1]);
    let began = Instant::now();
    let (token, seconds) = lab.ask("default/token").await.expect("a token");
    assert_eq!((token.as_str(), began.elapsed(), lab.servers.counts()), ("google-1", Duration::ZERO, [1, 1, 1]));
    assert!(seconds <= 3600 && seconds > 2900, "{seconds}");
    // It was collected. The token cache has it now, and requests another one when it needs one.
    assert_eq!(lab.token("default/token").await, "google-2");
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_tried_again() {
    let lab = prefetching(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.iam = Does::Fail);
    sleep(START_SPREAD + Duration::from_secs(10)).await;
    lab.servers.change(|script| script.iam = Does::Issue(3600));
    // The longest pause.
    sleep(Duration::from_secs(900)).await;
    let began = Instant::now();
    lab.token("default/token").await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_is_not_fetched_again() {
    let lab = prefetching(GOOGLE_ACCOUNT);
    assert_eq!(lab.token("default/token").await, "google-1");
    sleep(START_SPREAD + Duration::from_secs(1)).await;
    assert_eq!(lab.servers.counts(), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn an_account_without_a_link_is_left_alone_until_it_asks() {
    let lab = prefetching("");
    sleep(START_SPREAD * 2).await;
    assert_eq!(lab.servers.counts(), [0, 0, 0]);
    assert_eq!(lab.token("default/token").await, "fed-1");
    assert!(lab.source.askers.has(&lab.source.means.workloads.get(lab.number).expect("known")));
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_prefetch_that_pauses() {
    let lab = prefetching(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.sts = Does::PutOff(429, "1"));
    while lab.servers.counts()[1] == 0 {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_millis(150)).await;
    lab.servers.change(|script| script.sts = Does::Issue(3600));
    // No pod waited for this request, so its 429 holds back only background requests.
    assert_eq!(lab.servers.counts(), [1, 1, 0]);
    let began = Instant::now();
    lab.token("default/token").await;
    // Each of the two servers takes a tenth of a second.
    assert_eq!((began.elapsed(), lab.servers.counts()), (Duration::from_millis(200), [1, 2, 1]));
}

#[tokio::test(start_paused = true)]
async fn a_prefetch_pauses_for_longer_each_time() {
    let lab = prefetching(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.sts = Does::PutOff(429, "1"));
    sleep(START_SPREAD + Duration::from_secs(1)).await;
    let [_, exchanges, _] = lab.servers.counts();
    assert!((1..=5).contains(&exchanges), "{exchanges}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_does_not_wait_for_a_place_of_what_nobody_waits_for() {
    for annotation in [GOOGLE_ACCOUNT, ""] {
        let lab = Lab::new(annotation);
        let held = lab.source.steps(lab.number).await.expect("a link");
        for _ in 0..MAX_BACKGROUND {
            let held = held.clone();
            tokio::spawn(async move {
                let turn = held.turn(Step::Sts, &Urgency::Background.into());
                held.means.servers.sts.ask(turn, pending::<Result<(), NotGiven>>()).await
            });
        }
        let steps = held.clone();
        tokio::spawn(async move { steps.prepare().await });
        sleep(Duration::from_secs(5)).await;
        assert_eq!(lab.servers.counts(), [1, 0, 0], "all places are taken");
        // A pod that asks and leaves at once has it fetched.
        assert!(timeout(Duration::from_millis(1), lab.ask("default/token")).await.is_err());
        let began = Instant::now();
        lab.token("default/token").await;
        assert!(began.elapsed() < Duration::from_millis(250), "{annotation}: {:?}", began.elapsed());
        let is_linked = usize::from(!annotation.is_empty());
        assert_eq!(lab.servers.counts(), [1, 1, is_linked], "each server once");
    }
}
