use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::*;
use crate::pods::FakeProc;

impl Lookout {
    /// Looks in a task, as fast as the clock is paused.
    pub(crate) fn in_task(sandboxes: Sandboxes) -> Self {
        Self::slow(sandboxes, Duration::ZERO)
    }

    /// Each look reads the processes when it begins, and ends this much later.
    pub(crate) fn slow(sandboxes: Sandboxes, time: Duration) -> Self {
        let (lookout, looker) = Self::new(sandboxes);
        let sandboxes = Arc::clone(&lookout.sandboxes);
        tokio::spawn(looker.run(move || {
            let scanned = sandboxes.scan();
            async move {
                if time > Duration::ZERO {
                    sleep(time).await;
                }
                // It waits for the processor most of the time.
                Ok(Scanned { cost: time / 6, ..scanned })
            }
        }));
        lookout
    }

    /// Looks that take this long and find what `found` says.
    fn finding(
        time: Duration,
        mut found: impl FnMut() -> Result<Scanned, Failure> + Send + 'static,
    ) -> (Arc<Self>, JoinHandle<()>) {
        let (lookout, looker) = Self::new(FakeProc::new().open());
        let looking = tokio::spawn(looker.run(move || {
            let found = found();
            async move {
                sleep(time).await;
                found.map(|found| Scanned { cost: time, ..found })
            }
        }));
        (Arc::new(lookout), looking)
    }
}

const LOOK: Duration = Duration::from_millis(4);

#[expect(clippy::unnecessary_wraps, reason = "as looks end")]
fn all_well() -> Result<Scanned, Failure> {
    Ok(Scanned { processes: 1, ..Scanned::default() })
}

/// Looks that are counted.
fn counted() -> (Arc<Lookout>, Arc<AtomicUsize>) {
    let looks = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&looks);
    let (lookout, _) = Lookout::finding(LOOK, move || {
        counted.fetch_add(1, Relaxed);
        all_well()
    });
    (lookout, looks)
}

#[tokio::test(start_paused = true)]
async fn all_who_need_a_recent_look_share_it_and_may_come_while_it_runs() {
    let (lookout, looks) = counted();
    let mut waiting = JoinSet::new();
    for number in 0..100 {
        let lookout = Arc::clone(&lookout);
        waiting.spawn(async move {
            sleep(LOOK * number / 200).await;
            lookout.within(LOOK).await
        });
    }
    waiting.join_all().await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(looks.load(Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn all_who_come_while_a_look_runs_and_need_one_that_began_later_share_the_next() {
    let (lookout, looks) = counted();
    let first = tokio::spawn({
        let lookout = Arc::clone(&lookout);
        async move { lookout.since(BootTime::now()).await }
    });
    let mut waiting = JoinSet::new();
    for number in 1..=100 {
        let lookout = Arc::clone(&lookout);
        waiting.spawn(async move {
            sleep(LOOK * number / 200).await;
            let asked = BootTime::now();
            assert!(lookout.since(asked).await.began >= asked);
        });
    }
    waiting.join_all().await;
    first.await.expect("no panic");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(looks.load(Relaxed), 2);
}

/// When looks that take this long begin, if a client waits for each: one that may be known by an older look, or a new one.
async fn beginnings(time: Duration, is_new: bool) -> Vec<Duration> {
    let began = Arc::<Mutex<Vec<Instant>>>::default();
    let beginnings = Arc::clone(&began);
    let (lookout, _looking) = Lookout::finding(time, move || {
        beginnings.lock().expect("no panic").push(Instant::now());
        all_well()
    });
    for _ in 0..4 {
        if is_new {
            lookout.since(BootTime::now()).await;
        } else {
            let look = lookout.within(Duration::ZERO).await;
            // While it rests it counts as recent, since there is no newer one.
            sleep(look.rest() * 9 / 10).await;
            assert_eq!(lookout.within(Duration::ZERO).await, look);
            sleep(look.rest() / 10).await;
        }
    }
    let began = began.lock().expect("no panic");
    began.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(time)).collect()
}

#[tokio::test(start_paused = true)]
async fn looks_rest_for_as_long_as_they_may_take_of_the_time_and_less_before_a_new_client() {
    let short = Duration::from_millis(20);
    let long = Duration::from_secs(1);
    for (time, is_new, rest) in [
        (LOOK, false, LOOK * SHARE),
        (LOOK, true, LOOK * SHARE),
        (short, false, MAX_REST),
        (short, true, MAX_REST_OF_NEW),
        (long, false, long * MIN_REST),
        (long, true, long * MIN_REST),
    ] {
        for rested in beginnings(time, is_new).await {
            // Timers have milliseconds.
            assert!(rested.abs_diff(rest) <= Duration::from_millis(2), "{time:?}, {is_new}: {rested:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_waits_for_the_processor_rests_by_what_it_cost() {
    let (lookout, looker) = Lookout::new(FakeProc::new().open());
    tokio::spawn(looker.run(move || async {
        sleep(Duration::from_secs(1)).await;
        Ok(Scanned { processes: 1, cost: LOOK, ..Scanned::default() })
    }));
    let look = lookout.since(BootTime::now()).await;
    assert_eq!(look.rest(), LOOK * SHARE);
    assert_eq!(look.ended.since(look.tried).as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn metrics_show_how_long_looks_took_and_what_they_found() {
    let (lookout, _looking) =
        Lookout::finding(Duration::from_millis(20), || Ok(Scanned { processes: 7, ..Scanned::default() }));
    let registry = Registry::default();
    lookout.export(&registry);
    for _ in 0..2 {
        lookout.since(BootTime::now()).await;
    }
    let text = registry.render();
    for line in [
        "metadata_proxy_identity_scan_duration_seconds_bucket{le=\"0.01\"} 0",
        "metadata_proxy_identity_scan_duration_seconds_bucket{le=\"0.03\"} 2",
        "metadata_proxy_identity_processes 7",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_shows_nothing_and_is_visible_until_one_succeeds() {
    let next = Arc::new(Mutex::new(all_well()));
    let of_looks = Arc::clone(&next);
    let (lookout, _looking) = Lookout::finding(LOOK, move || *of_looks.lock().expect("no panic"));
    let good = lookout.since(BootTime::now()).await;
    assert_eq!((good.began, lookout.trouble()), (good.tried, None));
    sleep(Duration::from_secs(1)).await;
    for (found, words) in [
        (Ok(Scanned::default()), "the node's processes cannot be listed (--host-proc)"),
        (unless_panicked(|| panic!("as a parser may")), "a scan of the node's processes panicked"),
    ] {
        *next.lock().expect("no panic") = found;
        let moment = BootTime::now();
        let failed = lookout.since(moment).await;
        assert_eq!((failed.began, failed.tried >= moment), (good.began, true));
        assert!(lookout.trouble().is_some_and(|trouble| trouble.starts_with(words)), "{:?}", lookout.trouble());
    }
    *next.lock().expect("no panic") = all_well();
    let moment = BootTime::now();
    assert!(lookout.since(moment).await.began >= moment);
    assert_eq!(lookout.trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn looking_ends_with_the_last_who_could_ask() {
    let (lookout, looking) = Lookout::finding(LOOK, all_well);
    lookout.since(BootTime::now()).await;
    assert!(!looking.is_finished());
    drop(lookout);
    looking.await.expect("it ends by itself");
}

#[tokio::test(start_paused = true)]
async fn if_nobody_looks_any_more_it_is_said() {
    let (lookout, looking) = Lookout::finding(LOOK, all_well);
    looking.abort();
    assert!(looking.await.expect_err("it was aborted").is_cancelled());
    let waiting = tokio::time::timeout(Duration::from_secs(2), lookout.since(BootTime::now()));
    assert!(waiting.await.is_err(), "nothing was seen");
    assert!(lookout.trouble().is_some_and(|trouble| trouble.contains("thread")));
}

#[tokio::test]
async fn the_thread_looks_and_ends() {
    let proc = FakeProc::new();
    proc.network("a", &["10.8.0.5"]);
    proc.of_pod(20, 1000, "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f", "a");
    let lookout = Lookout::start(proc.open()).expect("a thread");
    assert_eq!(lookout.last(), Look::NEVER);
    let asked = BootTime::now();
    assert!(lookout.since(asked).await.began >= asked);
    assert_eq!(lookout.sandboxes().count(), 1);
    let of_thread = Arc::downgrade(&lookout.sandboxes);
    drop(lookout);
    while of_thread.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
}
