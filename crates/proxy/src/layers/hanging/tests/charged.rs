//! Who is charged with the memory of an answer.

use super::*;

/// A response of 3,000 bytes.
fn large() -> Response<Body> {
    Response::new(Body::Whole(vec![b'x'; 3000].into()))
}

/// Two pods that watch the same value, the first of which began. With a permit, it is answered with 3,000 bytes, of a room
/// of 8,000.
async fn two_watch_a_large_value() -> (Arc<Room>, Arc<Semaphore>, [Watching; 2]) {
    let room = Room::new(8000, Hook::new(Arc::new(|_| false)));
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
        let request = Request { peer: Some(peer(pod)), ..request(ZONE, Principal::Node) };
        tokio::spawn(layer(&watches).layer(service).oneshot(request.into()))
    });
    settle().await;
    (room, change, both)
}

#[tokio::test]
async fn an_answer_is_charged_until_the_last_watcher_has_read_it() {
    let (room, change, both) = two_watch_a_large_value().await;
    change.add_permits(1);
    let mut answers = Vec::new();
    for watcher in both {
        answers.push(watcher.await.expect("no panic").expect("an answer"));
    }
    assert_eq!(room.used(), 3000, "charged once for both watchers");
    answers.pop();
    assert_eq!(room.used(), 3000, "one watcher has not read it");
    answers.pop();
    assert_eq!(room.used(), 0);
}

/// The client that holds least gets room first, so this shows who is charged.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_left_is_not_charged_for_what_others_read() {
    for leaves in [true, false] {
        let (room, change, [began, joined]) = two_watch_a_large_value().await;
        if leaves {
            began.abort();
            settle().await;
        }
        change.add_permits(1);
        let _answer = joined.await.expect("no panic").expect("an answer");
        let rest = Amount { sent: 0, made: 5000 };
        let filled = room.account(None).try_take(rest).expect("it fits");
        let waiting = [2, 1].map(|pod| {
            let account = room.account(Some(peer(pod)));
            tokio::spawn(async move { account.take(rest).await })
        });
        settle().await;
        drop(filled);
        settle().await;
        assert_eq!(waiting.each_ref().map(JoinHandle::is_finished), [!leaves, leaves], "the first left: {leaves}");
    }
}

/// Otherwise all would wait behind others because of a pod that began the watch, and leaves much unread.
#[tokio::test(start_paused = true)]
async fn the_watcher_that_holds_least_is_charged() {
    for hoards in [1, 2] {
        let (room, change, [began, joined]) = two_watch_a_large_value().await;
        let hold =
            |pod: Option<u8>, made| room.account(pod.map(peer)).try_take(Amount { sent: 0, made }).expect("it fits");
        let (_hoard, _little, filled) = (hold(Some(hoards), 2000), hold(Some(3), 1000), hold(None, 5000));
        let waits = room.account(Some(peer(3)));
        let waits = tokio::spawn(async move { waits.take(Amount { sent: 0, made: 3000 }).await });
        change.add_permits(1);
        settle().await;
        drop(filled);
        settle().await;
        assert!(began.is_finished() && joined.is_finished(), "pod {hoards} hoards");
        assert!(!waits.is_finished(), "room for one of both");
    }
}
