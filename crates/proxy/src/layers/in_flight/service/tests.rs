use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http::HeaderValue;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::reply::Body;
use protocol::metadata::{Endpoint, Principal, Query};

/// An upstream that answers when the test adds a permit, and counts requests.
#[derive(Debug)]
struct Upstream {
    answers: Semaphore,
    asked: AtomicUsize,
}

type Predicate = fn(&Request) -> bool;

struct Stage {
    upstream: Arc<Upstream>,
    limit: Arc<Limit<Predicate, Predicate>>,
}

fn stage(limit: usize, make_room: impl Fn(Whose) -> bool + Send + Sync + 'static) -> Stage {
    let upstream = Arc::new(Upstream { answers: Semaphore::new(0), asked: AtomicUsize::new(0) });
    let never: Predicate = |_| false;
    let (seats, make_room) = (Seats::new(limit), MakeRoom::new(make_room));
    Stage { upstream, limit: Arc::new(Limit { seats, needs_none: never, hangs: never, make_room }) }
}

/// A stage with one seat, and the number of searches for room so far. They find some, or not.
fn counting(finds: bool) -> (Stage, Arc<AtomicUsize>) {
    let searches = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&searches);
    let search = move |_| {
        counted.fetch_add(1, Relaxed);
        finds
    };
    (stage(1, search), searches)
}

impl Stage {
    /// The request of the pod with this number.
    fn request(pod: u8) -> Box<Request> {
        let own = Request::own(Endpoint::Leaf, "/computeMetadata/v1/instance/id", Query::default(), Principal::Node);
        Request { peer: Some(([10, 0, 0, pod], 40000).into()), ..own }.into()
    }

    /// Sends a request from the pod with this number.
    fn ask(&self, pod: u8) -> JoinHandle<SeatedResponse<Body>> {
        let upstream = Arc::clone(&self.upstream);
        let inner = service_fn(move |_: Box<Request>| {
            let upstream = Arc::clone(&upstream);
            async move {
                upstream.asked.fetch_add(1, Relaxed);
                upstream.answers.acquire().await.expect("open").forget();
                Ok(Response::new(Body::Whole(vec![b'x'; 2000].into())))
            }
        });
        tokio::spawn(layer(&self.limit).layer(inner).oneshot(Self::request(pod)))
    }

    fn asked(&self) -> usize {
        self.upstream.asked.load(Relaxed)
    }
}

/// Runs all tasks that are ready.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

async fn is_refused(request: JoinHandle<SeatedResponse<Body>>) -> bool {
    matches!(request.await.expect("no panic"), Err(Error::Overloaded(Overload::InFlight)))
}

#[tokio::test(start_paused = true)]
async fn a_client_with_its_share_is_refused_immediately() {
    let stage = stage(2, |_| false);
    let _both = [stage.ask(1), stage.ask(1)];
    settle().await;
    let began = Instant::now();
    assert!(is_refused(stage.ask(1)).await);
    assert_eq!((began.elapsed(), stage.asked()), (Duration::ZERO, 2));
}

/// Another client may stand still for a moment only, as under a CPU limit of its own.
#[tokio::test(start_paused = true)]
async fn a_client_with_its_share_takes_no_seat_of_a_client_that_does_not_read() {
    let stage = stage(2, |whose| whose != Whose::Of(Some([10, 0, 0, 1].into())));
    let _both = [stage.ask(1), stage.ask(1)];
    settle().await;
    assert!(is_refused(stage.ask(1)).await);
    let waits = stage.ask(2);
    settle().await;
    assert!(!waits.is_finished());
}

#[tokio::test(start_paused = true)]
async fn another_client_gets_the_next_seat() {
    let stage = stage(2, |_| false);
    let both = [stage.ask(1), stage.ask(1)];
    settle().await;
    let other = stage.ask(2);
    settle().await;
    assert_eq!(stage.asked(), 2, "no request in flight gives way");
    stage.upstream.answers.add_permits(3);
    for answered in both.into_iter().chain([other]) {
        // The response holds the seat, and is dropped here.
        assert!(answered.await.expect("no panic").is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_limited() {
    let stage = stage(1, |_| false);
    let _only = stage.ask(1);
    settle().await;
    let began = Instant::now();
    assert!(is_refused(stage.ask(2)).await);
    assert_eq!(began.elapsed(), MAX_WAIT);
    assert_eq!(stage.limit.seats.taken(), 1);
}

/// A search visits all connections, so a hundred waiting requests must not search a hundred times.
#[tokio::test(start_paused = true)]
async fn waiting_requests_share_one_search() {
    let (stage, searches) = counting(false);
    let _only = stage.ask(1);
    settle().await;
    let _crowd: Vec<_> = (2..102).map(|pod| stage.ask(pod)).collect();
    settle().await;
    let before = searches.load(Relaxed);
    sleep(SEARCH_INTERVAL * 10).await;
    assert_eq!(searches.load(Relaxed) - before, 10);
}

/// The client stops reading only after another request has begun to wait.
#[tokio::test(start_paused = true)]
async fn the_search_for_unread_responses_is_repeated() {
    let searches = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&searches);
    let stage = stage(1, move |_| counted.fetch_add(1, Relaxed) > 0);
    let only = stage.ask(1);
    settle().await;
    let other = stage.ask(2);
    sleep(SEARCH_INTERVAL + Duration::from_millis(1)).await;
    assert_eq!(searches.load(Relaxed), 2);
    only.abort();
    settle().await;
    assert_eq!(stage.asked(), 2);
    stage.upstream.answers.add_permits(1);
    assert!(other.await.expect("no panic").is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_waits_counts_for_the_share_of_its_client() {
    let stage = stage(4, |_| false);
    let _all = [stage.ask(1), stage.ask(1), stage.ask(1), stage.ask(1)];
    settle().await;
    let _wait = [stage.ask(2), stage.ask(2)];
    settle().await;
    let began = Instant::now();
    assert!(is_refused(stage.ask(2)).await);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn unread_answers_are_looked_for_in_a_second_overload_too() {
    let (stage, searches) = counting(true);
    for _ in 0..2 {
        let before = searches.load(Relaxed);
        let only = stage.ask(1);
        settle().await;
        let other = stage.ask(2);
        sleep(SEARCH_INTERVAL * 3).await;
        let new = searches.load(Relaxed) - before;
        assert!(new >= 3, "{new}");
        only.abort();
        settle().await;
        other.abort();
        sleep(SEARCH_INTERVAL * 2).await;
    }
}

/// The task that searches ends in the moment in which a request is about to wait, as on another thread.
#[tokio::test(start_paused = true)]
async fn a_request_that_begins_to_wait_while_the_search_ends_is_searched_for() {
    let (stage, searches) = counting(false);
    let _only = stage.ask(1);
    settle().await;
    let earlier = stage.ask(2);
    settle().await;
    earlier.abort();
    let inner = service_fn(|_: Box<Request>| std::future::pending::<Result<Response<Body>, Error>>());
    let waits = layer(&stage.limit).layer(inner).call(Stage::request(3));
    sleep(SEARCH_INTERVAL * 2).await;
    let before = searches.load(Relaxed);
    let _waits = tokio::spawn(waits);
    sleep(SEARCH_INTERVAL * 2).await;
    assert!(searches.load(Relaxed) > before);
}

#[test]
fn a_search_ends_when_nobody_waits_and_the_next_request_begins_another() {
    let seats = Seats::new(0);
    let first = Arc::clone(&seats).next_free(None);
    assert!(seats.begin_search());
    let second = Arc::clone(&seats).next_free(None);
    assert!(!seats.begin_search(), "one searches for all");
    drop((first, second));
    assert_eq!(seats.left_to_search(), 0);
    let _third = Arc::clone(&seats).next_free(None);
    assert!(seats.begin_search());
    assert_eq!(seats.left_to_search(), 1);
}

/// The policy that dropped `wait_for_change` is replaced by one that does not.
#[tokio::test(start_paused = true)]
async fn a_request_that_begins_to_hang_while_it_waits_for_a_seat_takes_none() {
    let (seats, may_hang) = (Seats::new(1), Arc::new(AtomicBool::new(false)));
    let hangs = {
        let may_hang = Arc::clone(&may_hang);
        move |_: &Request| may_hang.load(Relaxed)
    };
    let limit = Limit {
        seats: Arc::clone(&seats),
        needs_none: |_: &Request| false,
        hangs,
        make_room: MakeRoom::new(|_| false),
    };
    let (taken, inner) =
        (seats.admit(Some([10, 0, 0, 1].into())), service_fn(|_: Box<Request>| std::future::pending()));
    let path = "/computeMetadata/v1/instance/id";
    let request = Request::own(Endpoint::Leaf, path, Query::default(), Principal::Node);
    let service = layer::<_, _, _>(&Arc::new(limit)).layer(inner);
    let watches = tokio::spawn(async { service.oneshot(request.into()).await.map(|_: Response<SeatedBody<Body>>| ()) });
    settle().await;
    assert_eq!((seats.taken(), seats.waiting()), (1, 1));
    may_hang.store(true, Relaxed);
    drop(taken);
    settle().await;
    assert_eq!((seats.taken(), seats.waiting(), watches.is_finished()), (0, 0, false));
}

#[tokio::test]
async fn a_request_that_waits_for_a_seat_does_not_keep_the_read_buffer() {
    let seats = Seats::new(1);
    let never: Predicate = |_| false;
    let make_room = MakeRoom::new(|_| false);
    let limit = Arc::new(Limit { seats: Arc::clone(&seats), needs_none: never, hangs: never, make_room });
    let inner = service_fn(|_: Box<Request>| std::future::pending::<Result<Response<Body>, Error>>());
    let buffer = Bytes::from("a header's value".repeat(10));
    let path = "/computeMetadata/v1/instance/id";
    let mut request = Request::own(Endpoint::Leaf, path, Query::default(), Principal::Node);
    let value = HeaderValue::from_maybe_shared(buffer.clone()).expect("a value");
    request.headers.insert("x-filler", value);
    let _taken = seats.admit(Some([10, 0, 0, 1].into()));
    let waits = layer(&limit).layer(inner).call(request.into());
    assert!(buffer.is_unique());
    drop(waits);
}
