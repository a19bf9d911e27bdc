//! A dead pod's address gets nothing of that pod, although the API server last reported that the pod lives there.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::kube::{NODE, PodObject, pause};
use crate::limits::bounds;
use crate::pod::{Pod, Told};
use crate::support::cgroup::Cgroup;
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::world::World;

pub const TESTS: &[Test] = tests![a_dead_pod_s_address_gets_nothing_of_it];

/// Addresses that change hands at the same time.
const ADDRESSES: u8 = 10;

/// One in ten pods that take over an address is not known to the proxy.
const STRANGERS: usize = 10;

/// Age from which on a pod is complete. A younger one that loses its addresses may be gVisor's, which keeps them, so
/// while its processes live its address gets nothing.
const COMPLETE: Duration = Duration::from_secs(11);

/// The way in which a pod ends before its address passes to another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its process ends first.
    Killed,
    /// Its process lives on without its network, and the pod is complete.
    Unplugged,
    /// The same, but the pod is younger.
    UnpluggedYoung,
}

/// Maximum time until the proxy knows all pods.
const SETTLES: Duration = Duration::from_secs(30);

fn a_dead_pod_s_address_gets_nothing_of_it() {
    let (world, mut api) = World::with_account();
    // Two pods for each address; the API server reports it for the first.
    let couples: Vec<[PodObject; 2]> = (0..ADDRESSES)
        .map(|number| [0, 1].map(|which| api.create_pod("team-0", &format!("pod-{number}-{which}"), "app-0", NODE)))
        .collect();
    for (number, [first, _]) in (0..).zip(&couples) {
        api.set_addresses(first, &world.address(number).both());
    }
    let group = Cgroup::new(bounds()).expect("groups are needed");
    let _proxy = world.proxy_in(Some(&group), &[]);
    is_known(&world, &couples);
    // From now on the proxy gets no events, and does not know it.
    world.watch.hold();

    let trials = Trials { left: AtomicUsize::new(if is_full_size() { 10_000 } else { 300 }), ..Trials::default() };
    thread::scope(|scope| {
        for (number, couple) in (0..).zip(&couples) {
            let (world, trials) = (&world, &trials);
            scope.spawn(move || hand_over(world, number, couple, trials));
        }
    });
    let [served, strangers, young] = [trials.served, trials.strangers, trials.young].map(AtomicUsize::into_inner);
    let silent = trials.silent.into_inner().unwrap_or_else(PoisonError::into_inner);
    let not = silent.len();
    println!("nobody was taken for a dead pod: {served} served, {not} not; {strangers} strangers got nothing");
    println!("{young} came after a young pod that had lost its network");
    assert!(strangers > 0 && served > 0 && not == 0, "{served} served, {not} not, as {:#?}", &silent[..not.min(5)]);
}

/// Addresses that change hands.
#[derive(Default)]
struct Trials {
    left: AtomicUsize,
    /// Pods that got the right answer.
    served: AtomicUsize,
    /// Pods that did not.
    silent: Mutex<Vec<String>>,
    /// Pods that are not known to anybody.
    strangers: AtomicUsize,
    /// Pods after one that ended as [`End::UnpluggedYoung`], with an answer or not.
    young: AtomicUsize,
}

/// Waits until the proxy knows all pods.
fn is_known(world: &World, couples: &[[PodObject; 2]]) {
    for (number, couple) in (0..).zip(couples) {
        for object in couple {
            let pod = Pod::start(&world.node, object.clone(), world.address(number));
            let began = Instant::now();
            loop {
                match pod.inside(ask_again_if_refused) {
                    Told::Itself => break,
                    Told::Unavailable | Told::Broken(_) => {}
                    told => panic!("{pod} got {told:?}"),
                }
                assert!(began.elapsed() < SETTLES, "{pod} is not known");
            }
        }
    }
}

/// Passes an address from one pod to the other, and now and then to a stranger, until there were enough trials.
fn hand_over(world: &World, number: u8, couple: &[PodObject; 2], trials: &Trials) {
    let address = world.address(number);
    let mut last: Option<(Arc<Pod>, Instant)> = None;
    for turn in 0_usize.. {
        if trials.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
            return;
        }
        let is_stranger = turn % STRANGERS == STRANGERS - 1;
        let object = if is_stranger { stranger() } else { couple[turn % 2].clone() };
        let end = last.as_ref().map(|(old, began)| end(old, *began, turn));
        let (pod, began) = (Pod::start(&world.node, object, address), Instant::now());
        match pod.inside(ask_again_if_refused) {
            Told::Itself | Told::Unavailable | Told::Broken(_) if end == Some(End::UnpluggedYoung) && !is_stranger => {
                trials.young.fetch_add(1, Relaxed);
            }
            Told::Itself if !is_stranger => drop(trials.served.fetch_add(1, Relaxed)),
            Told::Unavailable | Told::Broken(_) if is_stranger => drop(trials.strangers.fetch_add(1, Relaxed)),
            told @ (Told::Unavailable | Told::Broken(_)) => {
                let mut silent = trials.silent.lock().unwrap_or_else(PoisonError::into_inner);
                silent.push(format!("{pod} got {told:?} on turn {turn}"));
            }
            told => panic!("{pod} got {told:?}"),
        }
        last = Some((pod, began));
    }
}

/// Ends a pod that began at this time.
fn end(old: &Arc<Pod>, began: Instant, turn: usize) -> End {
    let end = match turn % 10 {
        5 if turn < if is_full_size() { 100 } else { 10 } => End::Unplugged,
        3 | 8 => End::UnpluggedYoung,
        _ => End::Killed,
    };
    match end {
        End::Killed => old.kill(),
        End::Unplugged => {
            pause(COMPLETE.saturating_sub(began.elapsed()));
            // Lets a scan see it complete, with its addresses.
            old.inside(ask_again_if_refused);
        }
        End::UnpluggedYoung => {}
    }
    old.unplug();
    end
}

/// A pod that the API server does not have.
fn stranger() -> PodObject {
    let [namespace, name, account] = ["nowhere", "stranger", "nobody"].map(str::to_owned);
    let hex = format!("{:032x}", fastrand::u128(..));
    let uid = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    PodObject { namespace, name, account, uid }
}

/// Sends a request on a new connection, and on another one if that is reset, as in the clock tick in which the pod's
/// first process began, or answered with 503, which clients repeat.
fn ask_again_if_refused(pod: &Pod) -> Told {
    match ask_once(pod) {
        Told::Broken(ErrorKind::ConnectionReset) | Told::Unavailable => {
            pause(Duration::from_millis(10));
            ask_once(pod)
        }
        told => told,
    }
}

fn ask_once(pod: &Pod) -> Told {
    let told = pod.connect().map(|mut connection| pod.ask(&mut connection));
    told.unwrap_or_else(|| {
        pause(Duration::from_millis(10));
        Told::Broken(ErrorKind::ConnectionRefused)
    })
}
