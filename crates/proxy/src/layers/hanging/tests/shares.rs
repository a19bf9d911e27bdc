//! Which watch gives way to which client.

use super::*;

async fn ended(watcher: Watching) -> Overload {
    match watcher.await.expect("no panic") {
        Err(Error::Overloaded(overload)) => overload,
        other => panic!("not ended: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_all_watches_gives_way_to_others_up_to_their_share() {
    let (server, watches) = start(4);
    let mut hostile: Vec<_> = (0..4).map(|number| ask_from(1, &server, &watches, &another(number))).collect();
    settle().await;
    assert_eq!(
        ended(ask_from(1, &server, &watches, &another(4))).await,
        Overload::Hanging,
        "a pod does not replace its own watches"
    );
    let first = ask_from(2, &server, &watches, &another(5));
    assert_eq!(ended(hostile.remove(0)).await, Overload::HangingGaveWay, "the oldest watch ends");
    let second = ask_from(2, &server, &watches, &another(6));
    assert_eq!(ended(hostile.remove(0)).await, Overload::HangingGaveWay);
    assert_eq!(ended(ask_from(2, &server, &watches, &another(7))).await, Overload::Hanging, "both pods have two");
    settle().await;
    assert_eq!((server.waiting.load(Relaxed), watches.count()), (4, 4));
    server.changes.add_permits(4);
    for watcher in hostile.into_iter().chain([first, second]) {
        assert!(watcher.await.expect("no panic").is_ok());
    }
    assert_eq!(watches.count(), 0);
}

#[tokio::test]
async fn a_watch_that_others_wait_for_does_not_give_way_before_one_that_they_do_not() {
    let (server, watches) = start(2);
    let shared = [1, 3].map(|pod| ask_from(pod, &server, &watches, &another(0)));
    let alone = ask_from(1, &server, &watches, &another(1));
    settle().await;
    let newcomer = ask_from(2, &server, &watches, &another(2));
    assert_eq!(ended(alone).await, Overload::HangingGaveWay, "although it is younger");
    settle().await;
    assert!(!newcomer.is_finished() && shared.iter().all(|watcher| !watcher.is_finished()));
    assert_eq!(server.waiting.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn two_addresses_that_share_all_watches_leave_others_their_share() {
    let (server, watches) = start(4);
    let ask_both = |number| [1, 3].map(|pod| ask_from(pod, &server, &watches, &another(number)));
    let mut hostile = Vec::new();
    for number in 0..4 {
        hostile.push(ask_both(number));
        settle().await;
    }
    let newcomers = [4, 5].map(|number| ask_from(2, &server, &watches, &another(number)));
    for watcher in hostile.drain(..2).flatten() {
        assert_eq!(ended(watcher).await, Overload::HangingGaveWay, "the two oldest");
    }
    assert_eq!(ended(ask_from(1, &server, &watches, &another(0))).await, Overload::Hanging, "it still holds most");
    assert_eq!(ended(ask_from(2, &server, &watches, &another(6))).await, Overload::Hanging, "it has its share");
    let mut left = newcomers.iter().chain(hostile.iter().flatten());
    assert!(left.all(|watcher| !watcher.is_finished()));
    assert_eq!((server.waiting.load(Relaxed), watches.count()), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn as_many_addresses_as_there_are_watches_do_not_keep_them() {
    let (server, watches) = start(3);
    let hostile = [(1, 0), (2, 1), (3, 2)].map(|(pod, number)| ask_from(pod, &server, &watches, &another(number)));
    let shares = ask_from(4, &server, &watches, &another(0));
    settle().await;
    assert_eq!(ended(ask_from(5, &server, &watches, &another(3))).await, Overload::Hanging, "they are young");
    let newcomer = ask_from(5, &server, &watches, &another(3));
    let [of_two, oldest, younger] = hostile;
    settle().await;
    assert!(oldest.is_finished());
    assert_eq!(ended(oldest).await, Overload::HangingGaveWay, "the oldest that one client waits for");
    assert_eq!(ended(ask_from(5, &server, &watches, &another(4))).await, Overload::Hanging, "it has one");
    assert!([newcomer, of_two, shares, younger].iter().all(|watcher| !watcher.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_passes_to_a_remaining_watcher_when_its_holder_leaves() {
    let (server, watches) = start(2);
    let began = ask_from(1, &server, &watches, &another(0));
    let other = ask_from(1, &server, &watches, &another(1));
    settle().await;
    let _joined = ask_from(2, &server, &watches, &another(0));
    settle().await;
    began.abort();
    settle().await;
    // Each pod holds one watch now.
    assert_eq!(ended(ask_from(3, &server, &watches, &another(2))).await, Overload::Hanging);
    assert!(!other.is_finished());
}
