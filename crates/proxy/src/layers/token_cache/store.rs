//! [`Store`]: the cache entries, and the choice of those to evict.
//!
//! The store is limited in bytes. An entry is charged to the client that requested it first. The default account's
//! entry is the proxy's own: it is not charged and never evicted. If there is no room for a new entry, the rule of
//! [`Shares`] decides:
//!
//! 1. If another client holds clearly more than the requesting one, its least recently used entry without waiting
//!    requests is evicted.
//! 2. If it has none, its least recently used entry for which no other client waits is evicted.
//! 3. If the requesting client holds most, or none holds clearly more, the least recently used entry of its own without
//!    waiting requests is evicted.
//! 4. If there is no such entry, the request is refused.
//!
//! So a client that invents keys evicts its own entries, and never one that another client waits for.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::entry::{Entry, TokenRow};
use super::metrics::{FlightCause, TokenMetrics};
use crate::error::Overload;
use crate::failure::ExchangeFailure;
use crate::flights::{Flights, Waited};
use crate::shares::{Availability, Client, Shares};
use crate::single_flight::Remembered;
use crate::tokens::{NoToken, TokenKey};
use base::clock::BootTime;
use base::hook::Hook;
use protocol::metadata::{Principal, ServiceAccount, WorkloadId};
use telemetry::{Registry, table};

/// Default limit of all entries, in bytes: about 480 entries of common size.
pub const DEFAULT_LIMIT_BYTES: usize = 2 * 1024 * 1024;

/// Maximum concurrent fetches of the node's tokens, over all keys.
pub const MAX_FETCHES: usize = 16;

/// Maximum concurrent fetches that requests wait for. The rest of [`MAX_FETCHES`] is reserved for refreshes. Neither
/// kind uses the other's part.
pub(super) const MAX_DEMANDED_FETCHES: usize = 12;

/// Maximum concurrent fetches of workloads' tokens that requests wait for, in total. Their source limits the requests
/// to each server. A fetch that waits here for one server must not keep out a fetch that needs another, so there are
/// more than two places per pod of a node. If all are taken, some pod has several, and gives way.
const MAX_DEMANDED_EXCHANGES: usize = 256;

/// Maximum concurrent fetches of workloads' tokens that requests of one pod wait for.
const MAX_EXCHANGES_OF_POD: usize = 24;

/// Maximum concurrent refreshes of workloads' tokens.
const MAX_RENEWED_EXCHANGES: usize = 8;

/// Remaining seconds below which a token that cannot be fetched is a problem. Refreshes begin half a minute before, and
/// most client libraries request another token by then.
const SOON_SECONDS: u32 = 300;

/// Whether this account is known to be the default account of this workload, under another name.
pub type IsDefault = Hook<dyn Fn(WorkloadId, &ServiceAccount) -> bool + Send + Sync>;

/// All entries, and their shared state.
#[derive(Debug)]
pub struct Store {
    entries: Mutex<Entries>,
    default_email: OnceLock<Box<str>>,
    is_default: IsDefault,
    /// Pools for the node's tokens and for workloads' tokens: their sources have different servers.
    of_node: Pools,
    of_workloads: Pools,
    pub(super) metrics: TokenMetrics,
}

/// Pools of flights that requests wait for, and of refreshes. Neither delays the other.
#[derive(Debug)]
struct Pools {
    demanded: Flights,
    renewed: Flights,
}

#[derive(Debug)]
struct Entries {
    by_key: HashMap<Arc<TokenKey>, Arc<Entry>, RandomState>,
    /// In bytes.
    shares: Shares,
}

impl Store {
    /// Creates an empty store with this limit in bytes. Workloads' accounts have no other names.
    pub fn new(limit: usize, registry: &Registry) -> Arc<Self> {
        Self::with_names(limit, Hook::new(Arc::new(|_, _| false)), registry)
    }

    /// Creates an empty store with this limit in bytes. `is_default` recognises other names of workloads' default
    /// accounts.
    pub fn with_names(limit: usize, is_default: IsDefault, registry: &Registry) -> Arc<Self> {
        let store = Arc::new(Self {
            entries: Mutex::new(Entries { by_key: HashMap::default(), shares: Shares::new(limit) }),
            default_email: OnceLock::new(),
            is_default,
            of_node: Pools {
                demanded: Flights::new(MAX_DEMANDED_FETCHES),
                renewed: Flights::new(MAX_FETCHES - MAX_DEMANDED_FETCHES),
            },
            of_workloads: Pools {
                demanded: Flights::with_client_limit(MAX_DEMANDED_EXCHANGES, MAX_EXCHANGES_OF_POD),
                renewed: Flights::new(MAX_RENEWED_EXCHANGES),
            },
            metrics: TokenMetrics::new(registry),
        });
        store.observe(registry);
        store
    }

    /// Sets the e-mail of the default account. Later calls have no effect: a running machine's account does not change.
    pub fn know_default_email(&self, email: &str) {
        self.default_email.get_or_init(|| email.into());
    }

    /// The most frequently requested entries, at most `max`, and the number of other entries.
    pub fn rows(&self, max: usize, now: BootTime) -> (Vec<TokenRow>, usize) {
        let mut entries: Vec<(Reverse<u64>, Arc<Entry>)> = {
            let entries = self.entries.lock();
            entries.by_key.values().map(|entry| (Reverse(entry.asked.load(Relaxed)), Arc::clone(entry))).collect()
        };
        entries.sort_unstable_by_key(|(asked, _)| *asked);
        let others = entries.len().saturating_sub(max);
        entries.truncate(max);
        (entries.iter().map(|(Reverse(asked), entry)| entry.row(*asked, now)).collect(), others)
    }

    /// Memory of all entries and its limit, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> (usize, usize) {
        let entries = self.entries.lock();
        (entries.shares.used(), entries.shares.limit())
    }

    /// Deletes the entries of a principal that no longer exists. A token is wiped when the last request that uses it
    /// ends.
    pub fn forget_all_of(&self, principal: Principal) {
        let why = NoToken::from(ExchangeFailure::Account("the pod's service account has changed".to_owned()));
        let mut entries = self.entries.lock();
        let gone: Vec<_> = entries.by_key.values().filter(|entry| entry.key.principal == principal).cloned().collect();
        for entry in &gone {
            entries.evict(entry, why.clone());
        }
    }

    /// Registers gauges of the entries.
    fn observe(self: &Arc<Self>, registry: &Registry) {
        let store = Arc::clone(self);
        registry.observe(&table::TOKEN_ENTRIES, move || Some(store.entries.lock().by_key.len() as u64));
    }

    /// Seconds until the default account's token expires, or 0 if there should be one and is none. `None` before the
    /// first response and without an account, so that no alert fires.
    pub fn default_expires_in(&self) -> Option<u32> {
        let entry = self.find(&TokenKey::default_account())?;
        let known = entry.known.borrow();
        // A machine keeps its account while it runs: one that had a token, or has an e-mail, also has the account.
        let is_missing = known.is_lost || known.failure.is_some() && self.default_email.get().is_some();
        known.seconds_left(BootTime::now()).or_else(|| is_missing.then_some(0))
    }

    /// Why the default account's token is or will be missing: its source fails or refuses, and it expires within
    /// minutes. With the seconds until then, or 0 if there is none. Requests for other accounts have no effect.
    pub fn default_at_risk(&self) -> Option<(NoToken, u32)> {
        let seconds = self.default_expires_in().filter(|seconds| *seconds < SOON_SECONDS)?;
        let why = self.find(&TokenKey::default_account())?.known.borrow().last_failure();
        why.map(|why| (why, seconds))
    }

    /// Replaces the name of the default account in a key by its alias. Each principal has its own default account.
    pub(super) fn canonical(&self, mut key: TokenKey) -> TokenKey {
        let is_default = match (key.principal, &key.account) {
            (Principal::Node, ServiceAccount::Email(email)) => self.default_email.get() == Some(email),
            (Principal::Workload(number), account @ ServiceAccount::Email(_)) => (self.is_default)(number, account),
            (_, ServiceAccount::Default) | (Principal::Unknown, ServiceAccount::Email(_)) => false,
        };
        if is_default {
            key.account = ServiceAccount::Default;
        }
        key
    }

    /// All entries.
    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.lock().by_key.values().cloned().collect()
    }

    /// The entry of a canonical key.
    pub(super) fn find(&self, key: &TokenKey) -> Option<Arc<Entry>> {
        self.entries.lock().by_key.get(key).cloned()
    }

    /// The entry of a canonical key, and whether it is new and needs a keeper. A new entry is charged to this client,
    /// and refused if there is no room for it.
    pub(super) fn find_or_make(
        &self,
        key: TokenKey,
        client: Client,
        now: BootTime,
    ) -> Result<(Arc<Entry>, bool), Overload> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.by_key.get(&key) {
            return Ok((Arc::clone(entry), false));
        }
        let entry = Arc::new(Entry::new(key, client, now));
        if !entry.is_own() {
            let weight = entry.weigh();
            let evicted = entries.make_room(client, weight);
            self.metrics.evictions.inc_by(evicted?);
            entry.weight.store(weight, Relaxed);
            entries.shares.take(client, weight);
        }
        entries.by_key.insert(Arc::clone(&entry.key), Arc::clone(&entry));
        Ok((entry, true))
    }

    /// Updates the charge of an entry whose token changed.
    pub(super) fn reweigh(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock();
        let (old, new) = (entry.weight.load(Relaxed), entry.weigh());
        if old == new || entry.is_own() || !entries.holds(entry) {
            return;
        }
        entries.shares.give_back(entry.holder, old);
        entry.weight.store(0, Relaxed);
        // Fails only if no other entry can be evicted. Requests that wait for this one still get its token.
        let evicted = match entries.make_room(entry.holder, new) {
            Ok(evicted) if entries.holds(entry) => {
                entry.weight.store(new, Relaxed);
                entries.shares.take(entry.holder, new);
                evicted
            }
            Ok(evicted) => evicted,
            Err(_) => {
                entries.evict(entry, NoToken::Overloaded(Overload::Tokens));
                1
            }
        };
        self.metrics.evictions.inc_by(evicted);
    }

    /// Removes an entry whose keeper ends.
    pub(super) fn forget(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock();
        if entries.holds(entry) {
            entries.remove(entry);
        }
    }

    /// The pool of flights with this cause, for this principal.
    pub(super) fn flights(&self, cause: FlightCause, principal: Principal) -> &Flights {
        let pools = if principal == Principal::Node { &self.of_node } else { &self.of_workloads };
        match cause {
            FlightCause::Demand => &pools.demanded,
            FlightCause::Refresh => &pools.renewed,
        }
    }
}

impl Entries {
    fn holds(&self, entry: &Arc<Entry>) -> bool {
        self.by_key.get(&entry.key).is_some_and(|found| Arc::ptr_eq(found, entry))
    }

    /// Evicts entries until a client may take this many more bytes, by the rule in the module documentation. Returns
    /// the number of evicted entries.
    fn make_room(&mut self, client: Client, weight: usize) -> Result<u64, Overload> {
        if weight > self.shares.limit() {
            return Err(Overload::Tokens);
        }
        let mut evicted = 0;
        loop {
            let goes = match self.shares.room_for(client, weight) {
                Availability::Free => return Ok(evicted),
                Availability::From(largest) => self
                    .unused_for_longest(|entry| entry.holder == largest && !entry.is_waited_for())
                    .or_else(|| {
                        self.unused_for_longest(|entry| entry.holder == largest && entry.no_other_client_waits(largest))
                    })
                    .ok_or(Overload::TokenRoom)?,
                Availability::FromItself | Availability::None => self
                    .unused_for_longest(|entry| entry.holder == client && !entry.is_waited_for())
                    .ok_or(Overload::Tokens)?,
            };
            self.evict(&goes, NoToken::Overloaded(Overload::Tokens));
            evicted += 1;
        }
    }

    fn unused_for_longest(&self, may_go: impl Fn(&Entry) -> bool) -> Option<Arc<Entry>> {
        let may_go = self.by_key.values().filter(|entry| !entry.is_own() && may_go(entry));
        may_go.min_by_key(|entry| entry.used.load(Relaxed)).cloned()
    }

    fn evict(&mut self, entry: &Arc<Entry>, why: NoToken) {
        self.remove(entry);
        // Requests that wait for it, or have just found it, get this error. Its token is wiped when its keeper ends.
        let failure = Remembered::always(why);
        entry.known.send_modify(|known| known.failure = Some(failure));
        entry.evicted.notify_one();
    }

    fn remove(&mut self, entry: &Arc<Entry>) {
        self.by_key.remove(&entry.key);
        self.shares.give_back(entry.holder, entry.weight.load(Relaxed));
    }
}
