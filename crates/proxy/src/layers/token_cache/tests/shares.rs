//! Pods that ask for more than others.

use super::*;
use crate::memory::{Budget, Demand};

#[tokio::test(start_paused = true)]
async fn invented_scopes_neither_grow_the_cache_nor_evict_a_key_in_use() {
    let server = Server::taking(Duration::from_millis(1));
    let cache = Cache::new(&server);
    let used = scoped("used");
    for invented in 0..5000 {
        if invented % 10 == 0 {
            cache.token(&used).await;
        }
        cache.token(&scoped(&format!("invented-{invented}"))).await;
        let (bytes, limit) = cache.store.bytes();
        assert!(bytes <= limit, "{bytes} bytes");
    }
    let entries = cache.entries();
    assert!((400..600).contains(&entries), "{entries} entries of common size");
    let is_used = |key: &TokenKey| key.params().any(|(_, value)| value == "used");
    let fetched = server.fetches.lock().expect("fetches").iter().filter(|(key, _)| is_used(key)).count();
    assert_eq!(fetched, 1, "the key in use was never evicted");
    let kept = f64::from(u32::try_from(entries).expect("a small number"));
    assert!((cache.count("metadata_proxy_token_evictions_total") - (5001.0 - kept)).abs() < 0.1);

    // The keepers of evicted entries have ended: in the next hour only the others refresh.
    let before = server.fetches();
    sleep(Duration::from_secs(3590)).await;
    let refreshes = server.fetches() - before;
    assert!(refreshes <= 7 * entries, "{refreshes} refreshes, but {entries} keepers need 5 to 6 each");
}

#[tokio::test(start_paused = true)]
async fn only_the_client_that_holds_most_gives_way() {
    let server = Server::taking(Duration::from_millis(1));
    let cache = Cache::new(&server);
    cache.token(TOKEN).await;
    for n in 0..5 {
        assert!(matches!(cache.ask_as(2, &scoped(&format!("modest-{n}"))).await, Got::Token(..)));
    }
    for n in 0..2000 {
        cache.token(&scoped(&format!("invented-{n}"))).await;
    }
    let before = server.fetches();
    for n in 0..5 {
        assert!(matches!(cache.ask_as(2, &scoped(&format!("modest-{n}"))).await, Got::Token(..)));
    }
    cache.token(TOKEN).await;
    assert_eq!(server.fetches(), before, "entries of other clients remain, however long they were unused");
}

/// One pod waits for the maximum number of slow keys, while other pods request new tokens.
#[tokio::test(start_paused = true)]
async fn one_pods_slow_keys_do_not_delay_other_pods() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let mut hostile = cache.crowd_as(1, (0..1100).map(|n| scoped(&format!("slow-{n}-{}", "x".repeat(4000)))));
    sleep(Duration::from_secs(1)).await;
    for n in 0..20 {
        let asked = Instant::now();
        let got = cache.ask_as(2 + n % 3, &scoped(&format!("honest-{n}"))).await;
        assert!(matches!(got, Got::Token(..)), "{n}: {got:?}");
        assert!(asked.elapsed() < Duration::from_millis(500), "{n}: {:?}", asked.elapsed());
    }
    assert_eq!(server.most_flying.load(Relaxed), 12);
    let mut got = Vec::new();
    while let Some(one) = hostile.join_next().await {
        got.push(one.expect("no panic"));
    }
    let too_many = got.iter().filter(|got| **got == Got::TooMany).count();
    assert!(too_many > 500, "{too_many} were refused with the reason");
    assert!(got.iter().all(|got| !matches!(got, Got::Status(_))));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_a_pod_lost_to_another_is_fetched_for_the_next_that_asks() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::new(&server);
    let key = |n: usize| scoped(&format!("wanted-{n}"));
    let mut first = cache.crowd_as(1, (0..12).map(key));
    sleep(Duration::from_millis(1)).await;
    let _second = cache.crowd_as(2, [key(12)]);
    let lost = first.join_next().await.expect("one gives way").expect("no panic");
    assert_eq!(lost, Got::TooMany);
    let got = cache.crowd_as(3, (0..12).map(key)).join_all().await;
    assert!(got.iter().all(|got| matches!(got, Got::Token(..))), "{got:?}");
}

/// The keeper runs only after the third pod has asked, because all who slept are woken at once, in order.
#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_just_when_the_flight_is_given_up_gets_the_token() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::new(&server);
    let key = |n: usize| scoped(&format!("wanted-{n}"));
    let _first = cache.crowd_as(1, (0..12).map(key));
    sleep(Duration::from_millis(1)).await;
    let _second = cache.crowd_as(2, [key(12)]);
    sleep(Duration::from_millis(1)).await;
    let third = tokio::spawn(async move {
        sleep(Duration::from_millis(199)).await;
        cache.ask_as(3, &key(0)).await
    });
    let got = third.await.expect("no panic");
    assert!(matches!(got, Got::Token(..)), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn one_pod_has_a_small_part_of_the_exchanges_for_workloads() {
    let server = Server::new();
    let cache = Cache { principal: Principal::Workload(WorkloadId(1)), ..Cache::new(&server) };
    let _hostile = cache.crowd_as(1, (0..300).map(|n| scoped(&format!("slow-{n}"))));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.most_flying.load(Relaxed), 24);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_others_wait_for_is_never_evicted() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::with_limit(64 * 1024, &server);
    let honest: Vec<String> = (0..4).map(|n| scoped(&format!("honest-{n}"))).collect();
    let honest = cache.crowd_as(2, honest);
    let hostile = cache.crowd_as(1, (0..1000).map(|n| scoped(&format!("invented-{n}"))));
    let got = honest.join_all().await;
    assert!(got.iter().all(|got| matches!(got, Got::Token(..))), "{got:?}");
    let got = hostile.join_all().await;
    assert!(got.contains(&Got::TooMany), "requests without room get the reason");
    assert!(!got.contains(&Got::NoRoom), "it alone is to blame");
}

/// Two pods wait for the same tokens, so that none may give way to a third.
#[tokio::test(start_paused = true)]
async fn a_pod_that_finds_all_room_taken_by_others_is_not_to_blame() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::with_limit(64 * 1024, &server);
    let taken: Vec<String> = (0..1000).map(|n| scoped(&format!("taken-{n}"))).collect();
    let _first = cache.crowd_as(1, taken.clone());
    let _second = cache.crowd_as(2, taken);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(cache.ask_as(3, &scoped("wanted")).await, Got::NoRoom);
}

#[tokio::test(start_paused = true)]
async fn abandoned_keys_do_not_delay_others() {
    let server = Server::taking(Duration::from_secs(1));
    let cache = Cache::new(&server);
    for invented in 0..1000 {
        let mut gone = cache.crowd(1, &format!("{TOKEN}?scopes=invented-{invented}"));
        sleep(Duration::from_millis(1)).await;
        gone.shutdown().await;
    }
    let asked = Instant::now();
    while !matches!(cache.ask(TOKEN).await, Got::Token(..)) {
        assert!(asked.elapsed() < Duration::from_secs(10), "an ordinary key waits behind {} fetches", server.fetches());
        sleep(Duration::from_millis(100)).await;
    }
}

/// The scopes of a long token, so that an entry weighs what one of Google's does.
fn of_account(account: u8, token: u8) -> String {
    scoped(&format!("{account}-{token}-{}", "https://www.googleapis.com/auth/cloud-platform".repeat(4)))
}

/// What the manifests of identity give: 32 MiB.
#[tokio::test(start_paused = true)]
async fn four_tokens_of_each_of_110_accounts_have_room_also_beside_a_pod_that_invents_scopes() {
    let demand = Demand { connections: 1000, exchanges: 264, has_accounts: true };
    let server = Server::new();
    let cache = Cache::with_limit(Budget::new(Some(32 << 20), demand).tokens, &server);
    let keys = || (1..=110).flat_map(|account| (0..4).map(move |token| (account, of_account(account, token))));
    for (account, key) in keys() {
        assert!(matches!(cache.ask_as(account, &key).await, Got::Token(..)));
    }
    assert_eq!((cache.entries(), server.fetches()), (440, 440));
    for invented in 0..1000 {
        cache.ask_as(1, &scoped(&format!("invented-{invented}"))).await;
    }
    let before = server.fetches();
    // The pod that invents evicts what it has itself.
    for (account, key) in keys().filter(|(account, _)| *account != 1) {
        assert!(matches!(cache.ask_as(account, &key).await, Got::Token(..)));
    }
    assert_eq!(server.fetches(), before, "none was evicted");
}
