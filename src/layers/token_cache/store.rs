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
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;

use super::entry::{Entry, TokenRow};
use super::flights::{DEMANDED, FETCHES, Flights, Waited};
use super::known::{Found, Remembered};
use super::metrics::{FlightCause, TokenMetrics};
use crate::clock::BootTime;
use crate::error::Overload;
use crate::metadata::{Principal, ServiceAccount};
use crate::shares::{Client, Room, Shares};
use crate::telemetry::{Registry, table};
use crate::tokens::{NoToken, TokenKey};

/// Memory for entries where nobody says otherwise, in bytes: about 480 of common size.
pub const LIMIT: usize = 2 * 1024 * 1024;

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

impl Store {
    /// Empty, with room for entries of this many bytes together.
    pub fn new(limit: usize, registry: &Registry) -> Arc<Self> {
        let store = Arc::new(Self {
            kept: Mutex::new(Entries { by_key: HashMap::default(), shares: Shares::new(limit) }),
            default_email: OnceLock::new(),
            demanded: Flights::new(DEMANDED),
            renewed: Flights::new(FETCHES - DEMANDED),
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
