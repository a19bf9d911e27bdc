//! What another process takes over.

use serde_json::json;

use super::*;

const IDENTITY: &str = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https://a";

/// The records of a process, as they are sent.
fn sent(cache: &Cache) -> Vec<Value> {
    let exported = cache.store.exported(BootTime::now());
    exported.iter().map(|exported| serde_json::to_value(exported.record()).expect("JSON")).collect()
}

fn take(cache: &Cache, record: &Value) -> Result<(), NotTaken> {
    let record = serde_json::from_str(&record.to_string()).expect("a record");
    cache.tokens.take_over(Principal::Node, &record, BootTime::now())
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_taken_over_ends_and_is_renewed_as_it_would_have_been() {
    let server = Server::new();
    let before = Cache::new(&server);
    for target in [TOKEN, &scoped("a,b"), IDENTITY] {
        assert!(matches!(before.ask(target).await, Got::Token(..)), "{target}");
    }
    sleep(Duration::from_secs(30)).await;
    let fetches = server.fetches();
    let records = sent(&before);
    assert_eq!(records.len(), 3);

    let after = Cache::new(&server);
    for record in &records {
        assert_eq!(take(&after, record), Ok(()));
    }
    for target in [TOKEN, &scoped("b,a"), IDENTITY] {
        assert_eq!(after.ask(target).await, before.ask(target).await, "{target}");
    }
    assert_eq!(server.fetches(), fetches);
    // Both keepers of the default token, and of the scoped one, renew it before it ends.
    sleep(50 * MINUTE).await;
    assert_eq!(server.fetches(), fetches);
    sleep(5 * MINUTE).await;
    assert!(server.fetches() >= fetches + 4, "{} and {fetches}", server.fetches());
}

#[tokio::test(start_paused = true)]
async fn what_is_known_already_is_not_replaced() {
    let server = Server::new();
    let (before, after) = (Cache::new(&server), Cache::new(&server));
    before.token(TOKEN).await;
    let records = sent(&before);
    after.token(TOKEN).await;
    assert_eq!(take(&after, &records[0]), Err(NotTaken::Needless));
}

#[tokio::test(start_paused = true)]
async fn what_is_invalid_is_not_taken_over() {
    let server = Server::new();
    let before = Cache::new(&server);
    before.token(&scoped("a")).await;
    sleep(MINUTE).await;
    let record = &sent(&before)[0];
    let now = BootTime::now().as_nanos();
    let later = |seconds: u64| json!(now + seconds * 1_000_000_000);
    for (field, value, expected) in [
        ("target", json!("/computeMetadata/v1/instance/id"), NotTaken::Key),
        (
            "target",
            json!("/computeMetadata/v1/instance/service-accounts/default/token?wait_for_change=true"),
            NotTaken::Key,
        ),
        ("target", json!("nonsense"), NotTaken::Key),
        ("holder", json!(null), NotTaken::Key),
        ("token", json!({}), NotTaken::Token),
        ("token", json!("an.identity.token"), NotTaken::Token),
        ("token", json!({"access_token": "a\nb", "expires_in": 1, "token_type": "Bearer"}), NotTaken::Token),
        ("since", later(1), NotTaken::Times),
        ("expires", later(2 * 86_400), NotTaken::Times),
        ("expires", json!(0), NotTaken::Times),
        ("good_until", later(86_400), NotTaken::Times),
    ] {
        let mut changed = record.clone();
        changed[field] = value;
        let after = Cache::new(&server);
        assert_eq!(take(&after, &changed), Err(expected), "{changed}");
        assert_eq!(after.entries(), 0);
    }
    sleep(Duration::from_secs(u64::from(HOUR))).await;
    assert_eq!(take(&Cache::new(&server), record), Err(NotTaken::Expired));
    assert!(!format!("{:?}", before.store.exported(BootTime::now())).contains("ya29"));
}

/// A record does not name a certificate, and a token that is bound to one is not for others.
#[tokio::test(start_paused = true)]
async fn what_is_bound_to_a_certificate_is_not_handed_over() {
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.token(&scoped("a")).await;
    let entry = cache.store.entries().remove(0);
    let token = entry.known.borrow().token.clone();
    let mut key = TokenKey::clone(&entry.key);
    key.bound_to = Some(Box::new([1; 32].into()));
    let (bound, is_new) = cache.store.find_or_make(key, entry.holder, BootTime::now()).expect("there is room");
    assert!(is_new, "it is another entry");
    bound.known.send_modify(|known| known.token = token);
    assert_eq!((cache.entries(), sent(&cache).len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_over_is_charged_to_the_same_client() {
    let server = Server::new();
    let (before, after) = (Cache::new(&server), Cache::new(&server));
    server.set(Mode::GivesALargeOne);
    before.token(&scoped("a")).await;
    assert_eq!(take(&after, &sent(&before)[0]), Ok(()));
    assert!(before.store.bytes().0 > LARGE_TOKEN);
    assert_eq!(after.store.bytes(), before.store.bytes());
}
