use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::error::Overload;
use crate::metadata::{Endpoint, Principal, Query};
use crate::room::{CutUnread, Room};

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
    (Arc::new(server), Arc::new(Watches::new(limit, Room::new(1024 * 1024, CutUnread::never()))))
}

type Asked = JoinHandle<Result<Response<Body>, Error>>;

fn ask(server: &Arc<Server>, watches: &Arc<Watches>, target: &str) -> Asked {
    ask_from(1, server, watches, target)
}

/// From the pod with this number.
fn ask_from(pod: u8, server: &Arc<Server>, watches: &Arc<Watches>, target: &str) -> Asked {
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
    let peer = Some(([10, 0, 0, pod], 40000).into());
    let request = Request { peer, ..Request::own(Endpoint::Leaf, path, query, Principal::Node) };
    tokio::spawn(layer(watches).layer(inner).oneshot(request.into()))
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

/// A watch of its own, by a value that nobody has.
fn another(number: usize) -> String {
    format!("{ZONE}&last_etag={number:016x}")
}

async fn ended(watcher: Asked) -> Overload {
    match watcher.await.expect("no panic") {
        Err(Error::Overloaded(overload)) => overload,
        other => panic!("not ended: {other:?}"),
    }
}

#[tokio::test]
async fn one_pod_that_has_all_watches_gives_way_to_others_up_to_their_share() {
    let (server, watches) = start(4);
    let mut hostile: Vec<_> = (0..4).map(|number| ask_from(1, &server, &watches, &another(number))).collect();
    settle().await;
    assert_eq!(
        ended(ask_from(1, &server, &watches, &another(4))).await,
        Overload::Hanging,
        "it replaces none of its own"
    );
    let first = ask_from(2, &server, &watches, &another(5));
    assert_eq!(ended(hostile.remove(0)).await, Overload::HangingGaveWay, "the oldest");
    let second = ask_from(2, &server, &watches, &another(6));
    assert_eq!(ended(hostile.remove(0)).await, Overload::HangingGaveWay);
    assert_eq!(ended(ask_from(2, &server, &watches, &another(7))).await, Overload::Hanging, "both have two");
    settle().await;
    assert_eq!((server.waiting.load(Relaxed), watches.count()), (4, 4));
    server.changes.add_permits(4);
    for watcher in hostile.into_iter().chain([first, second]) {
        assert!(watcher.await.expect("no panic").is_ok());
    }
    assert_eq!(watches.count(), 0);
}

#[tokio::test]
async fn a_watch_that_others_wait_for_does_not_give_way() {
    let (server, watches) = start(2);
    let shared = [1, 3].map(|pod| ask_from(pod, &server, &watches, &another(0)));
    let alone = ask_from(1, &server, &watches, &another(1));
    settle().await;
    let newcomer = ask_from(2, &server, &watches, &another(2));
    assert_eq!(ended(alone).await, Overload::HangingGaveWay, "though it is the younger one");
    settle().await;
    assert!(!newcomer.is_finished() && shared.iter().all(|watcher| !watcher.is_finished()));
    assert_eq!(server.waiting.load(Relaxed), 2);
}

#[tokio::test]
async fn a_watch_goes_over_to_those_who_wait_when_its_holder_leaves() {
    let (server, watches) = start(2);
    let began = ask_from(1, &server, &watches, &another(0));
    let other = ask_from(1, &server, &watches, &another(1));
    settle().await;
    let _joined = ask_from(2, &server, &watches, &another(0));
    settle().await;
    began.abort();
    settle().await;
    // Each has one now.
    assert_eq!(ended(ask_from(3, &server, &watches, &another(2))).await, Overload::Hanging);
    assert!(!other.is_finished());
}

#[tokio::test]
async fn who_asks_again_while_others_still_fetch_the_answer_begins_another_watch() {
    let (server, watches) = start(1);
    let first = ask(&server, &watches, ZONE);
    settle().await;
    // A watcher that does not come to fetch its answer.
    let key = watches.lock().watches.keys().next().cloned().expect("a watch");
    let account = watches.room.account(None);
    let slow = {
        let Key { method, principal, .. } = *key;
        let key = Key { method, principal, host: key.host.clone(), target: key.target.clone() };
        watches.join(key, &account, std::future::pending).expect("it joins")
    };
    server.changes.add_permits(1);
    assert!(first.await.expect("no panic").is_ok());
    let again = ask(&server, &watches, ZONE);
    settle().await;
    assert!(!again.is_finished(), "it waits for the next change");
    assert_eq!((server.asked.load(Relaxed), watches.count()), (2, 1));
    assert!(slow.answer().await.is_ok());
    assert_eq!(watches.count(), 1);
}

#[tokio::test]
async fn a_panic_below_is_a_failure_and_frees_the_place() {
    let watches = Arc::new(Watches::new(1, Room::new(1024, CutUnread::never())));
    let request = Request::own(
        Endpoint::Leaf,
        "/computeMetadata/v1/instance/zone",
        Query::parse(Some("wait_for_change=true")).expect("a query"),
        Principal::Node,
    );
    let panics = service_fn(|_: Box<Request>| async { panic!("on purpose") });
    let outcome = layer(&watches).layer(panics).oneshot(request.into()).await;
    assert!(matches!(outcome, Err(Error::Upstream(_))));
    assert_eq!(watches.count(), 0);
}

/// Of a tree of 3,000 bytes.
fn large() -> Response<Body> {
    Response::new(Body::Whole(vec![b'x'; 3000].into()))
}

#[tokio::test]
async fn an_answer_has_room_until_the_last_watcher_has_read_it() {
    let room = Room::new(8000, CutUnread::never());
    let watches = Arc::new(Watches::new(1, Arc::clone(&room)));
    let change = Arc::new(Semaphore::new(0));
    let both = [1, 2].map(|pod| {
        let change = Arc::clone(&change);
        let service = service_fn(move |_: Box<Request>| {
            let change = Arc::clone(&change);
            async move {
                change.acquire().await.expect("open").forget();
                Ok(large())
            }
        });
        let query = Query::parse(Some("wait_for_change=true")).expect("a query");
        let own = Request::own(Endpoint::Leaf, "/computeMetadata/v1/instance/zone", query, Principal::Node);
        let peer = Some(([10, 0, 0, pod], 40000).into());
        tokio::spawn(layer(&watches).layer(service).oneshot(Box::new(Request { peer, ..own })))
    });
    settle().await;
    change.add_permits(1);
    let mut answers = Vec::new();
    for watcher in both {
        answers.push(watcher.await.expect("no panic").expect("an answer"));
    }
    assert_eq!(room.used(), 3000, "once for both");
    answers.pop();
    assert_eq!(room.used(), 3000, "one does not read");
    answers.pop();
    assert_eq!(room.used(), 0);
}
