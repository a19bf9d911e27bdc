mod memory;
mod patience;

use std::future::pending;

use tokio::task::yield_now;

use super::open::UNREAD_DELAY;
use super::turned_away::AFTER_GIVING_WAY;
use super::*;
use crate::server::activity::Answering;
use crate::server::arrival::Arrival;
use crate::server::turns::Taker;

/// A connection with its place and a task.
struct Guest {
    activity: Arc<Activity>,
    place: Place,
    task: tokio::task::JoinHandle<()>,
}

fn pod(number: u8) -> SocketAddr {
    ([10, 0, 0, number], 40000).into()
}

fn arrive(connections: &Arc<Connections>, pod_number: u8) -> Option<Guest> {
    let activity = Arc::new(Activity::new());
    let Ok(place) = connections.admit(Arrival::now(pod(pod_number)), &activity, WaitFor::Nothing) else {
        return None;
    };
    let task = tokio::spawn(pending());
    connections.started(place.number, task.abort_handle());
    Some(Guest { activity, place, task })
}

fn admit(connections: &Arc<Connections>, pod_number: u8, wait_for: WaitFor) -> Result<Place, NoRoom> {
    connections.admit(Arrival::now(pod(pod_number)), &Arc::new(Activity::new()), wait_for)
}

async fn was_aborted(guest: &Guest) -> bool {
    tokio::task::yield_now().await;
    guest.task.is_finished()
}

fn room_for(limit: usize) -> Arc<Connections> {
    Connections::new(limit, usize::MAX, Arc::default(), Arc::default(), &Registry::default())
}

fn room_for_bytes(bytes: usize) -> Arc<Connections> {
    Connections::new(1000, bytes, Arc::default(), Arc::default(), &Registry::default())
}

#[tokio::test(start_paused = true)]
async fn the_connection_without_progress_for_longest_is_closed() {
    let connections = room_for(3);
    let silent = arrive(&connections, 1).expect("room");
    sleep(Duration::from_secs(1)).await;
    let idle = arrive(&connections, 1).expect("room");
    let trickling = arrive(&connections, 1).expect("room");
    sleep(Duration::from_secs(1)).await;
    for sends in [&silent, &trickling] {
        sends.activity.tick();
        sends.activity.received(0, true, false);
    }
    let newcomer = arrive(&connections, 1).expect("one gives way");
    assert!(was_aborted(&idle).await, "the only one without progress since");
    assert!(!was_aborted(&silent).await && !was_aborted(&trickling).await && !was_aborted(&newcomer).await);
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_cut_its_own_requests_or_those_of_an_equal_client() {
    let connections = room_for(2);
    let one = arrive(&connections, 1).expect("room");
    let other = arrive(&connections, 2).expect("room");
    let (_answer, _answer_too) = (one.activity.answering(), other.activity.answering());
    for pod_number in [1, 2, 3] {
        assert!(arrive(&connections, pod_number).is_none(), "all are in flight");
    }
    other.activity.blocked();
    assert!(arrive(&connections, 3).is_none(), "it may read in a moment");
    sleep(NEWCOMER_PROTECTION).await;
    assert!(arrive(&connections, 3).is_some());
    assert!(was_aborted(&other).await && !was_aborted(&one).await);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_request_of_the_largest_client_is_cut_for_another() {
    let connections = room_for(3);
    let (mut crowd, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let guest = arrive(&connections, 1).expect("room");
        guest.activity.tick();
        guest.activity.received(1, false, false);
        answers.push(guest.activity.answering());
        crowd.push(guest);
        sleep(Duration::from_secs(1)).await;
    }
    assert!(arrive(&connections, 1).is_none(), "all of its own are in flight");
    let _other = arrive(&connections, 2).expect("the client with most gives way");
    assert!(was_aborted(&crowd[0]).await && !was_aborted(&crowd[1]).await && !was_aborted(&crowd[2]).await);
    assert!(arrive(&connections, 1).is_none(), "it does not get the place back");
}

/// Requests in flight until they have all the memory that they get.
fn fill_memory(connections: &Arc<Connections>, pod_number: impl Fn(usize) -> u8) -> Vec<(Guest, Answering, Serving)> {
    let mut crowd = Vec::new();
    while let Some(guest) = arrive(connections, pod_number(crowd.len())) {
        let Some(serving) = guest.place.serve(Reclaim::No) else { break };
        let answering = guest.activity.answering();
        crowd.push((guest, answering, serving));
    }
    crowd
}

async fn aborted(crowd: &[(Guest, Answering, Serving)]) -> usize {
    let mut aborted = 0;
    for (guest, ..) in crowd {
        aborted += usize::from(was_aborted(guest).await);
    }
    aborted
}

#[tokio::test(start_paused = true)]
async fn others_find_room_after_a_flood_without_a_cut() {
    let connections = room_for_bytes(4 * 1024 * 1024);
    let _first = arrive(&connections, 2).expect("room");
    let crowd = fill_memory(&connections, |_| 1);
    for pod_number in 3..7 {
        let other = arrive(&connections, pod_number).expect("room");
        assert!(other.place.serve(Reclaim::No).is_some());
    }
    assert_eq!(aborted(&crowd).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_takes_a_single_connection_of_the_largest_client() {
    let connections = room_for_bytes(4 * 1024 * 1024);
    let crowd = fill_memory(&connections, |_| 1);
    // The part that the largest client leaves to others is in use, too.
    let mut others = Vec::new();
    for pod_number in 2.. {
        others.push(arrive(&connections, pod_number).expect("room"));
        if aborted(&crowd).await > 0 {
            break;
        }
    }
    assert_eq!(aborted(&crowd).await, 1);
}

/// Clients with a request in flight each, more than there is memory for.
async fn crowd_of_equals(connections: &Arc<Connections>) -> Vec<(Guest, Answering, Serving)> {
    let crowd = fill_memory(connections, |number| u8::try_from(number + 1).expect("few"));
    sleep(NEWCOMER_PROTECTION).await;
    crowd
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gave_way_does_not_take_the_place_of_another_at_once() {
    let connections = room_for_bytes(4 * 1024 * 1024);
    let crowd = crowd_of_equals(&connections).await;
    // The part that newcomers leave to requests is in use, too.
    let mut others = Vec::new();
    while aborted(&crowd).await == 0 {
        let guest = arrive(&connections, 200 + u8::try_from(others.len()).expect("few")).expect("the oldest gives way");
        let serving = guest.place.serve(Reclaim::No).expect("it needs no more than the other had");
        others.push((guest, serving));
    }
    assert!(was_aborted(&crowd[0].0).await);
    assert!(arrive(&connections, 1).is_none(), "it gave way a moment ago");
    assert_eq!(aborted(&crowd).await, 1);
    sleep(AFTER_GIVING_WAY).await;
    assert!(arrive(&connections, 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_request_in_flight_takes_nothing_from_its_equals() {
    let connections = room_for_bytes(4 * 1024 * 1024);
    let crowd = crowd_of_equals(&connections).await;
    while arrive(&connections, 1).is_some() {}
    assert_eq!(aborted(&crowd).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_whose_request_was_not_read_yet_does_not_give_way_to_an_equal() {
    let connections = room_for(2);
    let crowd = [1, 2].map(|pod_number| arrive(&connections, pod_number).expect("room"));
    crowd[0].activity.wait_for_turn(true);
    sleep(NEWCOMER_PROTECTION).await;
    let _answering = crowd[1].activity.answering();
    sleep(NEWCOMER_PROTECTION).await;
    assert!(arrive(&connections, 3).is_some(), "the request in flight gives way");
    assert!(!was_aborted(&crowd[0]).await && was_aborted(&crowd[1]).await);
}

/// A client could keep its tasks waiting, and with them all newcomers of its door, and the end of the process.
#[tokio::test(start_paused = true)]
async fn a_newcomer_waits_for_turns_of_its_own_client_as_long_as_patience_lasts() {
    let connections = room_for(1);
    let guest = arrive(&connections, 1).expect("room");
    guest.activity.wait_for_turn(true);
    let _answering = guest.activity.answering();
    for (wait_for, expected) in
        [(WaitFor::Silence, NoRoom::Later), (WaitFor::Reading, NoRoom::Later), (WaitFor::Nothing, NoRoom::Refused)]
    {
        assert_eq!(admit(&connections, 1, wait_for).map(drop), Err(expected), "{wait_for:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_connections_of_these_peers_are_cut_for_not_reading() {
    let connections = room_for(3);
    let guests = [1, 2, 3].map(|pod_number| arrive(&connections, pod_number).expect("room"));
    for guest in &guests[..2] {
        guest.activity.blocked();
    }
    sleep(UNREAD_DELAY).await;
    connections.meanwhile(yield_now()).await;
    assert!(!connections.cut_unread_of(&[pod(3)]), "this one is reading");
    assert!(connections.cut_unread_of(&[pod(2), pod(3)]));
    assert!(!was_aborted(&guests[0]).await && was_aborted(&guests[1]).await && !was_aborted(&guests[2]).await);
}

/// As under a flood, where newcomers wait for places, and where the end of a client's last connection is not read yet.
#[tokio::test(start_paused = true)]
async fn a_newcomer_that_has_waited_is_not_taken_for_a_silent_connection() {
    let connections = room_for(3);
    let ending = arrive(&connections, 1).expect("room");
    ending.activity.wait_for_turn(true);
    let _other = arrive(&connections, 2).expect("room");
    let activity = Arc::new(Activity::new());
    sleep(Duration::from_millis(300)).await;
    let place = connections.admit(Arrival::now(pod(1)), &activity, WaitFor::Nothing).expect("room");
    let serving = connections.turns.share(Taker::Client(pod(1).ip()), Some(Arc::clone(&activity)), pending::<()>());
    let task = tokio::spawn(serving);
    connections.started(place.number, task.abort_handle());
    assert!(activity.moved_at().elapsed().is_zero(), "it had no place before");
    let _next = arrive(&connections, 3).expect("the largest client gives way");
    assert!(was_aborted(&ending).await && !task.is_finished());
}

/// As under a flood: what is not its turn cannot show that its client reads.
#[tokio::test(start_paused = true)]
async fn a_client_whose_turn_is_late_does_not_count_as_one_that_does_not_read() {
    let connections = room_for(1);
    let guest = arrive(&connections, 1).expect("room");
    guest.activity.blocked();
    guest.activity.wait_for_turn(true);
    sleep(10 * UNREAD_DELAY).await;
    assert!(!connections.cut_unread(Whose::Anybodys), "it may have read");
    guest.activity.wait_for_turn(false);
    guest.activity.tick();
    guest.activity.blocked();
    guest.activity.wait_for_turn(true);
    assert!(connections.cut_unread(Whose::Anybodys), "it had its turn and has not read, whatever it sent");
}

/// As under a CPU limit: what was not polled cannot show that its client reads.
#[tokio::test(start_paused = true)]
async fn time_in_which_the_proxy_stood_still_does_not_count_against_a_client_that_reads() {
    let connections = room_for(1);
    let guest = arrive(&connections, 1).expect("room");
    let cut = || connections.cut_unread(Whose::Anybodys) || connections.cut_unread_of(&[pod(1)]);
    guest.activity.blocked();
    sleep(20 * UNREAD_DELAY).await;
    assert!(!cut(), "it may have read");
    // The event loop looks, and it has.
    assert!(guest.activity.sent());
    yield_now().await;
    assert!(!cut(), "it has read");
    guest.activity.tick();
    // Before the connection's task writes.
    sleep(20 * UNREAD_DELAY).await;
    guest.activity.blocked();
    connections.meanwhile(yield_now()).await;
    assert!(!cut(), "its client had no time to read");
    sleep(UNREAD_DELAY).await;
    assert!(!cut(), "it may have read");
    yield_now().await;
    yield_now().await;
    assert!(cut(), "the event loop has looked for the search before");
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_read_gives_way_for_its_client_or_for_all_and_one_that_is_written_does_not() {
    let connections = room_for(3);
    let guests = [1, 2, 3].map(|pod_number| arrive(&connections, pod_number).expect("room"));
    let _in_flight = guests[0].activity.answering();
    guests[0].activity.blocked();
    // In memory, and so at its end as soon as hyper has it.
    drop(guests[1].activity.answering());
    guests[1].activity.blocked();
    guests[2].activity.delivering();
    sleep(UNREAD_DELAY).await;
    connections.meanwhile(yield_now()).await;
    let cut = |pod_number| connections.cut_unread(Whose::Of(Some(pod(pod_number).ip())));
    assert!(!cut(3), "it holds no seat");
    assert!(cut(2));
    assert!(!cut(2));
    assert!(connections.cut_unread(Whose::Anybodys));
    assert!(!connections.cut_unread(Whose::Anybodys));
    assert!(was_aborted(&guests[0]).await && was_aborted(&guests[1]).await && !was_aborted(&guests[2]).await);
}

#[tokio::test]
async fn a_released_place_is_free() {
    let connections = room_for(1);
    let first = arrive(&connections, 1).expect("room");
    let in_flight = first.activity.answering();
    assert!(arrive(&connections, 1).is_none());
    drop((first, in_flight));
    assert!(arrive(&connections, 1).is_some());
    assert_eq!(connections.weight().0, 0);
}

#[tokio::test(start_paused = true)]
async fn operators_are_not_locked_out_by_addresses_that_hold_a_connection_each() {
    let connections = Connections::of_operators(2);
    let longest = arrive(&connections, 1).expect("room");
    sleep(Duration::from_millis(1)).await;
    let asked = arrive(&connections, 2).expect("room");
    let _answer = asked.activity.answering();
    let scraper = arrive(&connections, 3).expect("another gives way");
    assert!(was_aborted(&longest).await, "idle for longest, and for less than a second");
    let kubelet = arrive(&connections, 3).expect("its address may hold one already");
    assert!(was_aborted(&scraper).await && !was_aborted(&asked).await && !was_aborted(&kubelet).await);
}

#[tokio::test(start_paused = true)]
async fn only_older_connections_of_the_address_are_cut() {
    let connections = room_for(8);
    let (old, neighbour) = (arrive(&connections, 1).expect("room"), arrive(&connections, 2).expect("room"));
    sleep(Duration::from_secs(1)).await;
    let change = BootTime::now();
    sleep(Duration::from_secs(1)).await;
    let new = arrive(&connections, 1).expect("room");
    assert_eq!(connections.cut_from(pod(1).ip(), change), 1);
    assert!(was_aborted(&old).await && !was_aborted(&neighbour).await && !was_aborted(&new).await);
}
