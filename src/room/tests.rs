use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

use super::readers::READ_TIMEOUT;
use super::*;
use crate::error::Error;
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
    Room::new(LIMIT, CutUnread::never())
}

/// Long enough for whatever is not told to wait.
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
async fn room_is_given_back_with_the_last_reference() {
    let room = quiet();
    let bytes = taken(take(&room, 1, made(LIMIT))).await.hold(vec![b'x'; LIMIT]);
    let part = bytes.slice(1..);
    drop(bytes);
    assert_eq!(room.used(), LIMIT);
    drop(part);
    assert_eq!(room.used(), 0);
    assert!(room.lock().readers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_upstream_may_take() {
    let room = quiet();
    let _all = taken(take(&room, 1, made(LIMIT))).await;
    let began = Instant::now();
    assert_eq!(take(&room, 2, made(1)).await.expect("no panic").err(), Some(Overload::LargeAnswers));
    assert_eq!(began.elapsed(), DEADLINE);
    assert!(room.lock().waiting.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_client_that_holds_least_goes_first_and_nobody_overtakes_it() {
    let room = quiet();
    let most = taken(take(&room, 1, made(60_000))).await;
    let some = taken(take(&room, 2, made(20_000))).await;
    let greedy = take(&room, 1, made(30_000));
    settle().await;
    let modest = take(&room, 3, made(50_000));
    settle().await;
    assert!(room.account(Some(peer(1))).try_take(made(1)).is_none(), "what need not wait does not overtake");
    drop(some);
    settle().await;
    assert!(!greedy.is_finished(), "though there is enough for it");
    drop(most);
    let _modest = taken(modest).await;
    let _greedy = taken(greedy).await;
}

/// A client that asks for much at once holds nothing whenever its last answer was given up.
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
async fn one_that_gives_up_lets_the_next_go() {
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

/// Each holds what the server sent and waits for room for what is made from it.
#[tokio::test(start_paused = true)]
async fn what_the_server_sent_never_takes_the_room_of_what_is_made_from_it() {
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
async fn whoever_holds_most_and_does_not_read_is_cut_for_one_that_waits() {
    let unread: Arc<Mutex<Vec<(SocketAddr, Bytes)>>> = Arc::default();
    let cut: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let room = Room::new(LIMIT, {
        let (unread, cut) = (Arc::clone(&unread), Arc::clone(&cut));
        CutUnread::by(move |peers| {
            let gone: Vec<_> =
                unread.lock().expect("no panic").extract_if(.., |(peer, _)| peers.contains(peer)).collect();
            cut.lock().expect("no panic").extend(gone.iter().map(|(peer, _)| *peer));
            !gone.is_empty()
        })
    });
    for (pod, bytes) in [(1, 30_000), (1, 30_000), (2, 40_000)] {
        let charge = taken(take(&room, pod, made(bytes))).await;
        unread.lock().expect("no panic").push((peer(pod), charge.hold(vec![b'x'; bytes])));
    }
    let began = Instant::now();
    let newcomer = taken(take(&room, 3, made(60_000))).await;
    assert!((READ_TIMEOUT..READ_TIMEOUT + 2 * POLL_INTERVAL).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(*cut.lock().expect("no panic"), [peer(1), peer(1)], "the other may go on");
    let _second = taken(take(&room, 4, made(40_000))).await;
    assert_eq!(cut.lock().expect("no panic").last(), Some(&peer(2)), "the largest reads, or is not there to read");
    drop(newcomer);
}

#[tokio::test(start_paused = true)]
async fn of_all_that_wait_one_looks() {
    let looks = Arc::new(AtomicUsize::new(0));
    let room = Room::new(LIMIT, {
        let looks = Arc::clone(&looks);
        CutUnread::by(move |_| {
            looks.fetch_add(1, Relaxed);
            false
        })
    });
    let _all = taken(take(&room, 1, made(LIMIT))).await.hold(vec![b'x'; LIMIT]);
    advance(READ_TIMEOUT).await;
    let _crowd: Vec<_> = (2..200).map(|pod| take(&room, pod, made(1))).collect();
    settle().await;
    looks.store(0, Relaxed);
    advance(10 * POLL_INTERVAL).await;
    settle().await;
    assert!(looks.load(Relaxed) <= 2 * 11, "{looks:?}");
    assert!(looks.load(Relaxed) >= 2, "{looks:?}");
}

#[tokio::test(start_paused = true)]
async fn too_large_an_answer_is_not_read_and_a_small_one_needs_no_room() {
    let room = quiet();
    let account = room.account(Some(peer(1)));
    let body = |bytes: usize| Body::Whole(vec![b'x'; bytes].into());
    let read = |bytes| account.read(body(bytes), SMALL, |bytes| bytes);
    assert!(matches!(read(LIMIT / 2 + 1).await, Err(Error::TooLarge(50_000))));
    let whole = read(LIMIT / 2).await.expect("it is read");
    assert_eq!((whole.bytes.len(), room.used()), (LIMIT / 2, LIMIT / 2), "it was here already");
    let small = read(SMALL).await.expect("it is read");
    assert!(small.charge.is_none());
}
