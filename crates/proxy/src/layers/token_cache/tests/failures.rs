//! A server that fails or refuses.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_valid_token_is_served_while_the_server_fails() {
    for mode in [Mode::Closes, Mode::Hangs, Mode::Garbles, Mode::Refuses(500), Mode::Refuses(429), Mode::Refuses(404)] {
        let server = Server::new();
        let cache = Cache::new(&server);
        let first = cache.token(TOKEN).await.0;
        sleep(MINUTE).await;
        server.set(mode);
        for _ in 0..55 * 60 {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(cache.token(TOKEN).await.0, first, "{mode:?}");
        }
        let fetches = server.fetches();
        assert!((2..60).contains(&fetches), "{mode:?}: {fetches} fetches in 55 minutes");
        server.set(Mode::Gives);
        sleep(Duration::from_secs(13)).await;
        assert_ne!(cache.token(TOKEN).await.0, first, "{mode:?}: a new token replaces the old one before it expires");
    }
}

#[tokio::test(start_paused = true)]
async fn after_expiry_requests_fail_in_time_and_recovery_is_noticed_within_a_second() {
    for mode in [Mode::Closes, Mode::Hangs, Mode::Garbles, Mode::Refuses(500)] {
        let server = Server::new();
        let cache = Cache::new(&server);
        let first = cache.token(TOKEN).await.0;
        server.set(mode);
        sleep(62 * MINUTE).await;

        let dead = Instant::now();
        while dead.elapsed() < MINUTE {
            let asked = Instant::now();
            let got = cache.ask(TOKEN).await;
            assert!(matches!(got, Got::Unavailable | Got::Status(500)), "{mode:?}: {got:?}");
            assert!(asked.elapsed() <= Duration::from_millis(2500), "{mode:?}: {:?}", asked.elapsed());
            sleep(Duration::from_millis(10)).await;
        }
        let probes = server.fetches_since(dead).len();
        assert!((15..=101).contains(&probes), "{mode:?}: {probes} fetches in a minute with 100 requests per second");

        server.set(Mode::Gives);
        let back = Instant::now();
        while cache.ask(TOKEN).await != Got::Token("ya29.2".to_owned(), 3598) {
            assert!(back.elapsed() < Duration::from_secs(1), "{mode:?}: recovery was not noticed");
            sleep(Duration::from_millis(10)).await;
        }
        assert_ne!(cache.token(TOKEN).await.0, first);
        assert!(server.fetches_since(back).len() <= 2, "{mode:?}: too many fetches at recovery");
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_token_is_at_risk_in_its_last_minutes_while_its_source_fails_or_refuses_and_after_it_expired() {
    let outages = [Mode::Closes, Mode::Hangs, Mode::Garbles, Mode::Refuses(500)];
    let refusals = [Mode::Refuses(403), Mode::Refuses(404), Mode::Refuses(429)];
    for mode in outages.into_iter().chain(refusals).chain([Mode::Gives]) {
        let server = Server::new();
        let cache = Cache::new(&server);
        cache.tokens.warm(TokenKey::default_account()).await.expect("a token");
        let at_risk = || cache.store.default_at_risk().map(|(why, seconds)| (why.is_outage(), seconds));
        server.set(mode);
        for (minutes, left) in [(30, None), (24, None), (2, Some(180..240)), (10, Some(0..1)), (60, Some(0..1))] {
            sleep(MINUTE * minutes).await;
            let (left, found) = (left.filter(|_| mode != Mode::Gives), at_risk());
            assert_eq!(left.is_some(), found.is_some(), "{mode:?}: {found:?}");
            assert!(
                found.is_none_or(|(is_outage, seconds)| left.is_some_and(|left| left.contains(&seconds))
                    && is_outage == outages.contains(&mode)),
                "{mode:?}: {found:?}"
            );
        }
        if mode != Mode::Gives {
            assert_eq!(cache.left(), Some(0), "{mode:?}: the alert fires");
        }
        server.set(Mode::Gives);
        sleep(2 * MINUTE).await;
        assert_eq!(at_risk(), None, "{mode:?} is over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_from_the_start_is_a_risk_only_if_the_machine_has_an_account() {
    for status in [403, 404] {
        let server = Server::new();
        let cache = Cache::new(&server);
        server.set(Mode::Refuses(status));
        cache.tokens.warm(TokenKey::default_account()).await.expect_err("no token");
        let at_risk = || cache.store.default_at_risk().map(|(_, seconds)| seconds);
        assert_eq!((at_risk(), cache.left()), (None, None), "{status}: a machine may have no account");
        cache.store.know_default_email("a@b.c");
        assert_eq!((at_risk(), cache.left()), (Some(0), Some(0)), "{status}");
        server.set(Mode::Gives);
        sleep(2 * MINUTE).await;
        assert_eq!(at_risk(), None, "{status} is over");
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_for_another_account_is_a_risk_for_the_default_token() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.store.know_default_email("a@b.c");
    cache.tokens.warm(TokenKey::default_account()).await.expect("a token");
    server.set(Mode::Refuses(404));
    let invented = "/computeMetadata/v1/instance/service-accounts/invented@b.c/token";
    for target in [invented, &format!("{TOKEN}?scopes=invented")] {
        assert_eq!(cache.ask(target).await, Got::Status(404));
        assert!(cache.store.default_at_risk().is_none() && cache.left().is_some_and(|left| left > 3000), "{target}");
    }
    // Not while it ends soon either.
    suspend(56 * MINUTE);
    assert_eq!(cache.ask(&format!("{invented}?scopes=a")).await, Got::Status(404));
    assert!(cache.store.default_at_risk().is_none() && cache.left().is_some_and(|left| left < 300));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shared_by_all_waiting_requests() {
    let server = Server::new();
    server.set(Mode::Closes);
    let cache = Cache::new(&server);
    let got = cache.crowd(1000, TOKEN).join_all().await;
    assert!(got.iter().all(|got| *got == Got::Unavailable));
    assert_eq!(server.fetches(), 1);
    assert_eq!(cache.crowd(1000, TOKEN).join_all().await.len(), 1000);
    assert_eq!(server.fetches(), 1, "requests that follow get it too");
}

/// As where the process stood still for longer than a failure is the answer to requests.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_that_runs_late_gets_the_failure_it_waited_for() {
    let (keeper, known) = watch::channel(Known::default());
    let waiting = tokio::spawn(waiting(known));
    yield_now().await;
    assert!(!waiting.is_finished());
    let why = NoToken::from(TokenFailure::Resting);
    keeper.send_modify(|known| known.failure = Some(Remembered::until(why, BootTime::now())));
    let answer = waiting.await.expect("no panic");
    assert!(matches!(&answer, Err(Error::Token(why)) if matches!(**why, TokenFailure::Resting)), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_passed_on_and_cached_briefly() {
    for (status, remembered) in [(404, 10_000), (403, 1000), (429, 1000), (400, 1000)] {
        let server = Server::new();
        server.set(Mode::Refuses(status));
        let cache = Cache::new(&server);
        assert_eq!(cache.ask(TOKEN).await, Got::Status(status));
        sleep(Duration::from_millis(remembered - 1)).await;
        assert_eq!((cache.ask(TOKEN).await, server.fetches()), (Got::Status(status), 1));
        sleep(Duration::from_millis(1)).await;
        assert_eq!((cache.ask(TOKEN).await, server.fetches()), (Got::Status(status), 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_has_expired_on_arrival_is_not_fetched_at_every_request() {
    let server = Server::new();
    server.set(Mode::GivesTheLastSecond);
    let cache = Cache::new(&server);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        cache.ask(TOKEN).await;
        sleep(Duration::from_millis(1)).await;
    }
    assert!(server.fetches() <= 20, "{} fetches in 10 s", server.fetches());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_source_fails_only_those_that_wait_for_it() {
    let server = Server::taking(Duration::ZERO);
    server.set(Mode::Panics);
    let cache = Cache::new(&server);
    let began = Instant::now();
    assert_eq!(cache.ask(TOKEN).await, Got::NoRoom);
    assert_eq!((began.elapsed(), cache.entries()), (Duration::ZERO, 0));
    server.set(Mode::Gives);
    cache.token(TOKEN).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_withheld_is_an_error_so_that_it_is_counted_and_listed() {
    for why in [Withheld::Untrusted, Withheld::Account] {
        let server = Server::new();
        server.set(Mode::Withholds(why));
        let cache = Cache::new(&server);
        // Waited for, then remembered.
        for _ in 0..2 {
            assert_eq!(cache.ask(TOKEN).await, Got::Withheld(why));
        }
    }
}
