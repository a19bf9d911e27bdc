//! Tests the cache with a scripted source, on paused time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};

use super::Audit;
use super::freshness::RECHECK_INTERVAL;
use super::known::{Known, RecentFailure};
use super::*;
use crate::clock::{BootTime, suspend};
use crate::error::{Error, Overload};
use crate::failure::{Failure, TokenFailure, UPSTREAM_TIMEOUT};
use crate::metadata::token::{AccessToken, TokenError, TokenFormat};
use crate::metadata::{Endpoint as Path, MetadataPath, Principal, Query, Request, RequestError, WorkloadId};
use crate::reply::Body;
use crate::shares::Client;
use crate::telemetry::Registry;
use crate::tokens::{Fetched, NoToken, Refused, TokenKey, TokenKind, TokenSource};
use crate::workloads::{Annotations, Endpoint, Federation, Provider, Trust, Workloads};

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: u32 = 3599;

/// Behaviour of the server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Gives,
    Refuses(u16),
    Closes,
    Hangs,
    Garbles,
    /// A token with one second left.
    GivesTheLastSecond,
}

/// A server that returns the same token until 300 s are left, as the real one does.
#[derive(Debug)]
struct Server {
    mode: Mutex<Mode>,
    minted: Mutex<Option<(u64, BootTime)>>,
    /// Returns the same token until it expires.
    is_stuck: Mutex<bool>,
    fetches: Mutex<Vec<(TokenKey, Instant)>>,
    flying: AtomicU64,
    most_flying: AtomicU64,
    /// Duration of a fetch. Keys whose scopes begin with `slow` take 2.4 s instead, and get a new token each.
    takes: Duration,
}

impl Server {
    fn taking(takes: Duration) -> Arc<Self> {
        Arc::new(Self {
            mode: Mutex::new(Mode::Gives),
            minted: Mutex::default(),
            is_stuck: Mutex::default(),
            fetches: Mutex::default(),
            flying: AtomicU64::default(),
            most_flying: AtomicU64::default(),
            takes,
        })
    }

    fn new() -> Arc<Self> {
        Self::taking(Duration::from_millis(20))
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().expect("mode") = mode;
    }

    fn set_stuck(&self, is_stuck: bool) {
        *self.is_stuck.lock().expect("stuck") = is_stuck;
    }

    /// Sets the remaining seconds of the current token.
    fn age_to(&self, left: u64) {
        let mut minted = self.minted.lock().expect("minted");
        let serial = minted.map_or(0, |(serial, _)| serial);
        *minted = Some((serial, BootTime::now() + Duration::from_secs(left)));
    }

    fn fetches(&self) -> usize {
        self.fetches.lock().expect("fetches").len()
    }

    fn fetches_since(&self, when: Instant) -> Vec<Instant> {
        self.fetches.lock().expect("fetches").iter().map(|(_, at)| *at).filter(|at| *at >= when).collect()
    }

    fn fetches_of(&self, key: &TokenKey) -> Vec<Instant> {
        let fetches = self.fetches.lock().expect("fetches");
        fetches.iter().filter(|(of, _)| of == key).map(|(_, at)| *at).collect()
    }

    fn token(&self) -> (u64, u32) {
        let now = BootTime::now();
        let is_stuck = *self.is_stuck.lock().expect("stuck");
        let mut minted = self.minted.lock().expect("minted");
        let left = minted.map_or(0, |(_, expires)| expires.seconds_since(now));
        if left == 0 || (left <= 300 && !is_stuck) {
            let serial = minted.map_or(0, |(serial, _)| serial) + 1;
            *minted = Some((serial, now + Duration::from_secs(HOUR.into())));
        }
        let (serial, expires) = minted.expect("just minted");
        (serial, u32::try_from(expires.seconds_since(now)).expect("an hour"))
    }
}

struct Source(Arc<Server>);

/// A fetch under way.
struct Flying<'a>(&'a Server);

impl<'a> Flying<'a> {
    fn on(server: &'a Server) -> Self {
        let flying = server.flying.fetch_add(1, Relaxed) + 1;
        server.most_flying.fetch_max(flying, Relaxed);
        Self(server)
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        self.0.flying.fetch_sub(1, Relaxed);
    }
}

impl TokenSource for Source {
    fn deadline(&self) -> Duration {
        UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, key: &TokenKey, _: Client) -> Result<Fetched, NoToken> {
        let server = &self.0;
        server.fetches.lock().expect("fetches").push((key.clone(), Instant::now()));
        let _flying = Flying::on(server);
        let is_slow = key.params().any(|(_, value)| value.starts_with("slow"));
        sleep(if is_slow { Duration::from_millis(2400) } else { server.takes }).await;
        let mode = *server.mode.lock().expect("mode");
        match mode {
            Mode::Gives if key.kind == TokenKind::Identity => {
                Ok(Fetched::Identity(Bytes::from(format!("a.{}.c", server.fetches())), HOUR))
            }
            Mode::Gives => {
                let (serial, left) = if is_slow { (0, HOUR) } else { server.token() };
                let body = format!(r#"{{"access_token":"ya29.{serial}","expires_in":{left},"token_type":"Bearer"}}"#);
                let (token, left) = AccessToken::parse(body.as_bytes()).expect("a token");
                Ok(Fetched::Access(token, left))
            }
            Mode::Refuses(status) => Err(NoToken::Refused(Arc::new(Refused {
                status: StatusCode::from_u16(status).expect("a status"),
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"no such account"),
            }))),
            Mode::GivesTheLastSecond => {
                let body = br#"{"access_token":"ya29.last","expires_in":1,"token_type":"Bearer"}"#;
                let (token, left) = AccessToken::parse(body).expect("a token");
                Ok(Fetched::Access(token, left))
            }
            Mode::Closes => Err(TokenFailure::from(Failure::Closed).into()),
            Mode::Garbles => Err(TokenFailure::from(TokenError::Shape).into()),
            Mode::Hangs => {
                sleep(Duration::from_millis(2480)).await;
                Err(TokenFailure::from(Failure::TimedOut(Duration::from_millis(2500))).into())
            }
        }
    }
}

#[derive(Clone)]
struct Cache {
    tokens: Tokens<Source>,
    store: Arc<Store>,
    registry: Registry,
}

/// What a client received.
#[derive(Debug, Clone, PartialEq)]
enum Got {
    Token(String, u64),
    Status(u16),
    Unavailable,
    /// The client requested too many different tokens.
    TooMany,
}

impl Cache {
    fn new(server: &Arc<Server>) -> Self {
        Self::with_limit(DEFAULT_LIMIT_BYTES, server)
    }

    /// With a limit in bytes.
    fn with_limit(limit: usize, server: &Arc<Server>) -> Self {
        let registry = Registry::default();
        let store = Store::new(limit, &registry);
        Self { tokens: Tokens::new(Arc::clone(&store), Source(Arc::clone(server))), store, registry }
    }

    async fn ask(&self, target: &str) -> Got {
        self.ask_as(1, target).await
    }

    /// Sends a request from the pod with this number.
    async fn ask_as(&self, pod: u8, target: &str) -> Got {
        let inner = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(RequestError::Flavor)) });
        let peer = Some(([10, 0, 0, pod], 40_000).into());
        match layer(&self.tokens, Audit::Off).layer(inner).oneshot(Request { peer, ..request(target) }.into()).await {
            Ok(response) if response.status() == StatusCode::OK => {
                let body = response.into_body().collect().await.expect("a whole body").to_bytes();
                match serde_json::from_slice::<Value>(&body) {
                    Ok(token) => Got::Token(
                        token["access_token"].as_str().expect("text").to_owned(),
                        token["expires_in"].as_u64().expect("whole seconds"),
                    ),
                    Err(_) => Got::Token(String::from_utf8(body.to_vec()).expect("text"), 0),
                }
            }
            Ok(response) => Got::Status(response.status().as_u16()),
            Err(Error::Token(_)) => Got::Unavailable,
            Err(Error::Overloaded(Overload::Tokens)) => Got::TooMany,
            Err(error) => panic!("{target}: {error}"),
        }
    }

    /// Requests a token, and panics if the response is not one.
    async fn token(&self, target: &str) -> (String, u64) {
        match self.ask(target).await {
            Got::Token(token, left) => {
                assert!(left > 0, "expires_in is never 0");
                (token, left)
            }
            other => panic!("{target}: {other:?}"),
        }
    }

    /// Sends this many requests at once.
    fn crowd(&self, callers: usize, target: &str) -> JoinSet<Got> {
        self.crowd_as(1, std::iter::repeat_n(target.to_owned(), callers))
    }

    /// Sends all of these requests at once, from the pod with this number.
    fn crowd_as(&self, pod: u8, targets: impl IntoIterator<Item = String>) -> JoinSet<Got> {
        let mut crowd = JoinSet::new();
        for target in targets {
            let cache = self.clone();
            crowd.spawn(async move { cache.ask_as(pod, &target).await });
        }
        crowd
    }

    fn entries(&self) -> usize {
        let (rows, others) = self.store.rows(usize::MAX, BootTime::now());
        assert_eq!(others, 0);
        rows.len()
    }

    fn count(&self, series: &str) -> f64 {
        self.series(series).unwrap_or_else(|| panic!("{series} is missing"))
    }

    fn series(&self, series: &str) -> Option<f64> {
        let text = self.registry.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Some(line?.parse().expect("a number"))
    }

    /// The gauge of the seconds until the default account's token expires.
    fn left(&self) -> Option<u32> {
        let left = self.series("metadata_proxy_default_token_expiry_seconds")?;
        Some(format!("{left}").parse().expect("whole seconds"))
    }
}

/// The request for the default account's token with these scopes.
fn scoped(scopes: &str) -> String {
    format!("{TOKEN}?scopes={scopes}")
}

fn request(target: &str) -> Request {
    let target = target.parse().expect("a target");
    let path = MetadataPath::parse(&target).expect("a path");
    let query = Query::parse(target.query()).expect("a query");
    Request::own(Path::from_path(&path), path.as_str(), query, Principal::Node)
}

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

#[tokio::test(start_paused = true)]
async fn default_and_its_email_are_one_account_once_the_email_is_known() {
    const EMAIL: &str = "/computeMetadata/v1/instance/service-accounts/a@b.c/token";
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.store.know_default_email("a@b.c");
    assert_eq!(cache.token(TOKEN).await, cache.token(EMAIL).await);
    assert_eq!(server.fetches(), 1);
    cache.token("/computeMetadata/v1/instance/service-accounts/other@b.c/token").await;
    assert_eq!(server.fetches(), 2, "another account has its own token");
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
        sleep(MINUTE).await;
        let (_, left) = cache.token(TOKEN).await;
        assert!(left > 290, "a client that sends a request every minute gets {left} s");
    }
    assert!(server.fetches() <= 3 * 9, "{} fetches in three hours", server.fetches());
}

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

#[tokio::test(start_paused = true)]
async fn a_token_ages_while_the_machine_is_suspended() {
    let server = Server::taking(Duration::ZERO);
    let cache = Cache::new(&server);
    let (first, left) = cache.token(TOKEN).await;
    assert_eq!(left, 3599);
    server.set(Mode::Closes);
    sleep(10 * MINUTE).await;
    suspend(40 * MINUTE);
    assert_eq!(cache.token(TOKEN).await, (first.clone(), 599), "expires_in includes the suspension");
    suspend(10 * MINUTE);
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
        sleep(MINUTE).await;
        least = least.min(cache.left().expect("a token"));
    }
    assert!(least > 120, "only {least} s were left once: the alert would fire");
    assert!((6..5 * 9).contains(&server.fetches()), "{} fetches in five hours", server.fetches());
}

#[tokio::test(start_paused = true)]
async fn the_gauge_is_0_only_if_a_token_expired_without_a_replacement() {
    let server = Server::new();
    let cache = Cache::new(&server);
    assert_eq!(cache.left(), None, "at first");
    server.set(Mode::Refuses(404));
    cache.tokens.warm(TokenKey::default_account()).await.expect_err("no account");
    sleep(10 * MINUTE).await;
    assert_eq!(cache.left(), None, "without an account");
    server.set(Mode::Gives);
    sleep(2 * MINUTE).await;
    assert!(cache.left().is_some_and(|left| left > 3000), "it is fetched without a request: {:?}", cache.left());
    server.set(Mode::Closes);
    sleep(61 * MINUTE).await;
    assert_eq!(cache.left(), Some(0), "it expired, and the server returns no other");
    server.set(Mode::Gives);
    sleep(Duration::from_secs(15)).await;
    assert!(cache.left().is_some_and(|left| left > 3000), "it is fetched without a request: {:?}", cache.left());
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
    let (entry, keeper) = (size_of_val(&*entry), size_of_val(&keeper.run()));
    assert!(entry + keeper + 400 <= entry::ENTRY_BYTES, "entry {entry}, keeper {keeper}");
}

#[test]
fn only_the_nodes_key_with_the_default_email_is_the_default_accounts() {
    let store = Store::new(usize::MAX, &Registry::default());
    store.know_default_email("a@b.c");
    let mut key =
        TokenKey::from_request(&request("/computeMetadata/v1/instance/service-accounts/a@b.c/token")).expect("a key").0;
    assert!(store.canonical(key.clone()).is_default_account());
    key.principal = Principal::Workload(WorkloadId(7));
    assert_eq!(store.canonical(key.clone()), key);
}

#[tokio::test(start_paused = true)]
async fn a_workloads_key_with_its_own_name_is_its_default_accounts() {
    let store = Store::new(usize::MAX, &Registry::default());
    let endpoint = |url| Endpoint::parse(url).expect("a URL");
    let provider = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/my-pool/providers/c";
    let workloads = Arc::new(Workloads::new(Some(Federation {
        trust: Trust::Provider(Provider::parse(provider).expect("a provider")),
        token_audience: None,
        sts: endpoint("https://sts.example"),
        iam: endpoint("https://iam.example"),
        google_ca: None,
        prefetch: crate::workloads::Prefetch::default(),
    })));
    store.know_accounts(&workloads);
    let principal = workloads.of_pod(&crate::identity::tests::pod(1, "a", "app")).principal();
    let key = |account: &str, principal| {
        let target = format!("/computeMetadata/v1/instance/service-accounts/{account}/token");
        let mut key = TokenKey::from_request(&request(&target)).expect("a key").0;
        key.principal = principal;
        key
    };
    let own = key("default", principal);
    let email = "app@shop.iam.gserviceaccount.com";
    assert_eq!(store.canonical(key("my-pool", principal)), own);
    assert_eq!(store.canonical(key(email, principal)), key(email, principal), "it is not known yet");
    for account in workloads.wanted().await {
        workloads.found(&account, "u", &Annotations { google_account: Some(email), ..Annotations::default() });
    }
    assert_eq!(store.canonical(key(email, principal)), own);
    for (account, principal) in [("other@shop.iam.gserviceaccount.com", principal), (email, Principal::Node)] {
        assert_eq!(store.canonical(key(account, principal)), key(account, principal));
    }
}

#[tokio::test(start_paused = true)]
async fn a_workloads_token_is_fetched_again_long_before_it_expires() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let mut key = TokenKey::default_account();
    key.principal = Principal::Workload(WorkloadId(1));
    cache.tokens.warm(key.clone()).await.expect("a token");
    sleep(Duration::from_secs(2500)).await;
    assert_eq!(server.fetches_of(&key).len(), 1);
    sleep(Duration::from_secs(400)).await;
    let fetches = server.fetches_of(&key);
    assert!(fetches.len() >= 3, "the same token is no reason to wait for long: {fetches:?}");
    assert!(fetches.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= RECHECK_INTERVAL));
}

/// A request that waits for what is published there.
fn waiting(known: watch::Receiver<Known>) -> impl Future<Output = Result<Response<Body>, Error>> {
    service::waiting(known, UPSTREAM_TIMEOUT, TokenFormat::Json, HeaderValue::from_static(""), None)
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_takes_little_memory() {
    let cache = Cache::new(&Server::new());
    let entry = cache.store.find_or_make(TokenKey::default_account(), None, BootTime::now()).expect("room").0;
    let known = entry.join(None).0;
    let waiting = waiting(known);
    assert!(size_of_val(&waiting) <= 1024, "{}", size_of_val(&waiting));
}

/// As where the process stood still for longer than a failure is the answer to requests.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_that_runs_late_gets_the_failure_it_waited_for() {
    let (keeper, known) = watch::channel(Known::default());
    let waiting = tokio::spawn(waiting(known));
    yield_now().await;
    assert!(!waiting.is_finished());
    let why = NoToken::from(TokenFailure::Resting);
    keeper.send_modify(|known| known.failure = Some(RecentFailure { why, until: BootTime::now() }));
    let answer = waiting.await.expect("no panic");
    assert!(matches!(&answer, Err(Error::Token(why)) if matches!(**why, TokenFailure::Resting)), "{answer:?}");
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
async fn a_request_with_a_parameter_of_unknown_effect_passes_through() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let inner = service_fn(|_: Box<Request>| async {
        Ok::<_, Error>(Response::new(Body::Whole(Bytes::from_static(b"inner"))))
    });
    let response = layer(&cache.tokens, Audit::Off)
        .layer(inner)
        .oneshot(request(&format!("{TOKEN}?wait_for_change=true")).into())
        .await;
    assert!(response.is_ok());
    assert_eq!(server.fetches(), 0);
}

#[tokio::test(start_paused = true)]
async fn both_forms_share_one_token() {
    let server = Server::taking(Duration::ZERO);
    let cache = Cache::new(&server);
    let text = cache.ask(&format!("{TOKEN}?alt=text")).await;
    assert_eq!(text, Got::Token("access_token ya29.1\nexpires_in 3599\ntoken_type Bearer\n".to_owned(), 0));
    assert_eq!(cache.token(TOKEN).await, ("ya29.1".to_owned(), 3599));
    assert_eq!(server.fetches(), 1);
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
