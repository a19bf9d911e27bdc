//! hanging: many who wait for one change are one upstream request.
//!
//! A hanging GET (`wait_for_change=true`) waits until a value changes, for hours if need be. Agents on a node watch the
//! same few values, so watchers that ask the same (path, parameters, the value that they have, the name they call us by)
//! share one upstream request, a *watch*. It runs in a task of its own and ends with its last watcher; a watcher that
//! leaves takes nobody with it. Watchers hold no seat, since they would fill them all; instead the number of watches is
//! limited, and the next is refused with 503. Watchers of a watch are limited by the connections that they come on.
//!
//! A watch holds its answer until the last watcher has it, at most 256 KiB: 64 watches are 16 MiB if all of
//! them see the largest values change at once, and next to nothing otherwise.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tower::{Layer, Service};

use super::outcome::Outcome;
use crate::error::{Error, Overload};
use crate::metadata::Request;
use crate::reply::Body;
use crate::upstream::Failure;

/// Largest answer that is shared, in bytes: the server's own bound on a value.
const LARGEST: usize = 256 * 1024;

/// The watches under way.
#[derive(Debug)]
pub struct Watches {
    limit: usize,
    under_way: Mutex<HashMap<Key, Weak<Watch>>>,
}

/// What makes two hanging GETs the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    method: crate::metadata::Method,
    principal: crate::metadata::Principal,
    host: Option<String>,
    target: String,
}

/// One upstream request, for as long as somebody waits for it.
#[derive(Debug)]
struct Watch {
    key: Key,
    watches: Arc<Watches>,
    seen: watch::Receiver<Option<Seen>>,
    task: AbortHandle,
}

/// What came of it.
type Seen = Result<Arc<Answer>, Arc<Failure>>;

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Watches {
    /// At most so many at once.
    pub fn new(limit: usize) -> Self {
        Self { limit, under_way: Mutex::default() }
    }

    /// Most that there may be at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// The watch for a request, begun with this if there is none yet; nothing if there is no room for another.
    fn join<F>(self: &Arc<Self>, key: Key, begin: impl FnOnce() -> F) -> Option<Arc<Watch>>
    where
        F: Future<Output = Result<Response<Body>, Error>> + Send + 'static,
    {
        let mut under_way = self.lock();
        if let Some(watch) = under_way.get(&key).and_then(Weak::upgrade) {
            return Some(watch);
        }
        if under_way.len() >= self.limit && !under_way.contains_key(&key) {
            return None;
        }
        let (told, seen) = watch::channel(None);
        let asked = begin();
        let task = tokio::spawn(async move {
            // Nobody may be left to hear it.
            let _ = told.send(Some(whole(asked.await).await));
        });
        let watch = Arc::new(Watch { key: key.clone(), watches: Arc::clone(self), seen, task: task.abort_handle() });
        under_way.insert(key, Arc::downgrade(&watch));
        Some(watch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Weak<Watch>>> {
        // Entries are put in and taken out whole, so a panic elsewhere leaves the map whole.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    async fn answer(&self) -> Result<Response<Body>, Error> {
        let mut seen = self.seen.clone();
        let seen = match seen.wait_for(Option::is_some).await {
            Ok(seen) => seen.clone(),
            // The task is gone without a word: it panicked.
            Err(_) => None,
        };
        let answer = seen.unwrap_or_else(|| Err(Arc::new(Failure::Closed))).map_err(Error::Upstream)?;
        let mut response = Response::new(Body::Whole(answer.body.clone()));
        *response.status_mut() = answer.status;
        response.headers_mut().clone_from(&answer.headers);
        Ok(response)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
        let mut under_way = self.watches.lock();
        // Another watch may have taken the place between the last watcher's leaving and now.
        if under_way.get(&self.key).is_some_and(|watch| watch.strong_count() == 0) {
            under_way.remove(&self.key);
        }
    }
}

async fn whole(answer: Result<Response<Body>, Error>) -> Seen {
    let (head, mut body) = match answer {
        Ok(answer) => answer.into_parts(),
        Err(Error::Upstream(failure)) => return Err(failure),
        // Nothing below refuses for another reason.
        Err(_) => return Err(Arc::new(Failure::Closed)),
    };
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(Arc::new)?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > LARGEST {
            return Err(Arc::new(Failure::TooLarge(LARGEST)));
        }
    }
    Ok(Arc::new(Answer { status: head.status, headers: head.headers, body: bytes.freeze() }))
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
        match self.watches.join(key, || self.inner.call(request)) {
            Some(watch) => Outcome::pending(async move { watch.answer().await }),
            None => Outcome::decided(Err(Overload::Hanging.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::sleep;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::metadata::{Endpoint, Principal, Query};

    /// A server that answers a watch when it is told to, and counts those that wait.
    #[derive(Debug)]
    struct Server {
        changes: Semaphore,
        asked: AtomicUsize,
        waiting: AtomicUsize,
    }

    struct Waiting(Arc<Server>);

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.waiting.fetch_sub(1, Relaxed);
        }
    }

    fn start(limit: usize) -> (Arc<Server>, Arc<Watches>) {
        let server = Server { changes: Semaphore::new(0), asked: AtomicUsize::new(0), waiting: AtomicUsize::new(0) };
        (Arc::new(server), Arc::new(Watches::new(limit)))
    }

    fn ask(server: &Arc<Server>, watches: &Arc<Watches>, target: &str) -> JoinHandle<Result<Response<Body>, Error>> {
        let server = Arc::clone(server);
        let inner = service_fn(move |_: Box<Request>| {
            let server = Arc::clone(&server);
            async move {
                server.asked.fetch_add(1, Relaxed);
                server.waiting.fetch_add(1, Relaxed);
                let waiting = Waiting(server);
                waiting.0.changes.acquire().await.expect("open").forget();
                Ok::<_, Error>(Response::new(Body::Whole(Bytes::from_static(b"changed"))))
            }
        });
        let (path, query) = target.split_once('?').expect("a query");
        let query = Query::parse(Some(query)).expect("a query");
        let request = Request::own(Endpoint::Leaf, path, query, Principal::Node);
        tokio::spawn(HangingLayer::new(Arc::clone(watches)).layer(inner).oneshot(request.into()))
    }

    const ZONE: &str = "/computeMetadata/v1/instance/zone?wait_for_change=true";

    async fn settle() {
        for _ in 0..10 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn watchers_of_the_same_share_one_request() {
        let (server, watches) = start(1);
        let crowd: Vec<_> = (0..100).map(|_| ask(&server, &watches, ZONE)).collect();
        settle().await;
        assert_eq!((server.asked.load(Relaxed), watches.count()), (1, 1));
        server.changes.add_permits(1);
        for watcher in crowd {
            assert_eq!(watcher.await.expect("no panic").expect("an answer").status(), StatusCode::OK);
        }
        assert_eq!(watches.count(), 0, "the place is free");
    }

    #[tokio::test]
    async fn what_a_client_has_already_makes_another_watch_and_places_are_limited() {
        let (server, watches) = start(2);
        let _one = ask(&server, &watches, ZONE);
        let _other = ask(&server, &watches, &format!("{ZONE}&last_etag=0123456789abcdef"));
        settle().await;
        assert_eq!((server.asked.load(Relaxed), watches.count()), (2, 2));
        let third = ask(&server, &watches, &format!("{ZONE}&timeout_sec=5")).await.expect("no panic");
        assert!(matches!(third, Err(Error::Overloaded(Overload::Hanging))), "{third:?}");
        let joins = ask(&server, &watches, ZONE);
        settle().await;
        assert!(!joins.is_finished(), "one more watcher needs no place");
    }

    #[tokio::test]
    async fn a_watch_ends_with_its_last_watcher_and_not_before() {
        let (server, watches) = start(1);
        let first = ask(&server, &watches, ZONE);
        let second = ask(&server, &watches, ZONE);
        settle().await;
        first.abort();
        settle().await;
        assert_eq!((server.waiting.load(Relaxed), watches.count()), (1, 1), "the one that began it may leave");
        second.abort();
        settle().await;
        assert_eq!((server.waiting.load(Relaxed), watches.count()), (0, 0));
        let _again = ask(&server, &watches, ZONE);
        settle().await;
        assert_eq!(server.asked.load(Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_hang_is_left_alone() {
        let (server, watches) = start(0);
        let ordinary = ask(&server, &watches, "/computeMetadata/v1/instance/zone?alt=json");
        server.changes.add_permits(1);
        sleep(Duration::from_millis(1)).await;
        assert!(ordinary.await.expect("no panic").is_ok());
    }
}
