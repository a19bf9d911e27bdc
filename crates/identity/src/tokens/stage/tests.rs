//! One step's token, with work that the tests decide.

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
        let got = stage.get(want, (deadline, &Urgency::Demanded.into()), work).await;
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
async fn a_token_that_ends_soon_is_no_renewal_in_the_background() {
    let (stage, work) = (Stage::default(), Work::new());
    for (left, expected) in [(301, Urgency::Background), (299, Urgency::Soon)] {
        work.get(&stage, Want::Young).await.expect("a token");
        sleep(Duration::from_millis((3600 - left) * 1000 - 100)).await;
        let (sender, told) = tokio::sync::oneshot::channel();
        let got = |haste: Haste| async move {
            sender.send(haste.now()).expect("it is waited for");
            Err(Halt::failed(ExchangeFailure::Sts("away".to_owned())))
        };
        let deadline = Instant::now() + Duration::from_secs(2);
        stage.get(Want::Young, (deadline, &Urgency::Demanded.into()), got).await.expect("the one before");
        assert_eq!(told.await, Ok(expected), "{left} s");
        sleep(Duration::from_secs(400)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_does_not_share_the_failure_of_a_flight_that_began_for_nobody() {
    let (stage, mut work) = (Stage::default(), Work::new());
    work.rest = Some(Rest::Unasked);
    let renewing = |urgency: Urgency| {
        let (stage, held_back) = (stage.clone(), Halt::resting(ExchangeFailure::Sts("held back".to_owned())));
        let work = |_| async {
            sleep(Duration::from_millis(100)).await;
            Err(held_back)
        };
        tokio::spawn(async move { stage.get(Want::Young, (Instant::now() + MAX_FLIGHT, &urgency.into()), work).await })
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
