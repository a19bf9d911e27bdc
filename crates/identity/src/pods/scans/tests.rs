use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::*;
use crate::pods::FakeProc;

impl Scans {
    /// Scans that take this long and have the result of `found`.
    fn finding(
        time: Duration,
        mut found: impl FnMut() -> Result<Scanned, Failure> + Send + 'static,
    ) -> (Arc<Self>, JoinHandle<()>) {
        let (scans, scan_loop) = Self::new(FakeProc::new().open());
        let running = tokio::spawn(scan_loop.run(move || {
            let found = found();
            async move {
                sleep(time).await;
                found.map(|found| Scanned { cost: time, ..found })
            }
        }));
        (Arc::new(scans), running)
    }
}

const SCAN: Duration = Duration::from_millis(4);

#[expect(clippy::unnecessary_wraps, reason = "as scans end")]
fn all_well() -> Result<Scanned, Failure> {
    Ok(Scanned { processes: 1, ..Scanned::default() })
}

/// Scans that are counted.
fn counted() -> (Arc<Scans>, Arc<AtomicUsize>) {
    let scans_made = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&scans_made);
    let (scans, _) = Scans::finding(SCAN, move || {
        counted.fetch_add(1, Relaxed);
        all_well()
    });
    (scans, scans_made)
}

#[tokio::test(start_paused = true)]
async fn clients_that_need_a_recent_scan_share_it_also_while_it_runs() {
    let (scans, scans_made) = counted();
    let mut waiting = JoinSet::new();
    for number in 0..100 {
        let scans = Arc::clone(&scans);
        waiting.spawn(async move {
            sleep(SCAN * number / 200).await;
            scans.within(SCAN).await
        });
    }
    waiting.join_all().await;
    sleep(INTERVAL / 2).await;
    assert_eq!(scans_made.load(Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn clients_that_need_a_later_scan_than_the_running_one_share_the_next() {
    let (scans, scans_made) = counted();
    let first = tokio::spawn({
        let scans = Arc::clone(&scans);
        async move { scans.since(BootTime::now()).await }
    });
    let mut waiting = JoinSet::new();
    for number in 1..=100 {
        let scans = Arc::clone(&scans);
        waiting.spawn(async move {
            sleep(SCAN * number / 200).await;
            let asked = BootTime::now();
            assert!(scans.since(asked).await.began >= asked);
        });
    }
    waiting.join_all().await;
    first.await.expect("no panic");
    sleep(INTERVAL / 2).await;
    assert_eq!(scans_made.load(Relaxed), 2);
}

/// The rests between scans of this duration if a client waits for each: a client that an older scan may show, or a new one.
async fn beginnings(time: Duration, is_new: bool) -> Vec<Duration> {
    let began = Arc::<Mutex<Vec<Instant>>>::default();
    let beginnings = Arc::clone(&began);
    let (scans, _running) = Scans::finding(time, move || {
        beginnings.lock().expect("no panic").push(Instant::now());
        all_well()
    });
    for _ in 0..4 {
        if is_new {
            scans.since(BootTime::now()).await;
        } else {
            let scan = scans.within(Duration::ZERO).await;
            // While it rests it counts as recent, since there is no newer one.
            sleep(scan.rest() * 9 / 10).await;
            assert_eq!(scans.within(Duration::ZERO).await, scan);
            sleep(scan.rest() / 10).await;
        }
    }
    let began = began.lock().expect("no panic");
    began.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(time)).collect()
}

#[tokio::test(start_paused = true)]
async fn scans_rest_by_their_share_of_the_time_and_less_before_a_new_client() {
    let [shortest, short, long] = [2, 10, 1000].map(Duration::from_millis);
    for (time, is_new, rest) in [
        (shortest, false, shortest * SHARE),
        (shortest, true, shortest * SHARE),
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
async fn a_throttled_scan_rests_by_its_cost() {
    let (scans, scan_loop) = Scans::new(FakeProc::new().open());
    tokio::spawn(scan_loop.run(move || async {
        sleep(Duration::from_secs(1)).await;
        Ok(Scanned { processes: 1, cost: SCAN, ..Scanned::default() })
    }));
    let scan = scans.since(BootTime::now()).await;
    assert_eq!(scan.rest(), SCAN * SHARE);
    assert_eq!(scan.ended.since(scan.tried).as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn metrics_show_the_duration_of_scans_and_the_number_of_processes() {
    let (scans, _running) =
        Scans::finding(Duration::from_millis(20), || Ok(Scanned { processes: 7, ..Scanned::default() }));
    let registry = Registry::default();
    scans.export(&registry);
    for _ in 0..2 {
        scans.since(BootTime::now()).await;
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
async fn a_scan_that_fails_shows_nothing_and_is_visible_until_one_succeeds() {
    let next = Arc::new(Mutex::new(all_well()));
    let of_scans = Arc::clone(&next);
    let (scans, _running) = Scans::finding(SCAN, move || *of_scans.lock().expect("no panic"));
    let good = scans.since(BootTime::now()).await;
    assert_eq!((good.began, scans.trouble()), (good.tried, None));
    sleep(Duration::from_secs(1)).await;
    for (found, words) in [
        (Ok(Scanned::default()), "the node's processes cannot be listed (--host-proc)"),
        (unless_panicked(|| panic!("as a parser may")), "a scan of the node's processes panicked"),
    ] {
        *next.lock().expect("no panic") = found;
        let moment = BootTime::now();
        let failed = scans.since(moment).await;
        assert_eq!((failed.began, failed.tried >= moment), (good.began, true));
        assert!(scans.trouble().is_some_and(|trouble| trouble.starts_with(words)), "{:?}", scans.trouble());
    }
    *next.lock().expect("no panic") = all_well();
    let moment = BootTime::now();
    assert!(scans.since(moment).await.began >= moment);
    assert_eq!(scans.trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn the_loop_ends_with_its_last_user() {
    let (scans, running) = Scans::finding(SCAN, all_well);
    scans.since(BootTime::now()).await;
    assert!(!running.is_finished());
    drop(scans);
    running.await.expect("it ends by itself");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_has_ended_is_reported() {
    let (scans, running) = Scans::finding(SCAN, all_well);
    running.abort();
    assert!(running.await.expect_err("it was aborted").is_cancelled());
    let waiting = tokio::time::timeout(Duration::from_secs(2), scans.since(BootTime::now()));
    assert!(waiting.await.is_err(), "nothing was seen");
    assert!(scans.trouble().is_some_and(|trouble| trouble.contains("thread")));
}

#[tokio::test]
async fn the_thread_scans_and_ends() {
    let proc = FakeProc::new();
    proc.network("a", &["10.8.0.5"]);
    proc.of_pod(20, 1000, "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f", "a");
    let scans = Scans::start(proc.open()).expect("a thread");
    assert_eq!(scans.last(), Scan::NEVER);
    let asked = BootTime::now();
    assert!(scans.since(asked).await.began >= asked);
    assert_eq!(scans.sandboxes().count(), 1);
    let of_thread = Arc::downgrade(&scans.sandboxes);
    drop(scans);
    while of_thread.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
}
