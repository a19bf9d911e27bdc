use super::*;

fn pod(number: u8) -> Taker {
    Taker::Client([10, 0, 0, number].into())
}

fn waiting(queues: &Queues, taker: Taker) -> usize {
    queues.of.get(&taker).map_or(0, |queue| queue.waiting.len())
}

fn add(queues: &mut Queues, taker: Taker, times: usize) {
    for _ in 0..times {
        queues.add(taker, Waker::noop().clone());
    }
}

#[test]
fn who_wanted_nothing_before_goes_first() {
    let mut queues = Queues::default();
    (1..=200).for_each(|number| add(&mut queues, pod(number), 10));
    while !queues.new.is_empty() {
        queues.give(POLLS_AT_ONCE);
    }
    add(&mut queues, pod(201), 1);
    queues.give(1);
    assert_eq!(waiting(&queues, pod(201)), 0);
}

#[test]
fn a_client_with_many_connections_gets_as_much_time_as_one_with_few() {
    let mut queues = Queues::default();
    add(&mut queues, pod(1), 1_000);
    add(&mut queues, pod(2), 100);
    for _ in 0..100 {
        assert_eq!(queues.give(1).turns, 1);
    }
    let taken = [1_000 - waiting(&queues, pod(1)), 100 - waiting(&queues, pod(2))];
    assert!(taken[0].abs_diff(taken[1]) <= 5, "{taken:?}");
}

#[test]
fn time_is_charged_not_polls() {
    let mut queues = Queues::default();
    add(&mut queues, pod(1), 200);
    add(&mut queues, pod(2), 200);
    let mut before = 200;
    for _ in 0..120 {
        queues.give(1);
        if waiting(&queues, pod(1)) < before {
            before = waiting(&queues, pod(1));
            // Its polls take three times as long.
            queues.charge(pod(1), 2 * ADVANCE, 0);
        }
    }
    let taken = [200 - waiting(&queues, pod(1)), 200 - waiting(&queues, pod(2))];
    assert!(taken[1] >= 2 * taken[0], "{taken:?}");
}

#[test]
fn nothing_is_kept_of_clients_that_want_nothing() {
    let mut queues = Queues::default();
    (1..=200).for_each(|number| add(&mut queues, pod(number), 2));
    while queues.give(POLLS_AT_ONCE).turns > 0 {}
    assert!(queues.of.is_empty() && queues.new.is_empty() && queues.old.is_empty());
}

#[tokio::test]
async fn a_task_that_ends_while_it_waits_leaves_the_queue() {
    let turns = Arc::new(Turns::default());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200 {
        tasks.spawn(turns.share(pod(number % 3), None, std::future::pending::<()>()));
    }
    tokio::task::yield_now().await;
    assert!(turns.waiting() > 0, "no more than {POLLS_AT_ONCE} run at once");
    tasks.shutdown().await;
    assert_eq!(turns.waiting(), 0);
}

#[tokio::test]
async fn everybody_gets_a_turn() {
    let turns = Arc::new(Turns::default());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1_000_u16 {
        let work = async {
            for _ in 0..5 {
                yield_now().await;
            }
        };
        tasks.spawn(turns.share(Taker::Door(usize::from(number % 7)), None, work));
    }
    tasks.join_all().await;
    assert_eq!(turns.waiting(), 0);
}
