//! How old a token gets, and when it is fetched again.

use tokio::time::timeout;

use super::*;
use crate::layers::token_cache::freshness::MAX_IDENTITY_AGE;

/// The key of the default token of this workload.
fn default_of(workload: u64) -> TokenKey {
    let mut key = TokenKey::default_account();
    key.principal = Principal::Workload(WorkloadId(workload));
    key
}

#[tokio::test(start_paused = true)]
async fn expires_in_is_computed_for_each_response() {
    let server = Server::taking(Duration::ZERO);
    let cache = Cache::new(&server);
    assert_eq!(cache.token(TOKEN).await.1, 3599);
    for (later, left) in [(1, 3598), (9, 3589), (3000, 589)] {
        sleep(Duration::from_secs(later)).await;
        assert_eq!(cache.token(TOKEN).await.1, left);
    }
    assert_eq!(server.fetches(), 1);
}

/// The libraries request a new token before the old one expires: Node's at 299 s, Python's and Go's at 224 s, Java's at
/// 179 s.
#[tokio::test(start_paused = true)]
async fn requests_in_a_tokens_last_minutes_are_one_fetch_in_five_seconds() {
    for left in [299, 280, 224, 179] {
        let server = Server::taking(Duration::ZERO);
        server.set_stuck(true);
        server.age_to(left);
        let cache = Cache::new(&server);
        let (old, mut least) = cache.token(TOKEN).await;
        let began = Instant::now();
        for _ in 0..1000 {
            let (token, left) = cache.token(TOKEN).await;
            assert!(token == old && left <= least);
            least = left;
            sleep(Duration::from_millis(10)).await;
        }
        assert!((left - 12..=left - 9).contains(&least), "expires_in fell from {left} to {least}");
        let fetches = server.fetches_since(began + Duration::from_millis(1));
        assert!((1..=2).contains(&fetches.len()), "{left}: {} fetches in 10 s", fetches.len());

        server.set_stuck(false);
        sleep(Duration::from_secs(5)).await;
        assert_ne!(cache.token(TOKEN).await.0, old, "{left}: the new token is served within 5 s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_in_use_stays_above_the_first_librarys_threshold() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.token(TOKEN).await;
    for _ in 0..180 {
        sleep(MAX_IDENTITY_AGE).await;
        let (_, left) = cache.token(TOKEN).await;
        assert!(left > 290, "a client that sends a request every minute gets {left} s");
    }
    assert!(server.fetches() <= 3 * 9, "{} fetches in three hours", server.fetches());
}

#[tokio::test(start_paused = true)]
async fn a_token_ages_while_the_machine_is_suspended() {
    let server = Server::taking(Duration::ZERO);
    let cache = Cache::new(&server);
    let (first, left) = cache.token(TOKEN).await;
    assert_eq!(left, 3599);
    server.set(Mode::Closes);
    sleep(10 * MAX_IDENTITY_AGE).await;
    suspend(40 * MAX_IDENTITY_AGE);
    assert_eq!(cache.token(TOKEN).await, (first.clone(), 599), "expires_in includes the suspension");
    suspend(10 * MAX_IDENTITY_AGE);
    assert_eq!(cache.ask(TOKEN).await, Got::Unavailable, "the token has expired");
    server.set(Mode::Gives);
    // The keeper fetches soon, without a request.
    sleep(Duration::from_secs(31)).await;
    let before = server.fetches();
    assert_ne!(cache.token(TOKEN).await.0, first);
    assert_eq!(server.fetches(), before);
}

#[tokio::test(start_paused = true)]
async fn the_proxys_own_token_is_kept_fresh_without_requests() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.tokens.warm(TokenKey::default_account()).await.expect("a token");
    let mut least = u32::MAX;
    for _ in 0..5 * 60 {
        sleep(MAX_IDENTITY_AGE).await;
        least = least.min(cache.left().expect("a token"));
    }
    assert!(least > 120, "only {least} s were left once: the alert would fire");
    assert!((6..5 * 9).contains(&server.fetches()), "{} fetches in five hours", server.fetches());
}

#[tokio::test(start_paused = true)]
async fn the_gauge_is_0_if_a_token_expired_without_a_replacement_and_absent_without_an_account() {
    let server = Server::new();
    let cache = Cache::new(&server);
    assert_eq!(cache.left(), None, "at first");
    server.set(Mode::Refuses(404));
    cache.tokens.warm(TokenKey::default_account()).await.expect_err("no account");
    sleep(10 * MAX_IDENTITY_AGE).await;
    assert_eq!(cache.left(), None, "without an account");
    server.set(Mode::Gives);
    sleep(2 * MAX_IDENTITY_AGE).await;
    assert!(cache.left().is_some_and(|left| left > 3000), "it is fetched without a request: {:?}", cache.left());
    server.set(Mode::Closes);
    sleep(61 * MAX_IDENTITY_AGE).await;
    assert_eq!(cache.left(), Some(0), "it expired, and the server returns no other");
    server.set(Mode::Gives);
    sleep(Duration::from_secs(15)).await;
    assert!(cache.left().is_some_and(|left| left > 3000), "it is fetched without a request: {:?}", cache.left());
}

#[tokio::test(start_paused = true)]
async fn a_workloads_token_is_fetched_again_long_before_it_expires() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let key = default_of(1);
    cache.tokens.warm(key.clone()).await.expect("a token");
    sleep(Duration::from_secs(2500)).await;
    assert_eq!(server.fetches_of(&key).len(), 1);
    sleep(Duration::from_secs(400)).await;
    let fetches = server.fetches_of(&key);
    assert!(fetches.len() >= 3, "the same token is no reason to wait for long: {fetches:?}");
    assert!(fetches.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= RECHECK_INTERVAL));
}

#[tokio::test(start_paused = true)]
async fn a_token_in_use_that_ends_soon_is_urgent_and_what_nobody_asks_for_is_not() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.token(TOKEN).await;
    sleep(Duration::from_secs(3300)).await;
    let told = || server.urgencies.lock().expect("urgencies").clone();
    assert_eq!(told()[..2], [Urgency::Demanded, Urgency::Soon], "{:?}", told());
    sleep(240 * MAX_IDENTITY_AGE).await;
    assert_eq!(told().last(), Some(&Urgency::Background), "nobody asked for it");

    // A renewal long before the end is nobody's demand.
    let key = default_of(1);
    let server = Server::new();
    Cache::new(&server).tokens.warm(key).await.expect("a token");
    sleep(Duration::from_secs(2890)).await;
    let told = server.urgencies.lock().expect("urgencies").clone();
    assert_eq!(told[1], Urgency::Background, "{told:?}");
}

/// Its account has changed.
#[tokio::test(start_paused = true)]
async fn a_request_for_a_token_that_is_forgotten_is_told_why_and_the_token_is_not_fetched_again() {
    let server = Server::new();
    server.set(Mode::Hangs);
    let cache = Cache::new(&server);
    let key = default_of(1);
    let principal = key.principal;
    let waiting = cache.tokens.warm(key);
    let (told, ()) = tokio::join!(waiting, async {
        sleep(Duration::from_secs(1)).await;
        cache.store.forget_all_of(principal);
    });
    let why = told.expect_err("forgotten");
    assert!(why.to_string().contains("service account has changed"), "{why}");
    server.set(Mode::Gives);
    sleep(60 * MAX_IDENTITY_AGE).await;
    assert_eq!((cache.entries(), server.fetches()), (0, 1), "its keeper has ended");
}

#[tokio::test(start_paused = true)]
async fn identity_tokens_are_cached_for_a_minute_and_not_refreshed() {
    const IDENTITY: &str = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=";
    let server = Server::new();
    let cache = Cache::new(&server);
    let first = cache.ask(&format!("{IDENTITY}x")).await;
    sleep(Duration::from_secs(58)).await;
    assert_eq!(cache.ask(&format!("{IDENTITY}x")).await, first);
    assert_ne!(cache.ask(&format!("{IDENTITY}y")).await, first, "another audience");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(server.fetches(), 2);
    assert_ne!(cache.ask(&format!("{IDENTITY}x")).await, first);
    assert_eq!(server.fetches(), 3);
}

#[tokio::test(start_paused = true)]
async fn only_the_tokens_of_the_principal_are_forgotten() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.token(TOKEN).await;
    for id in [1, 2] {
        cache.tokens.warm(default_of(id)).await.expect("a token");
    }
    assert_eq!(cache.entries(), 3);
    cache.store.forget_all_of(Principal::Workload(WorkloadId(1)));
    server.set(Mode::Closes);
    assert_eq!(cache.entries(), 2);
    cache.token(TOKEN).await;
    assert!(cache.tokens.warm(default_of(2)).await.is_ok());
    assert!(cache.tokens.warm(default_of(1)).await.is_err());
}

/// A pod's own identity token, older than a minute, at a server that issues none in time.
#[tokio::test(start_paused = true)]
async fn a_pods_identity_token_is_served_while_the_next_is_late() {
    let server = Server::taking(Duration::from_millis(100));
    let cache = Cache { principal: Principal::Workload(WorkloadId(1)), ..Cache::new(&server) };
    let identity = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https://a";
    let first = cache.ask(identity).await;
    sleep(MAX_IDENTITY_AGE + Duration::from_secs(1)).await;
    server.set(Mode::Hangs);
    assert_eq!(cache.ask(identity).await, first, "it is valid");
    server.set(Mode::Refuses(403));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(cache.ask(identity).await, Got::Status(403));
    server.set(Mode::Hangs);
    sleep(MAX_IDENTITY_AGE).await;
    assert_eq!(cache.ask(identity).await, Got::Unavailable, "the last word was a refusal");
}

/// The flight waits behind others, and the client leaves.
#[tokio::test(start_paused = true)]
async fn a_pods_identity_token_is_kept_though_nobody_waits_for_the_next() {
    let server = Server::new();
    let cache = Cache { principal: Principal::Workload(WorkloadId(1)), ..Cache::new(&server) };
    let identity = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https://a";
    let first = cache.ask(identity).await;
    sleep(MAX_IDENTITY_AGE + Duration::from_secs(1)).await;
    let _others = cache.crowd_as(1, (0..24).map(|n| scoped(&format!("slow-{n}"))));
    sleep(Duration::from_millis(1)).await;
    assert!(timeout(Duration::from_secs(1), cache.ask(identity)).await.is_err(), "all of the pod's places are taken");
    sleep(Duration::from_secs(3)).await;
    server.set(Mode::Closes);
    assert_eq!(cache.ask(identity).await, first, "it is valid");
}
