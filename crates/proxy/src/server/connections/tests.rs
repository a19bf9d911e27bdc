use super::open::UNREAD_DELAY;
use super::place::SMALL_HEAD_BYTES;
use super::*;
use crate::memory::UNREAD_BYTES;
use crate::server::activity::Answering;
use crate::server::arrival::Arrival;
use proptest::prelude::*;
use tokio::task::yield_now;

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
    let Admission::Place(place) = connections.admit(Arrival::now(pod(pod_number)), &activity, WaitFor::Nothing) else {
        return None;
    };
    let task = tokio::spawn(std::future::pending());
    connections.started(place.number(), task.abort_handle());
    Some(Guest { activity, place, task })
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
async fn without_a_memory_limit_hypers_state_is_kept_for_some_connections_only() {
    let connections = room_for(1000);
    let mut served = Vec::new();
    while served.len() < 600 {
        let guest = arrive(&connections, 1).expect("room");
        let serving = guest.place.serve(Reclaim::Yes).expect("memory");
        // The first eight weigh less than the others.
        let is_first_crowd = served.len() == 259;
        assert!(!is_first_crowd || serving.is_crowded(), "260 are too many to keep their state");
        served.push((guest, serving));
    }
    served.truncate(200);
    assert!(!served[0].1.is_crowded(), "200 are not");
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

#[tokio::test(start_paused = true)]
async fn the_oldest_request_of_any_gives_way_to_who_holds_nothing() {
    let connections = room_for(3);
    let mut crowd = Vec::new();
    for pod_number in 1..=3 {
        let guest = arrive(&connections, pod_number).expect("room");
        guest.activity.tick();
        guest.activity.received(1, false, false);
        crowd.push((guest.activity.answering(), guest));
        sleep(Duration::from_millis(80)).await;
    }
    let admit = |number| connections.admit(Arrival::now(pod(number)), &Arc::new(Activity::new()), WaitFor::Silence);
    assert!(matches!(admit(4), Admission::Later), "the oldest may end soon");
    sleep(Duration::from_millis(10)).await;
    connections.meanwhile(yield_now()).await;
    assert!(matches!(admit(4), Admission::Place(_)));
    let (mut gone, mut left) = (Vec::new(), Vec::new());
    for (_, guest) in &crowd {
        if was_aborted(guest).await { gone.push(guest.place.number()) } else { left.push(guest.place.number()) }
    }
    assert_eq!((gone, left), (vec![0], vec![1, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_client_among_equals_is_refused_another_connection_once_its_first_was_read() {
    let connections = room_for(3);
    let mut crowd = Vec::new();
    for pod_number in [2, 1, 3] {
        let guest = arrive(&connections, pod_number).expect("room");
        crowd.push((guest.activity.answering(), guest));
    }
    sleep(NEWCOMER_PROTECTION).await;
    let activity = Arc::new(Activity::new());
    let admit = |number, wait_for| connections.admit(Arrival::now(pod(number)), &activity, wait_for);
    assert!(matches!(admit(1, WaitFor::Silence), Admission::Later), "the client may have closed it");
    assert!(matches!(admit(1, WaitFor::Reading), Admission::Later), "the same");
    connections.meanwhile(yield_now()).await;
    for (pod_number, wait_for) in [(1, WaitFor::Silence), (2, WaitFor::Reading)] {
        assert!(matches!(admit(pod_number, wait_for), Admission::Refused), "it is in flight");
    }
    sleep(AFTER_REFUSAL).await;
    assert!(matches!(admit(2, WaitFor::Reading), Admission::Later), "not read since");
    connections.meanwhile(async { drop(crowd.remove(0)) }).await;
    assert!(matches!(admit(2, WaitFor::Reading), Admission::Place(_)), "the client had closed it");
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

#[tokio::test(start_paused = true)]
async fn a_patient_newcomer_takes_from_the_largest_client_what_was_read() {
    let connections = room_for(3);
    sleep(Duration::from_millis(1)).await;
    let crowd = [(); 3].map(|()| arrive(&connections, 1).expect("room"));
    sleep(Duration::from_millis(1)).await;
    let admit = || connections.admit(Arrival::now(pod(2)), &Arc::new(Activity::new()), WaitFor::Silence);
    assert!(matches!(admit(), Admission::Later), "what they sent may not be read yet");
    connections.meanwhile(yield_now()).await;
    assert!(matches!(admit(), Admission::Place(_)), "it need not wait until they were silent for a second");
    assert!(was_aborted(&crowd[0]).await);
}

#[tokio::test(start_paused = true)]
async fn a_patient_newcomer_does_not_replace_very_recent_connections() {
    let connections = room_for(1);
    let first = arrive(&connections, 1).expect("room");
    let admit = || connections.admit(Arrival::now(pod(1)), &Arc::new(Activity::new()), WaitFor::Silence);
    assert!(matches!(admit(), Admission::Later));
    sleep(NEWCOMER_PROTECTION).await;
    connections.meanwhile(yield_now()).await;
    assert!(matches!(admit(), Admission::Place(_)));
    assert!(was_aborted(&first).await);
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nothing_was_read_does_not_count_against_a_connection() {
    let connections = room_for(1);
    let first = arrive(&connections, 1).expect("room");
    let admit = || connections.admit(Arrival::now(pod(1)), &Arc::new(Activity::new()), WaitFor::Silence);
    connections.meanwhile(yield_now()).await;
    sleep(10 * NEWCOMER_PROTECTION).await;
    assert!(matches!(admit(), Admission::Later), "what it sent may not be read yet");
    // The event loop comes round, and there was a request.
    connections.meanwhile(async { first.activity.received(1, false, false) }).await;
    let answering = first.activity.answering();
    assert!(matches!(admit(), Admission::Refused), "it is in flight");
    drop(answering);
    assert!(!was_aborted(&first).await);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_without_patience_waits_for_one_turn_if_the_last_was_long_ago() {
    let connections = room_for(1);
    let admit = || connections.admit(Arrival::now(pod(1)), &Arc::new(Activity::new()), WaitFor::Reading);
    sleep(2 * MIN_READING_INTERVAL).await;
    let unread = arrive(&connections, 1).expect("room");
    assert!(matches!(admit(), Admission::Later), "what it sent may not be read yet");
    sleep(Duration::from_millis(1)).await;
    connections.meanwhile(yield_now()).await;
    assert!(matches!(admit(), Admission::Place(_)), "it sent nothing");
    assert!(was_aborted(&unread).await);
    let _recent = arrive(&connections, 1).expect("room");
    assert!(matches!(admit(), Admission::Place(_)), "not a turn for each newcomer of a flood");
}

#[tokio::test(start_paused = true)]
async fn only_connections_of_these_peers_are_cut_for_not_reading() {
    let connections = room_for(3);
    let guests = [1, 2, 3].map(|pod_number| arrive(&connections, pod_number).expect("room"));
    for guest in &guests[..2] {
        guest.activity.blocked();
    }
    sleep(UNREAD_DELAY).await;
    assert!(!connections.cut_unread_of(&[pod(3)]), "this one is reading");
    assert!(connections.cut_unread_of(&[pod(2), pod(3)]));
    assert!(!was_aborted(&guests[0]).await && was_aborted(&guests[1]).await && !was_aborted(&guests[2]).await);
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
async fn serving_is_charged_and_closes_only_idle_connections_of_the_same_client() {
    // Newcomers leave an eighth of the memory free.
    let connections = room_for_bytes((3 * OPEN_BYTES + SERVING_BYTES) / 7 * 8 + 8);
    let guests: Vec<_> = (0..3).map(|_| arrive(&connections, 1).expect("room")).collect();
    let first = guests[0].place.serve(Reclaim::Yes).expect("room for one");
    let _answer = guests[0].activity.answering();
    guests[1].activity.wait_for_room(true);
    assert!(guests[2].place.serve(Reclaim::No).is_none(), "no other connection is closed");
    let newcomer = arrive(&connections, 2).expect("the one that is silent gives way");
    assert!(was_aborted(&guests[2]).await && !was_aborted(&guests[0]).await && !was_aborted(&guests[1]).await);
    drop(first);
    assert!(newcomer.place.serve(Reclaim::No).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_response_is_charged_while_its_client_does_not_read_it_and_other_unread_ones_give_way() {
    let served = OPEN_BYTES + SERVING_BYTES;
    let connections = room_for_bytes(3 * served + UNREAD_BYTES);
    let mut served_by: Vec<_> = Vec::new();
    for pod_number in [1, 1, 2] {
        let guest = arrive(&connections, pod_number).expect("room");
        let serving = guest.place.serve(Reclaim::Yes).expect("room");
        served_by.push((guest, serving));
    }
    let unread = |(guest, serving): &mut (Guest, Serving), is_unread| {
        if is_unread {
            guest.activity.blocked()
        } else {
            guest.activity.sent()
        };
        serving.weigh_response(is_unread);
    };
    unread(&mut served_by[0], true);
    unread(&mut served_by[0], true);
    assert_eq!(connections.weight().0, 3 * served + UNREAD_BYTES, "charged once");
    unread(&mut served_by[0], false);
    assert_eq!(connections.weight().0, 3 * served, "it was read");
    unread(&mut served_by[0], true);
    sleep(UNREAD_DELAY).await;
    unread(&mut served_by[2], true);
    assert!(was_aborted(&served_by[0].0).await, "the one that is not read of the client that holds most");
    assert!(!was_aborted(&served_by[1].0).await && !was_aborted(&served_by[2].0).await);
    assert_eq!(connections.weight().0, 2 * served + UNREAD_BYTES);
}

#[tokio::test(start_paused = true)]
async fn connections_of_a_client_with_many_are_charged_with_an_unread_response_from_the_start() {
    let connections = room_for(1000);
    let mut served: Vec<_> = Vec::new();
    let mut weights = Vec::new();
    for _ in 0..10 {
        let before = connections.weight().0;
        let guest = arrive(&connections, 1).expect("room");
        let mut serving = guest.place.serve(Reclaim::Yes).expect("room");
        weights.push(connections.weight().0 - before);
        guest.activity.blocked();
        serving.weigh_response(weights.len() > 8);
        served.push((guest, serving));
    }
    let few = OPEN_BYTES + SERVING_BYTES;
    assert_eq!(weights, [[few; 8].as_slice(), &[few + UNREAD_BYTES; 2]].concat());
    assert_eq!(connections.weight().0, 8 * few + 2 * (few + UNREAD_BYTES), "charged once");
}

#[tokio::test(start_paused = true)]
async fn a_large_head_is_charged() {
    let connections = room_for_bytes(2 * OPEN_BYTES + 4096);
    let one = arrive(&connections, 1).expect("room");
    let other = arrive(&connections, 2).expect("room");
    assert!(one.place.hold_head(SMALL_HEAD_BYTES + 4096));
    assert_eq!(connections.weight().0, 2 * OPEN_BYTES + 4096);
    other.activity.wait_for_room(true);
    assert!(!one.place.hold_head(SMALL_HEAD_BYTES + 8192));
}

/// Memory may be short for other reasons than connections.
#[tokio::test(start_paused = true)]
async fn under_pressure_the_largest_client_is_refused_unless_all_connections_are_few() {
    let connections = room_for_bytes(40 * OPEN_BYTES);
    let holds_too_much = |pod_number| connections.open.lock().holds_too_much(Some(pod(pod_number).ip()));
    let _ten: Vec<_> = (0..10).map(|_| arrive(&connections, 1).expect("room")).collect();
    assert!(!holds_too_much(1), "a quarter");
    let _one = arrive(&connections, 2).expect("room");
    assert!(holds_too_much(1) && !holds_too_much(2));
}

#[tokio::test(start_paused = true)]
async fn under_pressure_the_largest_client_is_cut_first_and_requests_last() {
    let connections = room_for_bytes(20 * OPEN_BYTES);
    let idle = arrive(&connections, 2).expect("room");
    sleep(Duration::from_secs(1)).await;
    let crowd: Vec<_> = (0..10).map(|_| arrive(&connections, 1).expect("room")).collect();
    let _answers: Vec<_> = crowd[..8].iter().map(|guest| guest.activity.answering()).collect();
    sleep(MIN_CLOSE_AGE).await;
    let aborted = async |guests: &[Guest]| {
        let mut aborted = 0;
        for guest in guests {
            aborted += usize::from(was_aborted(guest).await);
        }
        aborted
    };
    connections.shed(Level::Thrifty, 5 * OPEN_BYTES);
    assert_eq!(aborted(&crowd).await, 0);
    connections.shed(Level::Closing, OPEN_BYTES);
    assert_eq!((aborted(&crowd[8..]).await, was_aborted(&idle).await), (1, false));
    connections.shed(Level::Closing, 20 * OPEN_BYTES);
    assert_eq!((aborted(&crowd).await, was_aborted(&idle).await), (2, false), "requests continue, and so do others");
    connections.shed(Level::Cutting, 20 * OPEN_BYTES);
    assert_eq!((aborted(&crowd).await, was_aborted(&idle).await), (6, false), "the rest weighs a quarter of the limit");
}

proptest! {
    /// After any sequence of arrivals and departures the sums are right and the limits hold.
    #[test]
    fn charges_are_consistent(steps in prop::collection::vec((0..4u8, 0..4u8, any::<prop::sample::Index>()), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let limit = 6 * OPEN_BYTES + 2 * SERVING_BYTES;
            let connections = Connections::new(8, limit, Arc::default(), Arc::default(), &Registry::default());
            let mut guests: Vec<Guest> = Vec::new();
            for (step, pod_number, which) in steps {
                match step {
                    0 | 1 => guests.extend(arrive(&connections, pod_number)),
                    2 if !guests.is_empty() => drop(guests.swap_remove(which.index(guests.len()))),
                    3 if !guests.is_empty() => {
                        let guest = &guests[which.index(guests.len())];
                        let _serving = guest.place.serve(Reclaim::Yes);
                        guest.place.hold_head(6000);
                    }
                    _ => {}
                }
                let open = connections.open.lock();
                let sum: usize = open.connections.values().map(|connection| connection.bytes).sum();
                assert_eq!((open.memory.used(), open.places.used()), (sum, open.connections.len()));
                assert!(sum <= limit && open.connections.len() <= 8);
            }
            guests.clear();
            assert_eq!(connections.weight().0, 0);
        });
    }
}
