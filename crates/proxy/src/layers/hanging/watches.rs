//! [`Watches`]: starts watches, waits for their answers, and ends those without watchers.
//!
//! Each watch runs in a task. `table.rs` decides which clients may have one.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Response;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::result::{SharedAnswer, WatchResult};
use super::table::{Key, WatchTable};
use crate::error::{Error, Overload};
use crate::failure::Failure;
use crate::reply::Body;
use crate::room::{Account, Room};
use crate::single_flight::{Landing, Publisher};

/// The active watches.
#[derive(Debug)]
pub struct Watches {
    pub(super) room: Arc<Room>,
    pub(super) table: Mutex<WatchTable>,
    /// The process ends: nobody waits any more.
    pub(super) closed: CancellationToken,
}

/// A waiting client. Dropped when the client has left or has its answer.
#[derive(Debug)]
pub(super) struct Watcher {
    watches: Arc<Watches>,
    key: Arc<Key>,
    number: u64,
    account: Account,
    landing: Landing<WatchResult>,
}

/// The task of a watch. The watch ends when this is dropped, for whatever reason the task ended.
struct WatchTask {
    watches: Arc<Watches>,
    key: Arc<Key>,
    number: u64,
    publisher: Arc<Publisher<WatchResult>>,
}

impl Watches {
    /// Ends all watches, whose watchers get 503: they began under a policy that is no longer in force.
    pub fn end_all(&self) {
        self.table.lock().end_all();
    }

    /// Creates a set with at most `limit` watches. Their answers are charged to `room`.
    pub fn new(limit: usize, room: Arc<Room>) -> Self {
        Self { room, table: Mutex::new(WatchTable::new(limit)), closed: CancellationToken::new() }
    }

    /// Maximum number of watches.
    pub fn limit(&self) -> usize {
        self.table.lock().shares.limit()
    }

    /// Number of active watches.
    pub fn count(&self) -> usize {
        self.table.lock().shares.used()
    }

    /// Ends all watches, those that begin later, and the delays of refusals: all get 503 and may ask the next process. The process ends.
    pub fn close(&self) {
        self.closed.cancel();
        self.end_all();
    }

    /// Joins the watch for a request. If there is none, `ask` begins one, provided that there is room for it.
    pub(super) fn join<F>(
        self: &Arc<Self>,
        key: Key,
        account: &Account,
        ask: impl FnOnce() -> F,
    ) -> Result<Watcher, Overload>
    where
        F: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
    {
        let mut table = self.table.lock();
        let known = table.watches.get_key_value(&key).map(|(key, _)| Arc::clone(key));
        let key = match known {
            Some(key) => key,
            None => self.begin(&mut table, key, account, ask)?,
        };
        let Some(watch) = table.watches.get_mut(&key) else { return Err(Overload::Hanging) };
        watch.join(account.client());
        let (number, landing) = (watch.number, watch.publisher.landing());
        if self.closed.is_cancelled() {
            table.end(&key, Error::Draining);
        }
        drop(table);
        Ok(Watcher { watches: Arc::clone(self), key, number, account: account.clone(), landing })
    }

    fn begin<F>(
        self: &Arc<Self>,
        table: &mut WatchTable,
        key: Key,
        account: &Account,
        ask: impl FnOnce() -> F,
    ) -> Result<Arc<Key>, Overload>
    where
        F: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
    {
        let holder = account.client();
        table.make_room_for(holder)?;
        let (key, number, publisher) = (Arc::new(key), table.next_number(), Arc::new(Publisher::default()));
        let task = tokio::spawn({
            let (watches, key, publisher) = (Arc::clone(self), Arc::clone(&key), Arc::clone(&publisher));
            let answer = ask();
            async move {
                // Created when the task first runs, because dropping it takes the lock that is held now.
                let task = WatchTask { watches, key, number, publisher };
                let answer = answer.await;
                let Some(account) = task.account() else { return };
                task.publisher.publish(SharedAnswer::read(answer, &account).await);
            }
        });
        table.insert(Arc::clone(&key), number, holder, publisher, task.abort_handle());
        Ok(key)
    }
}

impl Watcher {
    pub(super) async fn answer(mut self) -> Result<Response<Body>, Error> {
        let answer = self.landing.result().await.unwrap_or_else(|| Err(Failure::Closed.into()))?;
        Ok(answer.response(&self.account))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut table = self.watches.table.lock();
        if table.under_way(&self.key, self.number).is_some() {
            table.leave(&self.key, self.account.client());
        }
    }
}

impl WatchTask {
    /// The account of the watcher that gets room first. If that of the holder were charged, one that leaves much unread would
    /// make all others wait behind those that hold less.
    fn account(&self) -> Option<Account> {
        let table = self.watches.table.lock();
        let client = self.watches.room.smallest(table.under_way(&self.key, self.number)?.clients())?;
        // A client is charged by its address. It may have several connections.
        Some(self.watches.room.account(client.map(|address| SocketAddr::new(address, 0))))
    }
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        let mut table = self.watches.table.lock();
        if table.under_way(&self.key, self.number).is_some() {
            table.remove(&self.key);
        }
    }
}
