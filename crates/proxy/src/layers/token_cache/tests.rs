//! Tests the cache with a scripted source, on paused time.

mod failures;
mod flights;
mod freshness;
mod handed;
mod keys;
mod memory;
mod shares;

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
use super::known::Known;
use super::*;
use crate::error::{Error, Overload};
use crate::failure::{Failure, TokenFailure, UPSTREAM_TIMEOUT, Withheld};
use crate::layers::filter::layer;
use crate::reply::Body;
use crate::shares::Client;
use crate::single_flight::Remembered;
use crate::tokens::{Fetched, NoToken, Refused, Token, TokenKey, TokenKind, TokenSource, Urgency};
use base::clock::{BootTime, suspend};
use protocol::metadata::token::{AccessToken, TokenError, TokenFormat};
use protocol::metadata::{Endpoint as Path, MetadataPath, Principal, Query, Request, RequestError, WorkloadId};
use telemetry::Registry;

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: u32 = 3599;

/// Size of a large token, in bytes. The cache needs twice that: the token and the last response with it.
const LARGE_TOKEN: usize = 10_000;

/// Behaviour of the server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Gives,
    Refuses(u16),
    /// A pod's own token.
    Withholds(Withheld),
    Closes,
    Hangs,
    /// Fetches only what is demanded. Refreshes wait.
    DefersRefreshes,
    Panics,
    Garbles,
    /// A token with one second left.
    GivesTheLastSecond,
    /// A token larger than those for which all entries are charged.
    GivesALargeOne,
}

/// A server that returns the same token until 300 s are left, as the real one does.
#[derive(Debug)]
struct Server {
    mode: Mutex<Mode>,
    minted: Mutex<Option<(u64, BootTime)>>,
    /// Returns the same token until it expires.
    is_stuck: Mutex<bool>,
    fetches: Mutex<Vec<(TokenKey, Instant)>>,
    urgencies: Mutex<Vec<Urgency>>,
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
            urgencies: Mutex::default(),
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

    /// The number of the current token, when it was issued, and the seconds that are left.
    fn token(&self) -> (u64, BootTime, u32) {
        let now = BootTime::now();
        let is_stuck = *self.is_stuck.lock().expect("stuck");
        let mut minted = self.minted.lock().expect("minted");
        let left = minted.map_or(0, |(_, expires)| expires.seconds_since(now));
        if left == 0 || (left <= 300 && !is_stuck) {
            let serial = minted.map_or(0, |(serial, _)| serial) + 1;
            *minted = Some((serial, now + Duration::from_secs(HOUR.into())));
        }
        let (serial, expires) = minted.expect("just minted");
        let issued = expires - Duration::from_secs(HOUR.into());
        (serial, issued, u32::try_from(expires.seconds_since(now)).expect("an hour"))
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

    async fn fetch(&self, key: &TokenKey, _: Client, urgency: Urgency) -> Result<Fetched, NoToken> {
        let server = &self.0;
        server.urgencies.lock().expect("urgencies").push(urgency);
        server.fetches.lock().expect("fetches").push((key.clone(), Instant::now()));
        let _flying = Flying::on(server);
        let is_slow = key.params().any(|(_, value)| value.starts_with("slow"));
        sleep(if is_slow { Duration::from_millis(2400) } else { server.takes }).await;
        let mode = *server.mode.lock().expect("mode");
        match mode {
            Mode::DefersRefreshes if urgency != Urgency::Demanded => std::future::pending().await,
            Mode::Gives if key.kind == TokenKind::Identity => {
                let jwt = Bytes::from(format!("a.{}.c", server.fetches()));
                let asked = BootTime::now();
                Ok(match key.principal {
                    Principal::Workload(_) => Fetched::Own {
                        token: Token::Identity(jwt),
                        asked,
                        expires: asked + Duration::from_secs(HOUR.into()),
                    },
                    Principal::Node | Principal::Unknown => Fetched::Identity(jwt, HOUR),
                })
            }
            Mode::Gives | Mode::DefersRefreshes => {
                let (serial, asked, left) = if is_slow { (0, BootTime::now(), HOUR) } else { server.token() };
                let body = format!(r#"{{"access_token":"ya29.{serial}","expires_in":{left},"token_type":"Bearer"}}"#);
                let (token, left) = AccessToken::parse(body.as_bytes()).expect("a token");
                Ok(match key.principal {
                    Principal::Workload(_) => {
                        let expires = asked + Duration::from_secs(HOUR.into());
                        Fetched::Own { token: Token::Access(token), asked, expires }
                    }
                    Principal::Node | Principal::Unknown => Fetched::Access(token, left),
                })
            }
            Mode::Refuses(status) => Err(refusal(status, None)),
            Mode::Withholds(why) => Err(refusal(403, Some(why))),
            Mode::GivesTheLastSecond | Mode::GivesALargeOne => {
                let (bytes, left) = if mode == Mode::GivesALargeOne { (LARGE_TOKEN, HOUR) } else { (8, 1) };
                let token = "x".repeat(bytes);
                let body = format!(r#"{{"access_token":"{token}","expires_in":{left},"token_type":"Bearer"}}"#);
                let (token, left) = AccessToken::parse(body.as_bytes()).expect("a token");
                Ok(Fetched::Access(token, left))
            }
            Mode::Closes => Err(TokenFailure::from(Failure::Closed).into()),
            Mode::Panics => panic!("as a source with a bug does"),
            Mode::Garbles => Err(TokenFailure::from(TokenError::Shape).into()),
            Mode::Hangs => {
                sleep(Duration::from_millis(2480)).await;
                Err(TokenFailure::from(Failure::TimedOut(Duration::from_millis(2500))).into())
            }
        }
    }
}

fn refusal(status: u16, withheld: Option<Withheld>) -> NoToken {
    NoToken::Refused(Arc::new(Refused {
        status: StatusCode::from_u16(status).expect("a status"),
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"no such account"),
        withheld,
    }))
}

#[derive(Clone)]
struct Cache {
    tokens: Tokens<Source>,
    store: Arc<Store>,
    registry: Registry,
    /// The requests are in the name of this principal.
    principal: Principal,
}

/// What a client received.
#[derive(Debug, Clone, PartialEq)]
enum Got {
    Token(String, u64),
    Status(u16),
    Unavailable,
    Withheld(Withheld),
    /// The client requested too many different tokens.
    TooMany,
    /// There is no room, and the client is not to blame.
    NoRoom,
}

impl Cache {
    fn new(server: &Arc<Server>) -> Self {
        Self::with_limit(DEFAULT_LIMIT_BYTES, server)
    }

    /// With a limit in bytes.
    fn with_limit(limit: usize, server: &Arc<Server>) -> Self {
        let registry = Registry::default();
        let store = Store::new(limit, &registry);
        Self {
            tokens: Tokens::new(Arc::clone(&store), Source(Arc::clone(server))),
            store,
            registry,
            principal: Principal::Node,
        }
    }

    async fn ask(&self, target: &str) -> Got {
        self.ask_as(1, target).await
    }

    /// Sends a request from the pod with this number.
    async fn ask_as(&self, pod: u8, target: &str) -> Got {
        let inner = service_fn(|_: Box<Request>| async { Err::<Response<Body>, _>(Error::from(RequestError::Flavor)) });
        let peer = Some(([10, 0, 0, pod], 40_000).into());
        match layer(TokenCache::new(&self.tokens, Audit::Off))
            .layer(inner)
            .oneshot(Request { peer, principal: self.principal, ..request(target) }.into())
            .await
        {
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
            Err(Error::Withheld(why, _)) => Got::Withheld(why),
            Err(Error::Overloaded(Overload::Tokens)) => Got::TooMany,
            Err(Error::Overloaded(Overload::TokenRoom)) => Got::NoRoom,
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

    /// The seconds until the default account's token expires.
    fn left(&self) -> Option<u32> {
        self.store.default_expires_in()
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

/// A request that waits for what is published there.
fn waiting(known: watch::Receiver<Known>) -> impl Future<Output = Result<Response<Body>, Error>> {
    service::waiting(
        known,
        service::late(Principal::Node, UPSTREAM_TIMEOUT),
        TokenFormat::Json,
        HeaderValue::from_static(""),
        None,
    )
}
