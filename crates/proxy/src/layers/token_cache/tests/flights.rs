//! Requests for one token are one fetch, and fetches do not wait for each other.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_thousand_concurrent_requests_are_one_fetch() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let got = cache.crowd(1000, TOKEN).join_all().await;
    assert!(got.iter().all(|got| *got == Got::Token("ya29.1".to_owned(), 3598)), "{:?}", got[0]);
    assert_eq!(server.fetches(), 1);
    assert!((cache.count("metadata_proxy_token_requests_total{outcome=\"miss\"}") - 1.0).abs() < 0.1);
    assert!((cache.count("metadata_proxy_token_requests_total{outcome=\"coalesced\"}") - 999.0).abs() < 0.1);
}

#[tokio::test(start_paused = true)]
async fn each_key_is_fetched_once() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let mut crowd = JoinSet::new();
    for caller in 0..1000 {
        let cache = cache.clone();
        let target = format!(
            "/computeMetadata/v1/instance/service-accounts/a{}@b.c/token?scopes={}",
            caller % 8,
            ["x", "y", "x,y", "y,x,z"][caller / 8 % 4]
        );
        crowd.spawn(async move { cache.ask(&target).await });
    }
    assert!(crowd.join_all().await.iter().all(|got| matches!(got, Got::Token(..))));
    let mut keys: Vec<_> = server.fetches.lock().expect("fetches").iter().map(|(key, _)| format!("{key:?}")).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), server.fetches()), (32, 32));
    assert_eq!(server.most_flying.load(Relaxed), 12, "the limit is reached and not exceeded");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_nothing() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::new(&server);
    let leader = tokio::spawn({
        let cache = cache.clone();
        async move { cache.ask(TOKEN).await }
    });
    sleep(Duration::from_millis(10)).await;
    let others = cache.crowd(999, TOKEN);
    sleep(Duration::from_millis(10)).await;
    leader.abort();
    assert!(others.join_all().await.iter().all(|got| matches!(got, Got::Token(..))));
    assert_eq!(server.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flight_completes_even_if_all_clients_leave() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::new(&server);
    let mut callers = cache.crowd(10, TOKEN);
    sleep(Duration::from_millis(10)).await;
    callers.shutdown().await;
    sleep(Duration::from_secs(1)).await;
    assert!(matches!(cache.ask(TOKEN).await, Got::Token(..)));
    assert_eq!(server.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn refreshes_and_new_tokens_do_not_wait_for_each_other() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.token(TOKEN).await;
    // The refresh is due, and the server returns a new token in ten seconds.
    sleep(Duration::from_secs(u64::from(HOUR) - 310)).await;
    let busy = Instant::now();
    // Many pods with few slow keys each: none holds more than its share, so no flight is given up for another.
    let mut crowds = Vec::new();
    for second in 0..15 {
        crowds.extend((1..=20).map(|pod| cache.crowd_as(pod, [scoped(&format!("slow-{second}-{pod}"))])));
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(server.most_flying.load(Relaxed), 13, "all demanded flights, and the refresh");
    let own = server.fetches_of(&TokenKey::default_account());
    let own: Vec<_> = own.into_iter().filter(|at| *at >= busy).map(|at| at - busy).collect();
    assert!(own.len() >= 2, "{own:?}");
    assert!(own.is_sorted_by(|a, b| *b < *a + RECHECK_INTERVAL + Duration::from_millis(100)), "{own:?}");
    assert!(cache.token(TOKEN).await.1 > 3500, "it was refreshed in time");
}

/// As after a suspension, where hundreds are due at once, or while a server demands a pause.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_waits_becomes_a_demand_when_a_client_finds_no_token() {
    let server = Server::new();
    let cache = Cache { principal: Principal::Workload(WorkloadId(1)), ..Cache::new(&server) };
    cache.token(TOKEN).await;
    server.set(Mode::DefersRefreshes);
    sleep(Duration::from_secs(u64::from(HOUR) - 60)).await;
    cache.token(TOKEN).await;
    assert_eq!(server.fetches(), 2, "a token that is valid needs no demand");
    sleep(2 * MINUTE).await;
    let began = Instant::now();
    assert!(matches!(cache.ask(TOKEN).await, Got::Token(..)));
    assert_eq!(began.elapsed(), server.takes);
    assert!(cache.count(r#"metadata_proxy_token_flights_total{cause="demand",outcome="new"}"#) > 1.0);
}

/// A demand would be asked in the same way.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_the_metadata_server_has_is_not_asked_again_for_a_client() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::new(&server);
    cache.token(TOKEN).await;
    server.set(Mode::Closes);
    sleep(Duration::from_secs(u64::from(HOUR) - 10)).await;
    server.set(Mode::Gives);
    suspend(MINUTE);
    while server.flying.load(Relaxed) == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let fetches = server.fetches();
    assert!(matches!(cache.ask(TOKEN).await, Got::Token(..)));
    assert_eq!(server.fetches(), fetches);
}
