//! The API server is away, hangs or refuses.

use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_asked_again_with_pauses() {
    let mut scene = Scene::new();
    let began = Instant::now();
    for _ in 0..20 {
        drop(scene.fake.asked().await);
    }
    let running = scene.lists_by_events().await;
    let took = began.elapsed();
    assert!(Duration::from_secs(35) < took && took < Duration::from_secs(80), "{took:?}");
    running.end_list();
    scene.knows(&[]).await;
    settle().await;
    let told = scene.told();
    assert_eq!((told[0].as_str(), told[1].as_str(), told.len()), ("failed", "failed again", 22));
    assert_eq!(told[20..], ["listed 0", "recovered"]);
}

/// Number of requests within this time of an outage. Each one is handled by `fail`, and a pod is missed all the time or
/// never.
async fn attempts(seconds: u64, fail: fn(Asked), is_missed: bool) -> u32 {
    let mut scene = Scene::new();
    let (pods, mut count) = (Arc::clone(&scene.pods), 0);
    let missing = async {
        loop {
            sleep(Duration::from_millis(200)).await;
            if is_missed {
                pods.missed();
            }
        }
    };
    let answering = async {
        loop {
            fail(scene.fake.asked().await);
            count += 1;
        }
    };
    let _ = timeout(Duration::from_secs(seconds), async { tokio::join!(missing, answering) }).await;
    count
}

#[tokio::test(start_paused = true)]
async fn while_a_pod_is_missed_a_server_that_is_away_is_tried_each_second() {
    let seldom = attempts(100, drop, false).await;
    assert!((20..50).contains(&seldom), "{seldom}");
    let often = attempts(100, drop, true).await;
    // A pause is 0.5 to 1 s, and until the next sign up to 0.2 s more.
    assert!((83..=210).contains(&often), "{often}");
    for status in [429, 503] {
        let refuse: fn(Asked) =
            if status == 429 { |asked| asked.refuse(429, "no") } else { |asked| asked.refuse(503, "no") };
        let refused = attempts(100, refuse, true).await;
        assert!((20..50).contains(&refused), "a server that refuses is not pressed: {refused}");
    }
    for put_off in [|asked: Asked| asked.throttle("7"), |asked: Asked| asked.put_off(503, "7")] {
        let put_off = attempts(100, put_off, true).await;
        assert!((9..=16).contains(&put_off), "it is asked when it wants to be: {put_off}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_given_up() {
    // Before the response.
    let mut scene = Scene::new();
    let hanging = scene.fake.asked().await;
    let began = Instant::now();
    let _running = scene.lists_by_events().await;
    assert_eq!(began.elapsed().as_secs(), 10);
    drop(hanging);

    // In a watch. A healthy one sends something each minute, or up to 2 s later.
    let (mut scene, running) = Scene::with(&["1"]).await;
    for version in ["201", "202"] {
        sleep(Duration::from_secs(62)).await;
        running.bookmark(version);
        settle().await;
    }
    let began = Instant::now();
    let _running = scene.lists_by_events().await;
    assert_eq!(began.elapsed().as_secs(), 75);
    assert_eq!(scene.known(), ["1"]);
}

/// Otherwise no pod that begins would be known for 75 s.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_while_a_pod_is_missed_is_given_up_early_and_seldom() {
    let (mut scene, _silent) = Scene::with(&["1"]).await;
    let pods = Arc::clone(&scene.pods);
    let missing = tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(100)).await;
            pods.missed();
        }
    });
    let began = Instant::now();
    let running = scene.lists_by_events().await;
    assert_eq!(began.elapsed().as_secs(), 5);
    for digit in ["1", "2"] {
        running.event("ADDED", &pod(digit, VERSION));
    }
    running.end_list();
    scene.knows(&["1", "2"]).await;

    // A static pod is missed for good.
    sleep(Duration::from_secs(50)).await;
    running.bookmark("201");
    let _running = scene.lists_by_events().await;
    let seconds = began.elapsed().as_secs();
    assert!((80..82).contains(&seconds), "{seconds}");
    missing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_silent_for_too_long_is_asked_for_a_list() {
    // Connections are cut before the first bookmark.
    let (mut scene, mut running) = Scene::with(&["1"]).await;
    for _ in 0..2 {
        sleep(Duration::from_secs(35)).await;
        running.cut();
        running = scene.goes_on(VERSION).await.run(200);
    }
    sleep(Duration::from_secs(35)).await;
    running.cut();
    scene.lists_by_events().await.end_list();
    settle().await;
    assert!(scene.pods.age() < Some(Duration::from_secs(1)));

    // It was away.
    let (mut scene, running) = Scene::with(&["1"]).await;
    running.cut();
    while scene.pods.age() < Some(Duration::from_secs(31 * 60)) {
        drop(scene.fake.asked().await);
    }
    scene.lists_by_events().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_logged_once_until_it_ends() {
    let mut scene = Scene::new();
    for code in [403, 403, 401, 403, 503, 503] {
        scene.fake.asked().await.refuse(code, "no");
    }
    let running = scene.lists_by_events().await;
    running.end_list();
    running.event("ADDED", &pod("1", "101"));
    scene.knows(&["1"]).await;
    let outage =
        ["failed", "failed again", "failed", "failed again", "failed", "failed again", "listed 0", "recovered"];
    assert_eq!(scene.told(), outage);
    drop(running);
    scene.goes_on("101").await.refuse(403, "no");
    scene.goes_on("101").await.run(200);
    assert_eq!(scene.told(), ["failed"], "after a success it is new");
}

#[tokio::test(start_paused = true)]
async fn what_may_be_about_the_version_lists_anew() {
    for (code, lists_anew) in
        [(401, false), (403, false), (429, false), (503, false), (400, true), (500, true), (504, true)]
    {
        let (mut scene, running) = Scene::with(&["1"]).await;
        drop(running);
        scene.goes_on(VERSION).await.refuse(code, "no");
        let asked = scene.fake.asked().await;
        assert_eq!(asked.parameter("sendInitialEvents").is_some(), lists_anew, "{code}");
        assert_eq!(scene.known(), ["1"], "{code}");
    }
}
