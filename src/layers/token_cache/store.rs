//! [`Store`]: the cache entries, and which of them to evict.
//!
//! The store is bounded in bytes. An entry is held by the client that asked for it first; the default account's entry is the
//! proxy's own, and is neither counted nor ever given up. When a new entry finds no room, by the rule of [`Shares`]:
//!
//! 1. The largest holder gives up the entry that was unused for longest, of those that nobody waits for.
//! 2. If the newcomer's client is not the largest holder, that one also gives up an entry that only itself waits for.
//! 3. If the newcomer's client is the largest holder, or nobody holds clearly more, it gives up an unused entry of its own.
//! 4. Else the newcomer is refused.
//!
//! So whoever invents keys pushes out its own inventions, and nobody else's entries that are waited for.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::{Notify, watch};

use super::flights::{Flights, Waited};
use super::freshness::{self, Freshness};
use super::metrics::{FlightCause, TokenMetrics};
use crate::clock::BootTime;
use crate::error::Overload;
use crate::metadata::token::{AccessToken, Form};
use crate::metadata::{Principal, ServiceAccount};
use crate::shares::{Client, Room, Shares};
use crate::telemetry::{Registry, table};
use crate::tokens::{NoToken, TokenKey};

/// Memory for entries where nobody says otherwise, in bytes: about 480 of common size.
pub const LIMIT: usize = 2 * 1024 * 1024;

/// What an entry takes besides its key and its token, in bytes: its own fields, its place in the map, and its keeper's task.
/// Measured as the growth of resident memory by 10,000 entries: 1.7 to 2.3 KiB each.
pub(super) const ENTRY: usize = 2 * 1024;

/// What an entry's token and its last body take, in bytes, if they are of common size (1 KiB each). It is counted from the
/// beginning, so that an entry grows only if its token is larger.
const TOKEN: usize = 2 * 1024 + 256;

/// All entries, and what they share.
#[derive(Debug)]
pub struct Store {
    kept: Mutex<Entries>,
    default_email: OnceLock<Box<str>>,
    demanded: Flights,
    renewed: Flights,
    pub(super) metrics: TokenMetrics,
}

#[derive(Debug)]
struct Entries {
    by_key: HashMap<Arc<TokenKey>, Arc<Entry>, RandomState>,
    /// In bytes.
    shares: Shares,
}

/// What an operator may know of an entry.
#[derive(Debug, Clone)]
pub struct TokenRow {
    /// Whose token, and under which parameters.
    pub key: Arc<TokenKey>,
    /// Since when the token is known, and the whole seconds that it has left; nothing while there is none.
    pub token: Option<(Duration, u32)>,
    /// How often it was asked for since the key is known.
    pub asked: u64,
}

/// One key's token, and who waits for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Arc<TokenKey>,
    /// Whose share it is part of; nobody's if it is the proxy's own.
    pub(super) holder: Client,
    pub(super) known: watch::Sender<Known>,
    /// Somebody waits for a flight.
    pub(super) demand: Notify,
    /// Somebody has said so since the last flight ended.
    is_wanted: AtomicBool,
    /// Who waits for the flight that is wanted or under way.
    crowd: Mutex<Crowd>,
    /// Woken when the entry is given up.
    pub(super) evicted: Notify,
    /// When it was last asked for, in nanoseconds of [`BootTime`].
    used: AtomicU64,
    /// How often it was asked for.
    asked: AtomicU64,
    /// As it is counted in the holder's share, in bytes. Written under the store's lock.
    weight: AtomicUsize,
}

/// Who waits for a flight. One that has stopped waiting still counts until the flight has ended.
#[derive(Debug, Default)]
enum Crowd {
    #[default]
    Nobody,
    /// Only this client.
    One(Client),
    /// This client, which was the first, and others.
    Several(Client),
}

/// What a keeper has found out so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) token: Option<Arc<Kept>>,
    pub(super) failure: Option<Remembered>,
    /// There was a token, and it expired before the server gave another.
    pub(super) is_lost: bool,
}

/// A failure, and until when it is the answer.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) why: NoToken,
    pub(super) until: BootTime,
}

/// A token with its end.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) token: Token,
    /// Since when it is known: for the eye, not for a decision.
    since: BootTime,
    pub(super) expires: BootTime,
    /// The last body that was made, since all who ask in one second are told the same.
    written: Mutex<Option<Written>>,
}

/// All of these are wiped from memory when they are dropped.
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
    /// Empty, with room for entries of this many bytes together.
    pub fn new(limit: usize, registry: &Registry) -> Arc<Self> {
        let store = Arc::new(Self {
            kept: Mutex::new(Entries { by_key: HashMap::default(), shares: Shares::new(limit) }),
            default_email: OnceLock::new(),
            demanded: Flights::new(super::flight::DEMANDED),
            renewed: Flights::new(super::FETCHES - super::flight::DEMANDED),
            metrics: TokenMetrics::new(registry),
        });
        store.observe(registry);
        store
    }

    /// From now on this e-mail and `default` are one account. The first word counts: a running machine's own account does
    /// not change.
    pub fn know_default_email(&self, email: &str) {
        self.default_email.get_or_init(|| email.into());
    }

    /// What an operator may know of the entries that were asked for most often, at most so many of them, and how many
    /// others there are.
    pub fn rows(&self, most: usize, now: BootTime) -> (Vec<TokenRow>, usize) {
        let mut entries: Vec<(Reverse<u64>, Arc<Entry>)> = {
            let kept = self.lock();
            kept.by_key.values().map(|entry| (Reverse(entry.asked.load(Relaxed)), Arc::clone(entry))).collect()
        };
        entries.sort_unstable_by_key(|(asked, _)| *asked);
        let others = entries.len().saturating_sub(most);
        entries.truncate(most);
        (entries.iter().map(|(Reverse(asked), entry)| entry.row(*asked, now)).collect(), others)
    }

    /// What all entries take, and what they may take, in bytes.
    pub fn bytes(&self) -> (usize, usize) {
        let kept = self.lock();
        (kept.shares.used(), kept.shares.limit())
    }

    /// Registers gauges of the entries.
    fn observe(self: &Arc<Self>, registry: &Registry) {
        let store = Arc::clone(self);
        registry.observe(&table::TOKEN_ENTRIES, move || Some(store.lock().by_key.len() as u64));
        let store = Arc::clone(self);
        registry
            .observe(&table::DEFAULT_TOKEN_EXPIRY, move || store.default_expires_in(BootTime::now()).map(u64::from));
    }

    /// Seconds until the default account's token expires: 0 if it has expired and was not replaced. `None` if there is no
    /// token for a good reason, so that no alert fires.
    fn default_expires_in(&self, now: BootTime) -> Option<u32> {
        let entry = self.find(&TokenKey::default_account())?;
        let known = entry.known.borrow();
        known.seconds_left(now).or_else(|| known.is_lost.then_some(0))
    }

    /// Whether a key can be answered without another request upstream: at once, or by a flight that is under way.
    pub(super) fn knows(&self, key: TokenKey, now: BootTime) -> bool {
        let entry = self.find(&self.canonical(key));
        entry.is_some_and(|entry| {
            entry.is_wanted.load(Relaxed) || !matches!(entry.known.borrow().find(now), Found::Nothing)
        })
    }

    /// The key under which a token is kept: the default account's e-mail is another name of it. For the node only, since
    /// another principal has another default account.
    pub(super) fn canonical(&self, mut key: TokenKey) -> TokenKey {
        if let (Principal::Node, ServiceAccount::Email(email), Some(default)) =
            (key.principal, &key.account, self.default_email.get())
            && email == default
        {
            key.account = ServiceAccount::Default;
        }
        key
    }

    /// The entry of a canonical key.
    pub(super) fn find(&self, key: &TokenKey) -> Option<Arc<Entry>> {
        self.lock().by_key.get(key).cloned()
    }

    /// The entry of a canonical key, and whether it was made just now, so that it needs a keeper. A new one is held by this
    /// client; it is refused if others would have to give up too much for it.
    pub(super) fn find_or_make(
        &self,
        key: TokenKey,
        client: Client,
        now: BootTime,
    ) -> Result<(Arc<Entry>, bool), Overload> {
        let mut kept = self.lock();
        if let Some(entry) = kept.by_key.get(&key) {
            return Ok((Arc::clone(entry), false));
        }
        let entry = Arc::new(Entry::new(key, client, now));
        if !entry.is_own() {
            let weight = entry.weigh();
            let evicted = kept.make_room(client, weight);
            self.metrics.evictions.inc_by(evicted?);
            entry.weight.store(weight, Relaxed);
            kept.shares.take(client, weight);
        }
        kept.by_key.insert(Arc::clone(&entry.key), Arc::clone(&entry));
        Ok((entry, true))
    }

    /// Counts an entry anew, after it has learnt something.
    pub(super) fn reweigh(&self, entry: &Arc<Entry>) {
        let (old, new) = (entry.weight.load(Relaxed), entry.weigh());
        if old == new || entry.is_own() {
            return;
        }
        let mut kept = self.lock();
        if !kept.holds(entry) {
            return;
        }
        kept.shares.give_back(entry.holder, old);
        entry.weight.store(0, Relaxed);
        // Refused only where others wait for all else that could go. Who waits for this one is still told its token.
        let evicted = match kept.make_room(entry.holder, new) {
            Ok(evicted) if kept.holds(entry) => {
                entry.weight.store(new, Relaxed);
                kept.shares.take(entry.holder, new);
                evicted
            }
            Ok(evicted) => evicted,
            Err(_) => {
                kept.evict(entry);
                1
            }
        };
        self.metrics.evictions.inc_by(evicted);
    }

    /// Forgets an entry whose keeper ends.
    pub(super) fn let_go(&self, entry: &Arc<Entry>) {
        let mut kept = self.lock();
        if kept.holds(entry) {
            kept.remove(entry);
        }
    }

    /// Where flights of this cause wait for their turn.
    pub(super) fn flights(&self, cause: FlightCause) -> &Flights {
        match cause {
            FlightCause::Demand => &self.demanded,
            FlightCause::Refresh => &self.renewed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Nothing that can panic stands between two changes that belong together.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn holds(&self, entry: &Arc<Entry>) -> bool {
        self.by_key.get(&entry.key).is_some_and(|found| Arc::ptr_eq(found, entry))
    }

    /// Evicts entries until a client may take this much more; how many they were. See the module for which.
    fn make_room(&mut self, client: Client, weight: usize) -> Result<u64, Overload> {
        if weight > self.shares.limit() {
            return Err(Overload::Tokens);
        }
        let mut evicted = 0;
        loop {
            let goes = match self.shares.room_for(client, weight) {
                Room::Free => return Ok(evicted),
                Room::From(largest) => {
                    self.unused_for_longest(|entry| entry.holder == largest && !entry.is_waited_for()).or_else(|| {
                        self.unused_for_longest(|entry| {
                            entry.holder == largest && entry.is_waited_for_by_none_but(largest)
                        })
                    })
                }
                Room::FromItself | Room::None => {
                    self.unused_for_longest(|entry| entry.holder == client && !entry.is_waited_for())
                }
            };
            let Some(goes) = goes else { return Err(Overload::Tokens) };
            self.evict(&goes);
            evicted += 1;
        }
    }

    fn unused_for_longest(&self, may_go: impl Fn(&Entry) -> bool) -> Option<Arc<Entry>> {
        let may_go = self.by_key.values().filter(|entry| !entry.is_own() && may_go(entry));
        may_go.min_by_key(|entry| entry.used.load(Relaxed)).cloned()
    }

    fn evict(&mut self, entry: &Arc<Entry>) {
        self.remove(entry);
        // Whoever waits for it, or has just found it, is told why. Its token is wiped when its keeper ends.
        let failure = Remembered { why: NoToken::Overloaded(Overload::Tokens), until: BootTime::from_nanos(u64::MAX) };
        entry.known.send_modify(|known| known.failure = Some(failure));
        entry.evicted.notify_one();
    }

    fn remove(&mut self, entry: &Arc<Entry>) {
        self.by_key.remove(&entry.key);
        self.shares.give_back(entry.holder, entry.weight.load(Relaxed));
    }
}

impl Waited for Entry {
    fn is_waited_for_by_none_but(&self, client: Client) -> bool {
        match *self.crowd() {
            Crowd::Nobody => true,
            Crowd::One(only) => only == client,
            Crowd::Several(_) => false,
        }
    }
}

impl Entry {
    pub(super) fn new(key: TokenKey, client: Client, now: BootTime) -> Self {
        let holder = client.filter(|_| !key.is_default_account());
        Self {
            key: Arc::new(key),
            holder,
            known: watch::Sender::default(),
            demand: Notify::new(),
            is_wanted: AtomicBool::new(false),
            crowd: Mutex::default(),
            evicted: Notify::new(),
            used: AtomicU64::new(now.as_nanos()),
            asked: AtomicU64::new(0),
            weight: AtomicUsize::new(0),
        }
    }

    /// Whether it is the proxy's own: it is kept whether anybody asks for it or not.
    pub(super) fn is_own(&self) -> bool {
        self.holder.is_none()
    }

    /// What a caller gets now. It counts as use.
    pub(super) fn find(&self, now: BootTime) -> Found {
        self.used.store(now.as_nanos(), Relaxed);
        self.asked.fetch_add(1, Relaxed);
        self.known.borrow().find(now)
    }

    /// Joins those who wait, and asks the keeper for a flight: what to wait on, and whether it was the first to ask for
    /// this one. It joins before it asks, since a flight that nobody waits for is not begun.
    pub(super) fn join(&self, client: Client) -> (watch::Receiver<Known>, bool) {
        let known = self.known.subscribe();
        self.joined_by(client);
        self.demand.notify_one();
        (known, !self.is_wanted.swap(true, Relaxed))
    }

    pub(super) fn joined_by(&self, client: Client) {
        let mut crowd = self.crowd();
        *crowd = match *crowd {
            Crowd::Nobody => Crowd::One(client),
            Crowd::One(first) if first == client => Crowd::One(first),
            Crowd::One(first) | Crowd::Several(first) => Crowd::Several(first),
        };
    }

    /// A flight has ended.
    pub(super) fn landed(&self) {
        *self.crowd() = Crowd::Nobody;
        self.is_wanted.store(false, Relaxed);
    }

    /// Whom a flight is for: the first that waits, or whoever holds the entry.
    pub(super) fn flies_for(&self) -> Client {
        match *self.crowd() {
            Crowd::Nobody => self.holder,
            Crowd::One(first) | Crowd::Several(first) => first,
        }
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.known.receiver_count() > 0
    }

    pub(super) fn unused_for(&self, now: BootTime) -> Duration {
        now.since(BootTime::from_nanos(self.used.load(Relaxed)))
    }

    /// Memory that it takes, in bytes.
    fn weigh(&self) -> usize {
        ENTRY + self.key.heap() + self.known.borrow().heap().max(TOKEN)
    }

    fn row(&self, asked: u64, now: BootTime) -> TokenRow {
        let known = self.known.borrow();
        let age = known.token.as_ref().map(|kept| now.since(kept.since));
        TokenRow { key: Arc::clone(&self.key), token: age.zip(known.seconds_left(now)), asked }
    }

    fn crowd(&self) -> MutexGuard<'_, Crowd> {
        // It is replaced whole.
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    pub(super) fn find(&self, now: BootTime) -> Found {
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

    /// Drops a token that is over, which wipes it.
    pub(super) fn drop_expired(&mut self, now: BootTime) {
        let expired = self.token.take_if(|kept| freshness::judge(kept.expires, now) == Freshness::Expired);
        self.is_lost |= expired.is_some();
    }

    fn seconds_left(&self, now: BootTime) -> Option<u32> {
        Some(freshness::judge(self.token.as_ref()?.expires, now).seconds()).filter(|seconds| *seconds > 0)
    }

    /// Memory that it takes, in bytes, apart from its own fields.
    fn heap(&self) -> usize {
        let token = self.token.as_ref().map_or(0, |kept| size_of::<Kept>() + kept.token.heap());
        let failure = match &self.failure {
            Some(Remembered { why: NoToken::Refused(refused), .. }) => refused.heap(),
            _ => 0,
        };
        token + failure
    }
}

impl Token {
    /// Memory that it takes, with the last body, in bytes.
    fn heap(&self) -> usize {
        match self {
            Self::Access(token) => 2 * token.heap(),
            Self::Identity(jwt) => jwt.len(),
        }
    }
}

impl Kept {
    pub(super) fn new(token: Token, since: BootTime, expires: BootTime) -> Self {
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
