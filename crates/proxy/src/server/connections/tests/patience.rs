//! Newcomers that can wait until the connections that may give way were read.

use tokio::task::yield_now;

use super::super::room::MIN_READING_INTERVAL;
use super::super::turned_away::AFTER_REFUSAL;
use super::*;

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
    let admit = |number| admit(&connections, number, WaitFor::Silence);
    assert!(matches!(admit(4), Err(NoRoom::Later)), "the oldest may end soon");
    sleep(Duration::from_millis(10)).await;
    connections.meanwhile(yield_now()).await;
    assert!(admit(4).is_ok());
    let (mut gone, mut left) = (Vec::new(), Vec::new());
    for (_, guest) in &crowd {
        if was_aborted(guest).await { gone.push(guest.place.number) } else { left.push(guest.place.number) }
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
    let admit = |number, wait_for| admit(&connections, number, wait_for);
    assert!(matches!(admit(1, WaitFor::Silence), Err(NoRoom::Later)), "the client may have closed it");
    assert!(matches!(admit(1, WaitFor::Reading), Err(NoRoom::Later)), "the same");
    connections.meanwhile(yield_now()).await;
    for (pod_number, wait_for) in [(1, WaitFor::Silence), (2, WaitFor::Reading)] {
        assert!(matches!(admit(pod_number, wait_for), Err(NoRoom::Refused)), "it is in flight");
    }
    sleep(AFTER_REFUSAL).await;
    assert!(matches!(admit(2, WaitFor::Reading), Err(NoRoom::Later)), "not read since");
    connections.meanwhile(async { drop(crowd.remove(0)) }).await;
    assert!(admit(2, WaitFor::Reading).is_ok(), "the client had closed it");
}

#[tokio::test(start_paused = true)]
async fn a_patient_newcomer_takes_from_the_largest_client_what_was_read() {
    let connections = room_for(3);
    sleep(Duration::from_millis(1)).await;
    let crowd = [(); 3].map(|()| arrive(&connections, 1).expect("room"));
    sleep(Duration::from_millis(1)).await;
    let admit = || admit(&connections, 2, WaitFor::Silence);
    assert!(matches!(admit(), Err(NoRoom::Later)), "what they sent may not be read yet");
    connections.meanwhile(yield_now()).await;
    assert!(admit().is_ok(), "it need not wait until they were silent for a second");
    assert!(was_aborted(&crowd[0]).await);
}

#[tokio::test(start_paused = true)]
async fn a_patient_newcomer_does_not_replace_very_recent_connections() {
    let connections = room_for(1);
    let first = arrive(&connections, 1).expect("room");
    let admit = || admit(&connections, 1, WaitFor::Silence);
    assert!(matches!(admit(), Err(NoRoom::Later)));
    sleep(NEWCOMER_PROTECTION).await;
    connections.meanwhile(yield_now()).await;
    assert!(admit().is_ok());
    assert!(was_aborted(&first).await);
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nothing_was_read_does_not_count_against_a_connection() {
    let connections = room_for(1);
    let first = arrive(&connections, 1).expect("room");
    let admit = || admit(&connections, 1, WaitFor::Silence);
    connections.meanwhile(yield_now()).await;
    sleep(10 * NEWCOMER_PROTECTION).await;
    assert!(matches!(admit(), Err(NoRoom::Later)), "what it sent may not be read yet");
    // The event loop comes round, and there was a request.
    connections.meanwhile(async { first.activity.received(1, false, false) }).await;
    let answering = first.activity.answering();
    assert!(matches!(admit(), Err(NoRoom::Refused)), "it is in flight");
    drop(answering);
    assert!(!was_aborted(&first).await);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_without_patience_waits_for_one_turn_if_the_last_was_long_ago() {
    let connections = room_for(1);
    let admit = || admit(&connections, 1, WaitFor::Reading);
    sleep(2 * MIN_READING_INTERVAL).await;
    let unread = arrive(&connections, 1).expect("room");
    assert!(matches!(admit(), Err(NoRoom::Later)), "what it sent may not be read yet");
    sleep(Duration::from_millis(1)).await;
    connections.meanwhile(yield_now()).await;
    assert!(admit().is_ok(), "it sent nothing");
    assert!(was_aborted(&unread).await);
    let _recent = arrive(&connections, 1).expect("room");
    assert!(admit().is_ok(), "not a turn for each newcomer of a flood");
}
