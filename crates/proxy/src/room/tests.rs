use std::future::{pending, ready};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::HeaderMap;
use http_body_util::BodyExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

use super::readers::READ_TIMEOUT;
use super::*;
use crate::error::Error;
use crate::failure::Failure;
use crate::reply::Body;

const LIMIT: usize = 100_000;

fn peer(pod: u8) -> SocketAddr {
    ([10, 0, 0, pod], 40000).into()
}

fn sent(sent: usize) -> Amount {
    Amount { sent, made: 0 }
}

fn made(made: usize) -> Amount {
    Amount { sent: 0, made }
}

fn quiet() -> Arc<Room> {
    Room::new(LIMIT, Hook::new(Arc::new(|_| false)))
}

/// Lets all tasks run that do not wait for anything.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

fn take(room: &Arc<Room>, pod: u8, amount: Amount) -> JoinHandle<Result<Charge, Overload>> {
    let account = room.account(Some(peer(pod)));
    tokio::spawn(async move { account.take(amount).await })
}

async fn taken(taking: JoinHandle<Result<Charge, Overload>>) -> Charge {
    taking.await.expect("no panic").expect("room")
}

#[tokio::test(start_paused = true)]
async fn room_is_released_with_the_last_reference() {
    let room = quiet();
    let bytes = taken(take(&room, 1, made(LIMIT))).await.hold(vec![b'x'; LIMIT]);
    let part = bytes.slice(1..);
    drop(bytes);
    assert_eq!(room.used(), LIMIT);
    drop(part);
    assert_eq!(room.used(), 0);
    assert!(room.state.lock().readers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_limited_by_the_upstream_timeout() {
    let room = quiet();
    let _all = taken(take(&room, 1, made(LIMIT))).await;
    let began = Instant::now();
    assert_eq!(take(&room, 2, made(1)).await.expect("no panic").err(), Some(Overload::LargeAnswers));
    assert_eq!(began.elapsed(), UPSTREAM_TIMEOUT);
    assert!(room.state.lock().waiting.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_client_that_holds_least_goes_first_and_is_not_overtaken() {
    let room = quiet();
    let most = taken(take(&room, 1, made(60_000))).await;
    let some = taken(take(&room, 2, made(20_000))).await;
    let greedy = take(&room, 1, made(30_000));
    settle().await;
    let modest = take(&room, 3, made(50_000));
    settle().await;
    assert!(room.account(Some(peer(1))).try_take(made(1)).is_none(), "`try_take` does not overtake the queue");
    drop(some);
    settle().await;
    assert!(!greedy.is_finished(), "although there is enough room for it");
    drop(most);
    let _modest = taken(modest).await;
    let _greedy = taken(greedy).await;
}

/// A client with many requests holds nothing whenever its last response is released, and so would be first each time.
#[tokio::test(start_paused = true)]
async fn clients_that_hold_the_same_take_turns() {
    let room = quiet();
    let mut held = taken(take(&room, 1, made(LIMIT))).await;
    let mut greedy: Vec<_> = (0..10).map(|_| take(&room, 1, made(LIMIT))).collect();
    settle().await;
    let modest = take(&room, 2, made(LIMIT));
    settle().await;
    for _ in 0..2 {
        drop(held);
        settle().await;
        let Some(served) = greedy.iter().position(JoinHandle::is_finished) else { break };
        held = taken(greedy.swap_remove(served)).await;
    }
    assert!(modest.is_finished() && greedy.len() == 9);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_does_not_block_the_next() {
    let room = quiet();
    let _some = taken(take(&room, 1, made(60_000))).await;
    let large = take(&room, 2, made(50_000));
    settle().await;
    let fits = take(&room, 3, made(40_000));
    settle().await;
    assert!(!fits.is_finished());
    large.abort();
    let _fits = taken(fits).await;
}

/// Redactions that hold room for the original response wait for room for the redacted one.
#[tokio::test(start_paused = true)]
async fn original_responses_leave_room_for_redacted_ones() {
    let room = quiet();
    let account = room.account(Some(peer(1)));
    let mut redactions = Vec::new();
    while let Some(charge) = account.try_take(sent(10_000)) {
        redactions.push(charge);
    }
    assert_eq!(redactions.len(), 5);
    for _read in &redactions {
        assert!(account.take(made(LIMIT / 2)).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn the_largest_holder_that_does_not_read_is_cut_for_a_waiting_request() {
    let unread: Arc<Mutex<Vec<(SocketAddr, Bytes)>>> = Arc::default();
    let cut: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let room = Room::new(LIMIT, {
        let (unread, cut) = (Arc::clone(&unread), Arc::clone(&cut));
        CutUnread::new(Arc::new(move |peers| {
            let gone: Vec<_> = unread.lock().extract_if(.., |(peer, _)| peers.contains(peer)).collect();
            cut.lock().extend(gone.iter().map(|(peer, _)| *peer));
            !gone.is_empty()
        }))
    });
    for (pod, bytes) in [(1, 30_000), (1, 30_000), (2, 40_000)] {
        let charge = taken(take(&room, pod, made(bytes))).await;
        unread.lock().push((peer(pod), charge.hold(vec![b'x'; bytes])));
    }
    let began = Instant::now();
    let newcomer = taken(take(&room, 3, made(60_000))).await;
    assert!((READ_TIMEOUT..READ_TIMEOUT + 2 * POLL_INTERVAL).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(*cut.lock(), [peer(1), peer(1)], "the other client is not cut");
    let _second = taken(take(&room, 4, made(40_000))).await;
    assert_eq!(cut.lock().last(), Some(&peer(2)), "the largest holder has no unread response");
    drop(newcomer);
}

#[tokio::test(start_paused = true)]
async fn only_the_first_in_the_queue_searches_for_unread_responses() {
    let searches = Arc::new(AtomicUsize::new(0));
    let room = Room::new(LIMIT, {
        let searches = Arc::clone(&searches);
        CutUnread::new(Arc::new(move |_| {
            searches.fetch_add(1, Relaxed);
            false
        }))
    });
    let _all = taken(take(&room, 1, made(LIMIT))).await.hold(vec![b'x'; LIMIT]);
    advance(READ_TIMEOUT).await;
    let _crowd: Vec<_> = (2..200).map(|pod| take(&room, pod, made(1))).collect();
    settle().await;
    searches.store(0, Relaxed);
    advance(10 * POLL_INTERVAL).await;
    settle().await;
    assert!(searches.load(Relaxed) <= 2 * 11, "{searches:?}");
    assert!(searches.load(Relaxed) >= 2, "{searches:?}");
}

#[tokio::test(start_paused = true)]
async fn too_large_a_response_is_not_read_and_a_small_one_needs_no_room() {
    let room = quiet();
    let account = room.account(Some(peer(1)));
    let body = |bytes: usize| Body::Whole(vec![b'x'; bytes].into());
    let read = |bytes| account.read(body(bytes), SMALL_BYTES, |bytes| bytes);
    assert!(matches!(read(LIMIT / 2 + 1).await, Err(Error::TooLarge(50_000))));
    let whole = read(LIMIT / 2).await.expect("a whole body");
    assert_eq!((whole.bytes.len(), room.used()), (LIMIT / 2, LIMIT / 2), "only the made response is charged");
    let small = read(SMALL_BYTES).await.expect("a whole body");
    assert!(small.charge.is_none());
}

/// A body whose length is not announced, and which ends with these trailers.
fn unannounced(bytes: usize, end: impl Future<Output = Option<Result<HeaderMap, Failure>>> + Send + 'static) -> Body {
    Body::Streamed(Box::pin(Body::Whole(vec![b'x'; bytes].into()).map_frame(|frame| frame).with_trailers(end)))
}

#[tokio::test(start_paused = true)]
async fn a_body_of_unknown_length_holds_only_what_it_turns_out_to_need() {
    let room = quiet();
    let whole =
        room.account(Some(peer(1))).read(unannounced(20_000, ready(None)), SMALL_BYTES, |bytes| bytes / 2).await;
    let whole = whole.expect("a whole body");
    assert_eq!((whole.bytes.len(), room.used()), (20_000, 30_000));
    drop(whole);
    assert_eq!(room.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_end_in_time_is_given_up_and_its_room_released() {
    let (room, began) = (quiet(), Instant::now());
    let account = room.account(Some(peer(1)));
    let read = account.read(unannounced(1, pending()), SMALL_BYTES, |bytes| bytes);
    let error = timeout(2 * UPSTREAM_TIMEOUT, read).await.expect("in time").expect_err("it is not whole");
    assert!(matches!(error, Error::Upstream(failure) if matches!(*failure, Failure::Slow(UPSTREAM_TIMEOUT))));
    assert_eq!((began.elapsed(), room.used()), (UPSTREAM_TIMEOUT, 0));
}
