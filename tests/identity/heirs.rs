//! The owner of a connection when its pod ends, pauses, or leaves its address to another pod.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::crowd::SETTLED;
use crate::google::world_with_google;
use crate::kube::{Client, NODE, pause};
use crate::leads::CHECKED;
use crate::limits::bounds;
use crate::pod::{Pod, Told};
use crate::support::cgroup::Cgroup;
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::world::World;

pub const TESTS: &[Test] = tests![
    an_heir_whose_sandbox_has_died_is_not_taken_for_the_pod_before_it,
    a_pod_whose_sandbox_has_died_is_not_taken_for_one_that_has_given_itself_its_address,
    a_kept_connection_ends_with_its_pod,
    a_connection_that_pauses_stays_its_pods,
];

/// With heirs that ask at certain times.
pub const ALONE: &[Test] = tests![an_heir_is_never_taken_for_a_pod_whose_teardown_is_stuck];

/// Delays of an heir's first request after the start of its sandbox, in milliseconds.
const DELAYS: [u64; 5] = [0, 50, 100, 200, 300];

/// Time after which a connection without a request is parked.
const PARKED: Duration = Duration::from_millis(1500);

fn an_heir_is_never_taken_for_a_pod_whose_teardown_is_stuck() {
    let turns = if is_full_size() { 40 } else { 3 };
    let (world, mut api, google) = world_with_google();
    for account in ["old", "heir"] {
        api.create_account("team-0", account);
    }
    let group = Cgroup::new(bounds()).expect("groups are needed");
    let flags = google.flags();
    let _proxy = world.proxy_in(Some(&group), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let world = &world;
    let all_of = |number: u8, delay| {
        let mut api = world.server.admin();
        let heirs = (0..turns).map(|turn| format!("{turn}-{number}"));
        heirs.flat_map(|name| inherit(world, &mut api, &name, number, delay)).collect::<Vec<_>>()
    };
    let told: Vec<Told> = thread::scope(|scope| {
        let delays = (0..).zip(DELAYS.map(Duration::from_millis));
        let threads: Vec<_> = delays.map(|(number, delay)| scope.spawn(move || all_of(number, delay))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let (mut right, mut refused, mut wrong) = (0, 0, Vec::new());
    for told in told {
        match told {
            Told::Itself => right += 1,
            Told::Unavailable | Told::Broken(_) => refused += 1,
            Told::Somebody(what) | Told::Odd(what) => wrong.push(what),
        }
    }
    println!("heirs under {:?}: {} wrong, {right} right, {refused} refused", bounds(), wrong.len());
    assert!(wrong.is_empty(), "{} wrong, as {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert!(right > 0, "no heir was ever served");
}

/// Passes on an address whose pod keeps its network. Returns the heir's answers: on its first connection, on the same
/// one later, and on another one once the old pod has ended.
fn inherit(world: &World, api: &mut Client, name: &str, number: u8, delay: Duration) -> Vec<Told> {
    let address = world.address(number);
    let start = |api: &mut Client, account: &str| {
        let object = api.create_pod("team-0", &format!("{account}-{name}"), account, NODE);
        Pod::start(&world.node, object, address)
    };
    let old = start(api, "old");
    old.become_known();
    // The pod is known, and the last scan is recent. The teardown of its network gets stuck.
    api.delete_pod(&old.object, 30);
    old.inside(|pod| pod.connect().map(|mut connection| pod.ask_for_token(&mut connection)));
    old.sandbox().stick();
    let heir = start(api, "heir");
    let mut told = heir.inside(move |pod| {
        pause(delay);
        let mut kept = pod.connect();
        let mut ask = || kept.as_mut().map(|kept| [pod.ask_for_token(kept), pod.ask(kept)]);
        let first = ask();
        pause(Duration::from_millis(400));
        first.into_iter().chain(ask()).flatten().collect::<Vec<_>>()
    });
    old.kill();
    told.extend(heir.inside(|pod| pod.connect().map(|mut fresh| pod.ask_for_token(&mut fresh))));
    api.delete_pod(&old.object, 0);
    api.delete_pod(&heir.object, 0);
    told
}

fn an_heir_whose_sandbox_has_died_is_not_taken_for_the_pod_before_it() {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&[]);
    let mut seen = Vec::new();
    for turn in 0..4 {
        let old = world.pod(&mut api, &format!("old-{turn}"), world.address(turn));
        api.set_addresses(&old.object, &old.address.both());
        drop(old.become_known());
        // It is young, so without its network it looks like a pod of gVisor.
        let take_away = if turn % 2 == 0 { Pod::unplug } else { Pod::stick };
        take_away(&old);
        let heir = world.pod(&mut api, &format!("heir-{turn}"), world.address(turn));
        let ask = |pod: &Pod| pod.connect().map(|mut connection| pod.ask(&mut connection));
        seen.extend(heir.inside(ask));
        // Its containers live on: clients in its network.
        heir.kill();
        seen.extend((0..3).filter_map(|_| heir.inside(ask)));
    }
    println!("{seen:?}");
    assert!(!seen.is_empty(), "no request reached the proxy");
    assert!(seen.iter().all(|told| matches!(told, Told::Unavailable | Told::Broken(_))), "{seen:?}");
}

fn a_pod_whose_sandbox_has_died_is_not_taken_for_one_that_has_given_itself_its_address() {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&[]);
    let pod = world.pod(&mut api, "pod", world.address(0));
    let ask = |pod: &Pod| pod.connect().map(|mut connection| pod.ask(&mut connection));
    drop(pod.become_known());
    pause(SETTLED);
    // Now the proxy learns by which interface it comes.
    for _ in 0..2 {
        assert!(matches!(pod.inside(ask), Some(Told::Itself)), "{pod} is known");
    }
    pause(CHECKED);
    // The API server reports no address for it.
    let squatter = world.pod(&mut api, "squatter", world.address(1));
    squatter.sandbox().squat(pod.address);
    drop(squatter.become_known());
    // Its containers live on: clients in its network.
    pod.kill();
    let seen: Vec<Told> = (0..5).filter_map(|_| pod.inside(ask)).collect();
    println!("{seen:?}");
    assert!(!seen.is_empty(), "no request reached the proxy");
    assert!(seen.iter().all(|told| matches!(told, Told::Unavailable | Told::Broken(_))), "{seen:?}");
}

fn a_kept_connection_ends_with_its_pod() {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&[]);
    for turn in 0..5 {
        let pod = world.pod(&mut api, &format!("killed-{turn}"), world.address(turn));
        let mut kept = pod.become_known();
        // Its network outlives its processes.
        pod.kill();
        let told = pod.ask(&mut kept);
        assert!(matches!(told, Told::Broken(_)), "{pod} has ended, and was told {told:?}");
    }
    // Its object is deleted at once (`kubectl delete --force`), and its processes keep running.
    let mut times: Vec<Duration> = (0..10)
        .map(|turn| {
            let pod = world.pod(&mut api, &format!("forced-{turn}"), world.address(turn));
            let mut kept = pod.become_known();
            api.delete_pod(&pod.object, 0);
            let began = Instant::now();
            while matches!(pod.ask(&mut kept), Told::Itself) {
                assert!(began.elapsed() < Duration::from_secs(20), "{pod} has no object, and is still served");
            }
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("after its object had gone, a pod was answered for {:.1?}, at most {:.1?}", times[5], times[9]);
}

fn a_connection_that_pauses_stays_its_pods() {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&[]);
    let pod = world.pod(&mut api, "pod", world.address(0));
    let mut kept = pod.become_known();
    let identified = identifications(&world);
    for _ in 0..3 {
        pause(PARKED);
        assert!(matches!(pod.ask(&mut kept), Told::Itself));
    }
    assert_eq!(identifications(&world), identified, "it was identified again");
}

/// Number of clients that the proxy has identified as pods by their processes.
fn identifications(world: &World) -> u64 {
    world.metric("metadata_proxy_identifications_total{result=\"kernel\"}")
}
