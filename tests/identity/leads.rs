//! New connections of known pods: by an interface of the pod's own they need no scan, and behind a bridge each needs one.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::crowd::SETTLED;
use crate::kube::{NODE, pause};
use crate::pod::{Pod, Told};
use crate::sandbox::Address;
use crate::support::needs::{Test, tests};
use crate::world::World;

pub const TESTS: &[Test] = tests![
    a_known_pods_new_connection_needs_no_scan,
    an_heir_with_the_same_address_and_index_is_not_taken_for_the_pod_before_it,
    behind_a_bridge_each_new_connection_needs_a_scan,
];

/// Number of connections of each pod that are counted.
const CONNECTIONS: u64 = 5;

/// Longer than it takes until an interface that was learned has been checked.
pub const CHECKED: Duration = Duration::from_secs(2);

/// Longer than scans rest if nobody waits for one.
const REST: Duration = Duration::from_millis(300);

/// Maximum time between scans if nobody waits for one.
const INTERVAL: Duration = Duration::from_secs(2);

/// The maximum number of scans in this time if nobody waits for one.
fn unwanted(time: Duration) -> u64 {
    time.as_secs() / INTERVAL.as_secs() + 1
}

/// The number of scans so far.
fn scans(world: &World) -> u64 {
    world.metric("metadata_proxy_identity_scan_duration_seconds_count")
}

/// This number of pods run for a while, and then open connections one after the other. Returns the number of scans
/// meanwhile, and of those that may have come by themselves. `plug`: a shell script that changes the node's network first, for each pod.
fn scans_of(number: u8, plug: impl Fn(&World, u8) -> String) -> (u64, u64) {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&[]);
    let pods: Vec<Arc<Pod>> =
        (0..number).map(|number| world.pod(&mut api, &format!("pod-{number}"), world.address(number))).collect();
    (0..number).for_each(|pod| drop(world.node.namespace.sh(&plug(&world, pod))));
    for pod in &pods {
        pod.become_known();
    }
    pause(SETTLED);
    let ask = || {
        for pod in &pods {
            pause(REST);
            let told = pod.inside(|pod| pod.ask(&mut pod.connect().expect("the proxy listens")));
            assert!(matches!(told, Told::Itself), "{pod}: {told:?}");
        }
    };
    // Learns by which interface each pod comes.
    ask();
    pause(CHECKED);
    let (before, began) = (scans(&world), Instant::now());
    (0..CONNECTIONS).for_each(|_| ask());
    let scans = scans(&world) - before;
    println!("{scans} scans for {} connections", CONNECTIONS * u64::from(number));
    (scans, unwanted(began.elapsed()))
}

fn a_known_pods_new_connection_needs_no_scan() {
    let (scans, unwanted) = scans_of(3, |_, _| String::new());
    assert!(scans <= unwanted, "{scans} scans, {unwanted} of them by themselves");
}

/// As a network plugin does that makes the veth in the pod's network, from where the node's end keeps its index.
fn an_heir_with_the_same_address_and_index_is_not_taken_for_the_pod_before_it() {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&[]);
    let pod = world.pod(&mut api, "before", world.address(0));
    let ask = |pod: &Arc<Pod>| pod.inside(|pod| pod.connect().map(|mut connection| pod.ask(&mut connection)));
    pod.become_known();
    pause(SETTLED);
    assert!(matches!(ask(&pod), Some(Told::Itself)));
    pause(CHECKED);
    let (before, began) = (scans(&world), Instant::now());
    for _ in 0..CONNECTIONS {
        assert!(matches!(ask(&pod), Some(Told::Itself)));
        pause(REST);
    }
    assert!(scans(&world) <= before + unwanted(began.elapsed()), "its interface is known");
    let heir = api.create_pod("team-0", "heir", "app-0", NODE);
    // It lives on with the address, and without its veth.
    let index = |veth: &str| world.node.namespace.sh(&format!("awk '$2 == \"{veth}\" {{print $1}}' /proc/net/igmp"));
    let its = index("pod0");
    pod.sandbox().squat(world.address(0));
    pod.unplug();
    world.node.index.store(its.trim().parse().expect("an index"), Relaxed);
    let heir = Pod::start(&world.node, heir, world.address(0));
    assert_eq!(index("pod1"), its);
    let told: Vec<_> = (0..5).map(|_| ask(&heir)).collect();
    let is_refused = |told: &Option<Told>| matches!(told, None | Some(Told::Unavailable | Told::Broken(_)));
    // Two pods have the address, and the API server says nothing. The first answer may be late.
    assert!(told.iter().all(is_refused) && told.iter().any(Option::is_some), "{told:?}");
}

fn behind_a_bridge_each_new_connection_needs_a_scan() {
    let plug = |world: &World, number| {
        let (Address { v4, v6 }, node) = (world.address(number), world.node.network.node().v6);
        format!(
            "[ -e /proc/sys/net/ipv4/conf/cni0 ] || ip link add cni0 type bridge
             ip link set cni0 up
             ip addr replace {node}/128 dev cni0 nodad
             ip addr del {node}/128 dev pod{number}
             ip route replace {v4} dev cni0
             ip route del {v6} dev pod{number}
             ip route add {v6} dev cni0
             ip link set pod{number} master cni0"
        )
    };
    // One pod alone: no second one shows that the interface is shared.
    assert!(scans_of(1, plug).0 >= CONNECTIONS);
}
