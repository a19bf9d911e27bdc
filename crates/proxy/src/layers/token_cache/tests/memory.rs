//! What is kept in memory, how much of it, and for how long.

use super::*;

/// Keys as large as a request may be.
#[tokio::test(start_paused = true)]
async fn the_memory_of_large_keys_is_limited() {
    let server = Server::taking(Duration::from_millis(1));
    let cache = Cache::new(&server);
    let large = |n: usize| scoped(&format!("{n}{}", "x".repeat(8000)));
    for n in 0..1100 {
        cache.token(&large(n)).await;
    }
    let (bytes, limit) = cache.store.bytes();
    assert!(bytes <= limit);
    let keys: usize = cache.store.rows(usize::MAX, BootTime::now()).0.iter().map(|row| row.key.heap()).sum();
    assert!(keys < limit && keys > limit / 2, "{keys} bytes of keys");
    assert_eq!(cache.ask_as(1, &large(1099)).await, cache.ask_as(2, &large(1099)).await);
}

/// The margin of 400 bytes is for the internals of tasks, watches and maps, whose size is not visible here.
#[tokio::test(start_paused = true)]
async fn an_entry_is_not_larger_than_its_charge() {
    let cache = Cache::new(&Server::new());
    let entry = cache.store.find_or_make(TokenKey::default_account(), None, BootTime::now()).expect("room").0;
    let keeper = flight::Keeper {
        entry: Arc::clone(&entry),
        store: Arc::clone(&cache.store),
        source: Arc::new(Source(Server::new())),
    };
    let (entry, keeper) = (size_of_val(&*entry), size_of_val(&keeper.run(flight::Next::Wait)));
    assert!(entry + keeper + 400 <= entry::ENTRY_BYTES, "entry {entry}, keeper {keeper}");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_takes_little_memory() {
    let cache = Cache::new(&Server::new());
    let entry = cache.store.find_or_make(TokenKey::default_account(), None, BootTime::now()).expect("room").0;
    let known = entry.join(None).0;
    let waiting = waiting(known);
    assert!(size_of_val(&waiting) <= 1024, "{}", size_of_val(&waiting));
}

#[tokio::test(start_paused = true)]
async fn an_expired_token_is_dropped_without_a_request() {
    for target in [TOKEN, &scoped("a"), "/computeMetadata/v1/instance/service-accounts/default/identity?audience=x"] {
        let server = Server::taking(Duration::ZERO);
        let cache = Cache::new(&server);
        assert!(matches!(cache.ask(target).await, Got::Token(..)));
        let key = TokenKey::from_request(&request(target)).expect("a token").0;
        let entry = cache.store.find(&key).expect("an entry");
        let kept = Arc::downgrade(entry.known.borrow().token.as_ref().expect("a token"));
        server.set(Mode::Hangs);
        let life = if key.kind == TokenKind::Identity { 60 } else { 3599 };
        sleep(Duration::from_secs(life - 1)).await;
        assert!(kept.upgrade().is_some(), "{target}: it is still valid");
        sleep(Duration::from_secs(1)).await;
        assert!(kept.upgrade().is_none(), "{target}: it is still in memory");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_token_is_charged_until_it_expires() {
    let server = Server::new();
    let cache = Cache::new(&server);
    server.set(Mode::GivesALargeOne);
    for n in 0..200 {
        cache.token(&scoped(&n.to_string())).await;
        assert!(cache.store.bytes().0 <= DEFAULT_LIMIT_BYTES);
    }
    let (entries, charged) = (cache.entries(), cache.store.bytes().0);
    assert!(charged > entries * 2 * LARGE_TOKEN && entries > 50, "{entries} entries with {charged} bytes");
    server.set(Mode::Hangs);
    sleep(Duration::from_secs(HOUR.into())).await;
    let (entries, charged) = (cache.entries(), cache.store.bytes().0);
    assert!(charged < entries * LARGE_TOKEN && entries > 50, "{entries} entries with {charged} bytes");
}

/// It would evict all other entries, and still have no room.
#[tokio::test(start_paused = true)]
async fn a_token_larger_than_all_room_is_given_out_and_not_kept() {
    let server = Server::new();
    let cache = Cache::with_limit(2 * LARGE_TOKEN, &server);
    server.set(Mode::GivesALargeOne);
    assert_eq!(cache.token(&scoped("a")).await.0.len(), LARGE_TOKEN);
    assert_eq!((cache.entries(), cache.store.bytes().0), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_evicted_token_is_dropped() {
    let server = Server::taking(Duration::from_millis(1));
    let cache = Cache::with_limit(16 * 1024, &server);
    cache.token(&scoped("first")).await;
    let key = TokenKey::from_request(&request(&scoped("first"))).expect("a token").0;
    let kept =
        Arc::downgrade(cache.store.find(&key).expect("an entry").known.borrow().token.as_ref().expect("a token"));
    for n in 0..10 {
        cache.token(&scoped(&n.to_string())).await;
    }
    assert!(kept.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_unused_entry_is_removed() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.token(&scoped("a")).await;
    sleep(3 * 60 * MINUTE).await;
    assert_eq!((cache.entries(), cache.store.bytes().0), (0, 0));
    assert!(server.fetches() <= 12, "{} fetches without a request", server.fetches());
}

/// As by its keeper, and by a token that another process hands over meanwhile.
#[test]
fn an_entry_that_two_change_at_once_is_charged_for_what_it_takes() {
    let store = Store::new(DEFAULT_LIMIT_BYTES, &Registry::default());
    let (key, pod) = (TokenKey::from_request(&request(&scoped("a"))).expect("a token").0, [10, 0, 0, 1].into());
    let entry = store.find_or_make(key, Some(pod), BootTime::now()).expect("room").0;
    let change = |bytes| {
        let (status, headers, body) = (StatusCode::FORBIDDEN, HeaderMap::new(), vec![b'x'; bytes].into());
        let why = NoToken::Refused(Arc::new(Refused { status, headers, body, withheld: None }));
        for _ in 0..50_000 {
            entry.known.send_modify(|known| known.failure = Some(Remembered::always(why.clone())));
            store.reweigh(&entry);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| change(10_000));
        change(20_000);
    });
    assert_eq!(store.bytes().0, entry.weigh());
}
