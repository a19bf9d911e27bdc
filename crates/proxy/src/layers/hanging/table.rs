//! [`WatchTable`]: the active watches, their holders, and the choice of the one that gives way.
//!
//! It decides and counts. `watches.rs` starts the tasks and waits for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::result::WatchResult;
use crate::error::{Error, Overload};
use crate::shares::{self, Client, Shares};
use crate::single_flight::Publisher;
use protocol::metadata::Method;

/// Age from which a watch gives way to a client that has none, although its holder has no more than others. Where more
/// clients watch than there are watches, each has its turn, and none is ended more often than that.
pub(super) const TURN: Duration = Duration::from_secs(10);

/// The active watches.
#[derive(Debug)]
pub(super) struct WatchTable {
    pub(super) shares: Shares,
    last_number: u64,
    pub(super) watches: HashMap<Arc<Key>, Watch>,
}

/// Two hanging GETs with equal keys share a watch.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) method: Method,
    /// Only the node may watch its accounts. Pods all see the same below this layer.
    pub(super) is_of_node: bool,
    pub(super) host: String,
    pub(super) target: String,
}

/// One upstream request. It exists until it is answered or its last watcher leaves.
#[derive(Debug)]
pub(super) struct Watch {
    /// Increases from watch to watch.
    pub(super) number: u64,
    /// The client that is charged for the watch, one of its watchers.
    holder: Client,
    /// Watchers by client, each with its number of connections.
    watchers: Shares,
    pub(super) publisher: Arc<Publisher<WatchResult>>,
    task: AbortHandle,
    began: Instant,
}

impl WatchTable {
    /// Creates a table with at most `limit` watches.
    pub(super) fn new(limit: usize) -> Self {
        Self { shares: Shares::new(limit), last_number: 0, watches: HashMap::new() }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Ends another client's watch if the table is full and this client has clearly fewer, or none.
    pub(super) fn make_room_for(&mut self, client: Client) -> Result<(), Overload> {
        match self.shares.room_for(client, 1) {
            shares::Availability::Free => Ok(()),
            shares::Availability::From(largest) => self.end_one(|watch| watch.holder == largest),
            // Otherwise a pod with as many addresses as there are watches could keep all of them.
            shares::Availability::None if self.shares.held_by(client) == 0 => {
                self.end_one(|watch| watch.watchers.holders() <= 1 && watch.began.elapsed() >= TURN)
            }
            // If clients could replace their own watches, a client with too many would replace them forever.
            shares::Availability::FromItself | shares::Availability::None => Err(Overload::Hanging),
        }
    }

    /// Ends that of these watches that the fewest clients wait for, the oldest of them. One of the largest holder ends also if
    /// several wait for it: two addresses of a pod could otherwise hold all watches for ever.
    fn end_one(&mut self, may_end: impl Fn(&Watch) -> bool) -> Result<(), Overload> {
        let ending = self.watches.iter().filter(|(_, watch)| may_end(watch));
        let fewest = ending.min_by_key(|(_, watch)| (watch.watchers.holders(), watch.number));
        let (key, _) = fewest.ok_or(Overload::Hanging)?;
        self.end(&Arc::clone(key), Overload::HangingGaveWay.into());
        Ok(())
    }

    /// Ends a watch with this answer to its watchers.
    pub(super) fn end(&mut self, key: &Key, why: Error) {
        if let Some(watch) = self.remove(key) {
            watch.publisher.publish(Err(why));
            watch.task.abort();
        }
    }

    pub(super) fn end_all(&mut self) {
        for key in self.watches.keys().cloned().collect::<Vec<_>>() {
            self.end(&key, Error::Draining);
        }
    }

    /// Adds a watch that has no watchers yet.
    pub(super) fn insert(
        &mut self,
        key: Arc<Key>,
        number: u64,
        holder: Client,
        publisher: Arc<Publisher<WatchResult>>,
        task: AbortHandle,
    ) {
        self.shares.take(holder, 1);
        let watchers = Shares::new(usize::MAX);
        let began = Instant::now();
        self.watches.insert(key, Watch { number, holder, watchers, publisher, task, began });
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Watch> {
        let watch = self.watches.remove(key)?;
        self.shares.give_back(watch.holder, 1);
        Some(watch)
    }

    /// The watch with this number, if it is active. Another watch with the same key may have replaced it.
    pub(super) fn under_way(&self, key: &Key, number: u64) -> Option<&Watch> {
        self.watches.get(key).filter(|watch| watch.number == number)
    }

    /// Removes a watcher. The watch passes to another client, or ends with its last watcher.
    pub(super) fn leave(&mut self, key: &Key, client: Client) {
        let Some(watch) = self.watches.get_mut(key) else { return };
        watch.watchers.give_back(client, 1);
        if watch.watchers.held_by(watch.holder) > 0 {
            return;
        }
        match watch.watchers.largest() {
            Some((heir, _)) => {
                self.shares.give_back(watch.holder, 1);
                self.shares.take(heir, 1);
                watch.holder = heir;
            }
            None => {
                if let Some(watch) = self.remove(key) {
                    watch.task.abort();
                }
            }
        }
    }
}

impl Watch {
    /// Adds a watcher.
    pub(super) fn join(&mut self, client: Client) {
        self.watchers.take(client, 1);
    }

    /// The clients that wait for it, the holder first.
    pub(super) fn clients(&self) -> impl Iterator<Item = Client> {
        std::iter::once(self.holder).chain(self.watchers.clients())
    }
}
