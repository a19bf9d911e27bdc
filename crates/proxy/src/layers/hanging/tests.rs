mod charged;
mod shares;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};
use tower::{ServiceExt, service_fn};

use super::*;
use crate::error::Overload;
use crate::room::{Amount, Room};
use base::hook::Hook;
use protocol::metadata::{Endpoint, Principal, Query, WorkloadId};

/// A server that answers a watch when the test says so, and counts pending watches.
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
    (Arc::new(server), Arc::new(Watches::new(limit, Room::new(1024 * 1024, Hook::new(Arc::new(|_| false))))))
}

type Watching = JoinHandle<Result<Response<Body>, Error>>;

fn ask(server: &Arc<Server>, watches: &Arc<Watches>, target: &str) -> Watching {
    ask_from(1, server, watches, target)
}

/// Sends a request from the pod with this number.
fn ask_from(pod: u8, server: &Arc<Server>, watches: &Arc<Watches>, target: &str) -> Watching {
    ask_as(Principal::Node, pod, server, watches, target)
}

fn ask_as(principal: Principal, pod: u8, server: &Arc<Server>, watches: &Arc<Watches>, target: &str) -> Watching {
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
    let request = Request { peer: Some(peer(pod)), ..request(target, principal) };
    tokio::spawn(layer(watches).layer(inner).oneshot(request.into()))
}

fn request(target: &str, principal: Principal) -> Request {
    let (path, query) = target.split_once('?').expect("a query");
    Request::own(Endpoint::Leaf, path, Query::parse(Some(query)).expect("a query"), principal)
}

const ZONE: &str = "/computeMetadata/v1/instance/zone?wait_for_change=true";

async fn settle() {
    for _ in 0..10 {
        yield_now().await;
    }
}

/// The server would take it for the name of all who watch.
#[tokio::test]
async fn a_watch_does_not_carry_the_headers_of_the_client_that_began_it() {
    let watches = Arc::new(Watches::new(1, Room::new(1024, Hook::new(Arc::new(|_| false)))));
    let server = service_fn(|request: Box<Request>| async move {
        assert!(request.headers.is_empty(), "{:?}", request.headers);
        Ok(Response::new(Body::Whole(Bytes::new())))
    });
    let mut request = request(ZONE, Principal::Node);
    request.headers.insert("user-agent", http::HeaderValue::from_static("an-agent/1.0"));
    assert!(layer(&watches).layer(server).oneshot(request.into()).await.is_ok());
}

#[tokio::test]
async fn watchers_of_the_same_value_share_one_request() {
    let (server, watches) = start(1);
    let crowd: Vec<_> = (0..100).map(|_| ask(&server, &watches, ZONE)).collect();
    settle().await;
    assert_eq!((server.asked.load(Relaxed), watches.count()), (1, 1));
    server.changes.add_permits(1);
    for watcher in crowd {
        assert_eq!(watcher.await.expect("no panic").expect("an answer").status(), StatusCode::OK);
    }
    assert_eq!(watches.count(), 0, "the watch is over");
}

#[tokio::test(start_paused = true)]
async fn another_last_etag_is_another_watch_and_watches_are_limited() {
    let (server, watches) = start(2);
    let _one = ask(&server, &watches, ZONE);
    let _other = ask(&server, &watches, &format!("{ZONE}&last_etag=0123456789abcdef"));
    settle().await;
    assert_eq!((server.asked.load(Relaxed), watches.count()), (2, 2));
    let asked = Instant::now();
    let third = ask(&server, &watches, &format!("{ZONE}&timeout_sec=5")).await.expect("no panic");
    assert!(matches!(third, Err(Error::Overloaded(Overload::Hanging))), "{third:?}");
    assert_eq!(asked.elapsed(), Duration::from_secs(5), "the client waits for so long anyway");
    let third = ask(&server, &watches, &another(1)).await.expect("no panic");
    assert!(matches!(third, Err(Error::Overloaded(Overload::Hanging))), "{third:?}");
    assert_eq!(asked.elapsed(), Duration::from_secs(5) + REFUSAL_DELAY);
    let joins = ask(&server, &watches, ZONE);
    settle().await;
    assert!(!joins.is_finished(), "joining a watch is always allowed");
}

#[tokio::test]
async fn a_watch_ends_with_its_last_watcher() {
    let (server, watches) = start(1);
    let first = ask(&server, &watches, ZONE);
    let second = ask(&server, &watches, ZONE);
    settle().await;
    first.abort();
    settle().await;
    assert_eq!((server.waiting.load(Relaxed), watches.count()), (1, 1), "the client that began it may leave");
    second.abort();
    settle().await;
    assert_eq!((server.waiting.load(Relaxed), watches.count()), (0, 0));
    let _again = ask(&server, &watches, ZONE);
    settle().await;
    assert_eq!(server.asked.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_request_passes_through() {
    let (server, watches) = start(0);
    let ordinary = ask(&server, &watches, "/computeMetadata/v1/instance/zone?alt=json");
    server.changes.add_permits(1);
    sleep(Duration::from_millis(1)).await;
    assert!(ordinary.await.expect("no panic").is_ok());
}

/// A request that begins a watch of its own, because its `last_etag` is unique.
fn another(number: usize) -> String {
    format!("{ZONE}&last_etag={number:016x}")
}

/// Three watches that this ends.
async fn all_ended_by(end: fn(&Watches)) -> (Arc<Server>, Arc<Watches>) {
    let (server, watches) = start(3);
    let waiting = [(1, 0), (2, 0), (2, 1)].map(|(pod, number)| ask_from(pod, &server, &watches, &another(number)));
    settle().await;
    end(&watches);
    for watcher in waiting {
        assert!(matches!(watcher.await.expect("no panic"), Err(Error::Draining)));
    }
    (server, watches)
}

#[tokio::test]
async fn when_the_process_ends_all_watches_end_and_so_do_later_ones() {
    let (server, watches) = all_ended_by(Watches::close).await;
    assert!(matches!(ask(&server, &watches, ZONE).await.expect("no panic"), Err(Error::Draining)));
    settle().await;
    assert_eq!((server.waiting.load(Relaxed), watches.count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn when_the_process_ends_a_refusal_does_not_wait_for_its_delay() {
    let (server, watches) = start(0);
    let refused = ask(&server, &watches, ZONE);
    settle().await;
    assert!(!refused.is_finished());
    let began = Instant::now();
    watches.close();
    assert!(matches!(refused.await.expect("no panic"), Err(Error::Draining)));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn when_the_policy_changes_all_watches_end_and_later_ones_begin() {
    let (server, watches) = all_ended_by(Watches::end_all).await;
    let later = ask_from(1, &server, &watches, &another(0));
    settle().await;
    assert_eq!((later.is_finished(), server.waiting.load(Relaxed), watches.count()), (false, 1, 1));
}

#[tokio::test]
async fn pods_of_all_accounts_share_a_watch_and_the_node_has_its_own() {
    let (server, watches) = start(2);
    let workloads =
        [1, 2, 3].map(|pod| ask_as(Principal::Workload(WorkloadId(pod.into())), pod, &server, &watches, ZONE));
    let node = ask_from(4, &server, &watches, ZONE);
    settle().await;
    assert_eq!((server.asked.load(Relaxed), watches.count()), (2, 2));
    server.changes.add_permits(2);
    for watcher in workloads.into_iter().chain([node]) {
        assert!(watcher.await.expect("no panic").is_ok());
    }
}

#[tokio::test]
async fn a_request_after_the_answer_begins_another_watch() {
    let (server, watches) = start(1);
    let first = ask(&server, &watches, ZONE);
    settle().await;
    // A watcher that has not read its answer yet.
    let key = watches.table.lock().watches.keys().next().cloned().expect("a watch");
    let account = watches.room.account(None);
    let slow = {
        let Key { method, is_of_node, .. } = *key;
        let key = Key { method, is_of_node, host: key.host.clone(), target: key.target.clone() };
        watches.join(key, &account, std::future::pending).expect("a watcher")
    };
    server.changes.add_permits(1);
    assert!(first.await.expect("no panic").is_ok());
    let again = ask(&server, &watches, ZONE);
    settle().await;
    assert!(!again.is_finished(), "the new watch waits for the next change");
    assert_eq!((server.asked.load(Relaxed), watches.count()), (2, 1));
    assert!(slow.answer().await.is_ok());
    assert_eq!(watches.count(), 1);
}

#[tokio::test]
async fn a_panic_in_an_inner_service_is_a_failure_and_frees_the_watch() {
    let watches = Arc::new(Watches::new(1, Room::new(1024, Hook::new(Arc::new(|_| false)))));
    let panics = service_fn(|_: Box<Request>| async { panic!("on purpose") });
    let outcome = layer(&watches).layer(panics).oneshot(request(ZONE, Principal::Node).into()).await;
    assert!(matches!(outcome, Err(Error::Upstream(_))));
    assert_eq!(watches.count(), 0);
}

/// A connection of the pod with this number.
fn peer(pod: u8) -> SocketAddr {
    ([10, 0, 0, pod], 40000).into()
}

#[tokio::test(start_paused = true)]
async fn a_head_and_a_get_do_not_share_a_watch() {
    let (server, watches) = start(8);
    let _get = ask(&server, &watches, ZONE);
    settle().await;
    let for_head = Arc::clone(&server);
    let inner = service_fn(move |_: Box<Request>| {
        for_head.asked.fetch_add(1, Relaxed);
        std::future::pending::<Result<Response<Body>, Error>>()
    });
    let get = request(ZONE, Principal::Node);
    let head = Request { peer: Some(peer(2)), method: protocol::metadata::Method::Head, ..get };
    let _head = tokio::spawn(layer(&watches).layer(inner).oneshot(head.into()));
    settle().await;
    assert_eq!(server.asked.load(Relaxed), 2);
}
