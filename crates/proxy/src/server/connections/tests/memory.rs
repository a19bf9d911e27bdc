//! What connections are charged, and which give way when memory is short.

use proptest::prelude::*;
use tokio::time::timeout;

use super::super::place::SMALL_HEAD_BYTES;
use super::*;
use crate::cgroup::Version;
use crate::memory::{UNREAD_BYTES, fake_group};

#[tokio::test(start_paused = true)]
async fn without_a_memory_limit_hypers_state_is_kept_for_some_connections_only() {
    let connections = room_for(1000);
    let mut served = Vec::new();
    while served.len() < 600 {
        let guest = arrive(&connections, 1).expect("room");
        let serving = guest.place.serve(Reclaim::Yes).expect("memory");
        // The first eight weigh less than the others.
        let is_first_crowd = served.len() == 519;
        assert!(!is_first_crowd || serving.is_crowded(), "520 are too many to keep their state");
        served.push((guest, serving));
    }
    served.truncate(500);
    assert!(!served[0].1.is_crowded(), "500 are not");
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

#[tokio::test(start_paused = true)]
async fn under_pressure_the_largest_client_is_refused_and_cut_unless_all_connections_are_few() {
    let (folder, pressure) =
        fake_group("connections", Version::Two, &[("memory.max", "100000000"), ("memory.current", "0")]);
    let bytes = 40 * OPEN_BYTES;
    let connections = Connections::new(1000, bytes, Arc::new(pressure), Arc::default(), &Registry::default());
    let crowd: Vec<_> = (0..9).map(|_| arrive(&connections, 1).expect("room")).collect();
    sleep(MIN_CLOSE_AGE).await;
    std::fs::write(folder.join("memory.current"), "80000000").expect("the file");
    connections.pressure.measure();
    // Memory may be short for other reasons than connections.
    let tenth = arrive(&connections, 1).expect("they have less than a quarter");
    let other = arrive(&connections, 2).expect("room");
    assert!(matches!(admit(&connections, 1, WaitFor::Silence), Err(NoRoom::Refused)));
    let another = arrive(&connections, 2).expect("it does not hold most");
    timeout(Duration::ZERO, connections.tend()).await.expect_err("it goes on");
    assert!(was_aborted(&crowd[0]).await && was_aborted(&crowd[1]).await && !was_aborted(&crowd[2]).await);
    assert!(!was_aborted(&tenth).await && !was_aborted(&other).await && !was_aborted(&another).await);
    std::fs::remove_dir_all(folder).expect("the temporary folder");
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
