//! hanging: clients that wait for the same change share one upstream request.
//!
//! A hanging GET (`wait_for_change=true`) waits until a value changes, for hours if need be. Agents on a node watch the
//! same few values, so watchers that ask the same (path, parameters, the value that they have, the name they call us by)
//! share one upstream request, a *watch*. It runs in a task of its own and ends with its last watcher; a watcher that
//! leaves takes nobody with it. A watch is over when its answer is there: who asks then begins another.
//!
//! # Who may begin one
//!
//! Watchers hold no seat, since they would fill them all; instead the number of watches is limited, and they are [shared
//! fairly](crate::shares). A watch is held by the client that began it, or by another that still waits when that one has left.
//! Joining a watch is always allowed: watchers are limited by the connections that they come on. When all watches are taken, a
//! client that has clearly fewer than the one that has most takes the place of its oldest watch; the watchers of that get
//! 503. Only a watch for which no other client waits is ended in this way. Everybody else is refused with 503.
//!
//! # What a watch costs
//!
//! Until its answer is there, a task, a connection to the upstream, and the request without anything that does not go
//! upstream. The answer takes [`Room`], which is given back when the last watcher has read it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tower::{Layer, Service};

use super::outcome::Outcome;
use crate::error::{Error, Overload};
use crate::failure::Failure;
use crate::metadata::Request;
use crate::reply::Body;
use crate::room::{Account, Amount, Charge, Room, SMALL_WITHOUT_SEAT, Whole};
use crate::shares::{self, Client, Shares};

/// The watches under way.
#[derive(Debug)]
pub struct Watches {
    room: Arc<Room>,
    under_way: Mutex<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    shares: Shares,
    next: u64,
    watches: HashMap<Arc<Key>, Watch>,
}

/// What makes two hanging GETs the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    method: crate::metadata::Method,
    principal: crate::metadata::Principal,
    host: Option<String>,
    target: String,
}

/// One upstream request, for as long as somebody waits for it and it is not answered.
#[derive(Debug)]
struct Watch {
    /// Later ones have greater numbers.
    number: u64,
    /// The client that holds it, one of those that wait.
    holder: Client,
    /// Who waits, and on how many connections.
    watchers: Shares,
    told: Arc<watch::Sender<Option<Seen>>>,
    task: AbortHandle,
}

/// A client that waits. When it is dropped, the client has left or has its answer.
#[derive(Debug)]
struct Watcher {
    watches: Arc<Watches>,
    key: Arc<Key>,
    number: u64,
    account: Account,
    seen: watch::Receiver<Option<Seen>>,
}

/// The task of a watch. When it is dropped, the watch is over, however the task ended.
struct Telling {
    watches: Arc<Watches>,
    key: Arc<Key>,
    number: u64,
    told: Arc<watch::Sender<Option<Seen>>>,
}

/// What came of a watch.
type Seen = Result<Arc<Answer>, Unseen>;

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// None if it is small.
    charge: Option<Arc<Charge>>,
}

/// Why a watch ended without an answer.
#[derive(Debug, Clone)]
enum Unseen {
    Failed(Arc<Failure>),
    Overloaded(Overload),
    TooLarge(usize),
}

impl Watches {
    /// At most this many at once. Their answers take this room.
    pub fn new(limit: usize, room: Arc<Room>) -> Self {
        let under_way = UnderWay { shares: Shares::new(limit), next: 0, watches: HashMap::new() };
        Self { room, under_way: Mutex::new(under_way) }
    }

    /// Most that there may be at once.
    pub fn limit(&self) -> usize {
        self.lock().shares.limit()
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        self.lock().shares.used()
    }

    /// Waits for the watch of a request, which is begun with this if there is none yet and there is room for another.
    fn join<F>(self: &Arc<Self>, key: Key, account: &Account, begin: impl FnOnce() -> F) -> Result<Watcher, Overload>
    where
        F: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
    {
        let client = account.client();
        let mut under_way = self.lock();
        let known = under_way.watches.get_key_value(&key).map(|(key, _)| Arc::clone(key));
        let key = match known {
            Some(key) => key,
            None => self.begin(&mut under_way, key, account, begin)?,
        };
        let Some(watch) = under_way.watches.get_mut(&key) else { return Err(Overload::Hanging) };
        watch.watchers.take(client, 1);
        let (number, seen) = (watch.number, watch.told.subscribe());
        drop(under_way);
        Ok(Watcher { watches: Arc::clone(self), key, number, account: account.clone(), seen })
    }

    fn begin<F>(
        self: &Arc<Self>,
        under_way: &mut UnderWay,
        key: Key,
        account: &Account,
        ask: impl FnOnce() -> F,
    ) -> Result<Arc<Key>, Overload>
    where
        F: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
    {
        let holder = account.client();
        under_way.make_room_for(holder)?;
        let (key, number, told) = (Arc::new(key), under_way.number(), Arc::new(watch::Sender::new(None)));
        let task = tokio::spawn({
            let (watches, key, told, account) =
                (Arc::clone(self), Arc::clone(&key), Arc::clone(&told), account.clone());
            let asked = ask();
            async move {
                // Made when the task first runs: dropping it takes the lock that is held now.
                let telling = Telling { watches, key, number, told };
                telling.tell(whole(asked.await, &account).await);
            }
        });
        under_way.shares.take(holder, 1);
        let watchers = Shares::new(usize::MAX);
        let watch = Watch { number, holder, watchers, told, task: task.abort_handle() };
        under_way.watches.insert(Arc::clone(&key), watch);
        Ok(key)
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // Entries are put in and taken out whole, so a panic elsewhere leaves the map whole.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn make_room_for(&mut self, client: Client) -> Result<(), Overload> {
        match self.shares.room_for(client, 1) {
            shares::Room::Free => Ok(()),
            shares::Room::From(largest) => self.end_oldest_of(largest),
            // A client that would end a watch of its own for another would do so without end.
            shares::Room::FromItself | shares::Room::None => Err(Overload::Hanging),
        }
    }

    /// Ends the oldest watch of a client for which nobody else waits.
    fn end_oldest_of(&mut self, client: Client) -> Result<(), Overload> {
        let alone = self.watches.iter().filter(|(_, watch)| watch.holder == client && watch.watchers.holders() == 1);
        let (key, _) = alone.min_by_key(|(_, watch)| watch.number).ok_or(Overload::Hanging)?;
        if let Some(watch) = self.remove(&Arc::clone(key)) {
            tell(&watch.told, Err(Unseen::Overloaded(Overload::HangingGaveWay)));
            watch.task.abort();
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> Option<Watch> {
        let watch = self.watches.remove(key)?;
        self.shares.give_back(watch.holder, 1);
        Some(watch)
    }

    /// The watch with this number, unless it is over. Another may have been begun in its place.
    fn is_under_way(&self, key: &Key, number: u64) -> bool {
        self.watches.get(key).is_some_and(|watch| watch.number == number)
    }

    /// A watcher leaves. The watch goes over to another client, or ends with its last watcher.
    fn leave(&mut self, key: &Key, client: Client) {
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

impl Watcher {
    async fn answer(mut self) -> Result<Response<Body>, Error> {
        let seen = match self.seen.wait_for(Option::is_some).await {
            Ok(seen) => seen.clone(),
            // Whoever could tell is gone.
            Err(_) => None,
        };
        let answer = seen.unwrap_or_else(|| Err(Failure::Closed.into()))?;
        let body = match &answer.charge {
            Some(charge) => charge.read_by(self.account.peer(), answer.body.clone()),
            None => answer.body.clone(),
        };
        let mut response = Response::new(Body::Whole(body));
        *response.status_mut() = answer.status;
        response.headers_mut().clone_from(&answer.headers);
        Ok(response)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut under_way = self.watches.lock();
        if under_way.is_under_way(&self.key, self.number) {
            under_way.leave(&self.key, self.account.client());
        }
    }
}

impl Telling {
    fn tell(self, seen: Seen) {
        tell(&self.told, seen);
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let mut under_way = self.watches.lock();
        if under_way.is_under_way(&self.key, self.number) {
            under_way.remove(&self.key);
        }
        drop(under_way);
        // Nothing was told if the task panicked.
        tell(&self.told, Err(Failure::Closed.into()));
    }
}

/// Tells the watchers, unless they were told before.
fn tell(told: &watch::Sender<Option<Seen>>, seen: Seen) {
    told.send_if_modified(|known| {
        let is_news = known.is_none();
        if is_news {
            *known = Some(seen);
        }
        is_news
    });
}

/// The answer of the upstream, as a whole. The client that began the watch is charged for it.
async fn whole(answer: Result<Response<Body>, Error>, account: &Account) -> Seen {
    let (head, body) = answer?.into_parts();
    let Whole { bytes, mut charge } = account.read(body, SMALL_WITHOUT_SEAT, |_| 0).await?;
    if charge.is_none() && bytes.len() > SMALL_WITHOUT_SEAT {
        // It came as a whole, which is charged for only where a seat is held.
        charge = Some(account.take(Amount { sent: bytes.len(), made: 0 }).await?);
    }
    Ok(Arc::new(Answer { status: head.status, headers: head.headers, body: bytes, charge: charge.map(Arc::new) }))
}

impl From<Failure> for Unseen {
    fn from(failure: Failure) -> Self {
        Self::Failed(Arc::new(failure))
    }
}

impl From<Overload> for Unseen {
    fn from(overload: Overload) -> Self {
        Self::Overloaded(overload)
    }
}

impl From<Error> for Unseen {
    fn from(error: Error) -> Self {
        match error {
            Error::Upstream(failure) => Self::Failed(failure),
            Error::Overloaded(overload) => Self::Overloaded(overload),
            Error::TooLarge(largest) => Self::TooLarge(largest),
            // Nothing below refuses for another reason.
            _ => Failure::Closed.into(),
        }
    }
}

impl From<Unseen> for Error {
    fn from(unseen: Unseen) -> Self {
        match unseen {
            Unseen::Failed(failure) => Self::Upstream(failure),
            Unseen::Overloaded(overload) => overload.into(),
            Unseen::TooLarge(largest) => Self::TooLarge(largest),
        }
    }
}

/// Makes [`Hanging`].
#[derive(Debug, Clone)]
pub struct HangingLayer {
    watches: Arc<Watches>,
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Hanging<S> {
    inner: S,
    watches: Arc<Watches>,
}

impl HangingLayer {
    /// Shares these.
    pub fn new(watches: Arc<Watches>) -> Self {
        Self { watches }
    }
}

impl<S> Layer<S> for HangingLayer {
    type Service = Hanging<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Hanging { inner, watches: Arc::clone(&self.watches) }
    }
}

impl<S> Service<Box<Request>> for Hanging<S>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Outcome<S::Future, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Box<Request>) -> Self::Future {
        if !request.hangs() {
            return Outcome::passed(self.inner.call(request));
        }
        let key = Key {
            method: request.method,
            principal: request.principal,
            host: request.host.as_ref().map(ToString::to_string),
            target: format!("{}{}", request.path, request.query),
        };
        let account = self.watches.room.account(request.peer);
        // One that joins a watch drops its request at once; one that begins a watch leaves it to `Forward`, which detaches it.
        match self.watches.join(key, &account, || self.inner.call(request)) {
            Ok(watcher) => Outcome::pending(async move { watcher.answer().await }),
            Err(full) => Outcome::decided(Err(full.into())),
        }
    }
}

#[cfg(test)]
mod tests;
