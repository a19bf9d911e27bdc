//! [`Store`]: the entries, and what each knows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, UnitWeighter};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::freshness::{self, Freshness};
use crate::metadata::ServiceAccount;
use crate::metadata::token::{AccessToken, Form};
use crate::telemetry::Metrics;
use crate::tokens::{NoToken, TokenKey};

/// Most keys that are kept.
pub const CAPACITY: usize = 1024;

/// All entries, and what they share.
#[derive(Debug)]
pub struct Store {
    entries: Cache<TokenKey, Arc<Entry>, UnitWeighter, DefaultHashBuilder, Evictions>,
    default_email: OnceLock<Box<str>>,
    pub(super) fetches: Semaphore,
    pub(super) demanded: Semaphore,
    pub(super) metrics: &'static Metrics,
}

/// What an operator may know of an entry.
#[derive(Debug, Clone)]
pub struct TokenRow {
    /// Whose token, and under which parameters.
    pub key: TokenKey,
    /// Since when the token is known, and the whole seconds that it has left; nothing while there is none.
    pub token: Option<(Duration, u32)>,
    /// How often it was asked for since the key is known.
    pub asked: u64,
}

/// One key's token, and who waits for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: TokenKey,
    pub(super) known: watch::Sender<Known>,
    /// Somebody waits for a flight.
    pub(super) demand: Notify,
    /// Somebody has said so since the last flight ended.
    is_wanted: AtomicBool,
    /// Woken when the entry is evicted.
    pub(super) evicted: Notify,
    made: Instant,
    /// Seconds since `made` at which it was last asked for.
    used: AtomicU64,
    /// How often it was asked for.
    asked: AtomicU64,
}

/// What a keeper has found out so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) token: Option<Arc<Kept>>,
    pub(super) failure: Option<Remembered>,
}

/// A failure, and until when it is the answer.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) why: NoToken,
    pub(super) until: Instant,
}

/// A token with its end.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) token: Token,
    /// Since when it is known: for the eye, not for a decision.
    since: Instant,
    pub(super) expires: Instant,
    /// The last body that was made, since all who ask in one second are told the same.
    written: Mutex<Option<Written>>,
}

#[derive(PartialEq)]
pub(super) enum Token {
    Access(AccessToken),
    Identity(Bytes),
}

#[derive(Clone)]
struct Written {
    form: Form,
    seconds: u32,
    body: Bytes,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").field("seconds", &self.seconds).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Access(token) => token.fmt(f),
            Self::Identity(_) => f.write_str("Identity([redacted])"),
        }
    }
}

/// What a caller finds.
pub(super) enum Found {
    /// A token, and how fresh it is.
    Token(Arc<Kept>, Freshness),
    /// A failure so recent that it is the answer.
    Failure(NoToken),
    /// Nothing: wait for a flight.
    Nothing,
}

impl Store {
    /// Empty.
    pub fn new(metrics: &'static Metrics) -> Self {
        // One shard, so that the capacity holds exactly and not only on average.
        let options =
            OptionsBuilder::new().estimated_items_capacity(CAPACITY).weight_capacity(CAPACITY as u64).shards(1).build();
        let options = options.expect("both capacities are given");
        let evictions = Evictions(metrics);
        Self {
            entries: Cache::with_options(options, UnitWeighter, DefaultHashBuilder::default(), evictions),
            default_email: OnceLock::new(),
            fetches: Semaphore::new(super::FETCHES),
            demanded: Semaphore::new(super::flight::DEMANDED),
            metrics,
        }
    }

    /// From now on this e-mail and `default` are one account. The first word counts: a running machine's own account does
    /// not change.
    pub fn know_default_email(&self, email: &str) {
        self.default_email.get_or_init(|| email.into());
    }

    /// What an operator may know of each entry.
    pub fn rows(&self, now: Instant) -> Vec<TokenRow> {
        let row = |(key, entry): (TokenKey, Arc<Entry>)| {
            let known = entry.known.borrow();
            let age = known.token.as_ref().map(|kept| now.saturating_duration_since(kept.since));
            TokenRow { key, token: age.zip(known.seconds_left(now)), asked: entry.asked.load(Relaxed) }
        };
        self.entries.iter().map(row).collect()
    }

    /// Brings the gauges up to date.
    pub fn report(&self, metrics: &Metrics, now: Instant) {
        metrics.token_entries.set(i64::try_from(self.entries.len()).unwrap_or(i64::MAX));
        let default = self.entries.peek(&TokenKey::default_account());
        let left = default.and_then(|entry| entry.known.borrow().seconds_left(now));
        metrics.default_token_expiry.set(left.unwrap_or(0).into());
    }

    /// Whether a key can be answered without another request upstream: at once, or by a flight that is under way.
    pub(super) fn knows(&self, key: TokenKey, now: Instant) -> bool {
        let entry = self.entries.peek(&self.canonical(key));
        entry.is_some_and(|entry| {
            entry.is_wanted.load(Relaxed) || !matches!(entry.known.borrow().find(now), Found::Nothing)
        })
    }

    /// The entry of a key, and whether it was made just now, so that it needs a keeper.
    pub(super) fn entry(&self, key: TokenKey, now: Instant) -> (Arc<Entry>, bool) {
        let key = self.canonical(key);
        let mut is_new = false;
        let make = || -> Result<_, std::convert::Infallible> {
            is_new = true;
            Ok(Arc::new(Entry::new(key.clone(), now)))
        };
        let Ok(entry) = self.entries.get_or_insert_with(&key, make);
        (entry, is_new)
    }

    /// The key under which a token is kept: the default account's e-mail is but another name of it.
    fn canonical(&self, mut key: TokenKey) -> TokenKey {
        if let (ServiceAccount::Email(email), Some(default)) = (&key.account, self.default_email.get())
            && email == default
        {
            key.account = ServiceAccount::Default;
        }
        key
    }

    pub(super) fn let_go(&self, entry: &Arc<Entry>) {
        self.entries.remove_if(&entry.key, |found| Arc::ptr_eq(found, entry));
    }
}

impl Entry {
    fn new(key: TokenKey, now: Instant) -> Self {
        Self {
            key,
            known: watch::Sender::default(),
            demand: Notify::new(),
            is_wanted: AtomicBool::new(false),
            evicted: Notify::new(),
            made: now,
            used: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// What a caller gets now. It counts as use.
    pub(super) fn find(&self, now: Instant) -> Found {
        self.used.store(now.saturating_duration_since(self.made).as_secs(), Relaxed);
        self.asked.fetch_add(1, Relaxed);
        self.known.borrow().find(now)
    }

    /// Asks the keeper for a flight; whether it was the first to ask for this one.
    pub(super) fn want(&self) -> bool {
        self.demand.notify_one();
        !self.is_wanted.swap(true, Relaxed)
    }

    /// A flight has ended.
    pub(super) fn landed(&self) {
        self.is_wanted.store(false, Relaxed);
    }

    pub(super) fn unused_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.made + Duration::from_secs(self.used.load(Relaxed)))
    }
}

impl Known {
    pub(super) fn find(&self, now: Instant) -> Found {
        if let Some(kept) = &self.token {
            let freshness = freshness::judge(kept.expires, now);
            if freshness != Freshness::Expired {
                return Found::Token(Arc::clone(kept), freshness);
            }
        }
        match &self.failure {
            Some(failure) if now < failure.until => Found::Failure(failure.why.clone()),
            _ => Found::Nothing,
        }
    }

    fn seconds_left(&self, now: Instant) -> Option<u32> {
        Some(freshness::judge(self.token.as_ref()?.expires, now).seconds()).filter(|seconds| *seconds > 0)
    }
}

impl Kept {
    pub(super) fn new(token: Token, since: Instant, expires: Instant) -> Self {
        Self { token, since, expires, written: Mutex::default() }
    }

    /// The body of an answer that promises so many seconds.
    pub(super) fn body(&self, form: Form, seconds: u32) -> Bytes {
        let token = match &self.token {
            Token::Access(token) => token,
            Token::Identity(jwt) => return jwt.clone(),
        };
        // A body is replaced whole, so a panic elsewhere cannot leave it half written.
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match &*written {
            Some(written) if written.form == form && written.seconds == seconds => written.body.clone(),
            _ => {
                let body = token.body(form, seconds);
                *written = Some(Written { form, seconds, body: body.clone() });
                body
            }
        }
    }
}

/// Ends the keepers of entries that the cache gives up for others.
#[derive(Debug, Clone)]
struct Evictions(&'static Metrics);

impl Lifecycle<TokenKey, Arc<Entry>> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: TokenKey, entry: Arc<Entry>) {
        entry.evicted.notify_one();
        self.0.token_evictions.inc();
    }
}
