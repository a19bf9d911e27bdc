//! A pod with `NET_ADMIN` that gives itself the addresses of others, and routes without end.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use crate::google::world_with_google;
use crate::kube::pause;
use crate::load::Load;
use crate::pod::{Pod, Told};
use crate::rights::eventually;
use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::needs::{Test, tests};
use crate::world::{Proxy, World};

pub const TESTS: &[Test] = tests![
    a_claim_to_many_addresses_keeps_the_event_loop_free,
    routes_without_end_to_one_destination_are_nobody_else_s_burden,
    routing_tables_without_end_end_two_proxies_and_no_more,
];

/// Number of pods whose addresses are claimed.
const NEIGHBOURS: u8 = 12;

/// More than the proxy reads of a pod.
const ROUTES: u32 = 4000;

/// Time for which the event loop is watched. No pod asks anything meanwhile.
const WATCHED: Duration = Duration::from_secs(3);

/// Processor time of the event loop in that time, at most. A release build took 370 ms, more than 100m allow, when it read the
/// claimant's network for each address that it claims, four times a second.
const MOST: Duration = Duration::from_millis(100);

fn a_claim_to_many_addresses_keeps_the_event_loop_free() {
    let (world, mut api) = World::with_account();
    let proxy = world.proxy(&[]);
    let neighbours: Vec<_> = (0..NEIGHBOURS)
        .map(|number| {
            let pod = world.pod(&mut api, &format!("pod-{number}"), world.address(number));
            // So that the API server decides about the address, again and again.
            api.set_addresses(&pod.object, &pod.address.both());
            let kept = pod.become_known();
            (pod, kept)
        })
        .collect();
    let claimant = world.pod(&mut api, "claimant", world.address(NEIGHBOURS));
    api.set_addresses(&claimant.object, &claimant.address.both());
    // The rule gives the local addresses a table of their own, after all routes.
    let mut lines = "rule add from 10.0.0.0/8 lookup 77\n".to_owned();
    for route in 0..ROUTES {
        let _ = writeln!(lines, "route add 172.{}.{}.0/24 dev lo", 16 + route / 250, route % 250);
    }
    claimant.sandbox().batch(&lines);
    for (pod, _) in &neighbours {
        claimant.sandbox().squat(pod.address);
    }
    // Its new connections wait for scans, which find the claims.
    for _ in 0..3 {
        drop(claimant.inside(|pod| pod.connect().map(|mut connection| pod.ask(&mut connection))));
        pause(Duration::from_millis(300));
    }
    let before = busy(&proxy);
    pause(WATCHED);
    let busy = busy(&proxy).saturating_sub(before);
    println!("the event loop ran for {busy:.1?} of {WATCHED:?}");
    assert!(busy < MOST, "{busy:?}");
}

/// Routes to one destination: one record of some megabytes in the kernel's file, which it formats whole in 0.2 s or more.
const ROUTES_TO_ONE: u32 = 300_000;

/// Processor time of the whole proxy while others ask, at most. It reads the network once or twice while the routes are added.
const MOST_OF_ALL: Duration = Duration::from_millis(600);

fn routes_without_end_to_one_destination_are_nobody_else_s_burden() {
    let (world, mut api) = World::with_account();
    let proxy = world.proxy(&[]);
    let neighbour = world.pod(&mut api, "neighbour", world.address(0));
    let hostile = world.pod(&mut api, "hostile", world.address(1));
    let _kept = [neighbour.become_known(), hostile.become_known()];
    let load = Load::begin([(&neighbour, |pod: &Pod, answers: &mut Vec<Told>| {
        answers.push(pod.ask(&mut pod.connect().expect("the proxy listens")));
        pause(Duration::from_millis(100));
    })]);
    // The smallest metric last, so that each is inserted before all others.
    let metrics: Vec<u32> = (1..=ROUTES_TO_ONE).rev().collect();
    for metrics in metrics.chunks(30_000) {
        let line = |metric| format!("route add 10.77.0.0/24 dev lo metric {metric}\n");
        hostile.sandbox().batch(&metrics.iter().map(line).collect::<String>());
    }
    let before = busy_threads(&proxy);
    pause(WATCHED);
    let busy = busy_threads(&proxy).saturating_sub(before);
    let answers: Vec<Told> = load.end().into_iter().flatten().collect();
    println!("the proxy ran for {busy:.1?} of {WATCHED:?}; {} answers to the neighbour", answers.len());
    assert!(answers.len() > 10 && answers.iter().all(|told| matches!(told, Told::Itself)), "{answers:?}");
    let refused = hostile.inside(|pod| pod.ask(&mut pod.connect().expect("the proxy listens")));
    assert!(matches!(refused, Told::Unavailable), "its network is not read any more: {refused:?}");
    assert!(busy < MOST_OF_ALL, "{busy:?}");
    // A new proxy finds the routes there.
    drop(proxy);
    let proxy = world.proxy(&[]);
    drop(neighbour.become_known());
    let before = busy_threads(&proxy);
    pause(WATCHED);
    let busy = busy_threads(&proxy).saturating_sub(before);
    println!("the next proxy ran for {busy:.1?} of {WATCHED:?}");
    assert!(busy < MOST_OF_ALL, "{busy:?}");
}

/// The kernel's file that counts their routes has 155 bytes for each. It is formatted in a buffer of 32 MiB then, the next power of two.
const TABLES: u32 = 120_000;

/// Memory of the proxy, as in the manifests.
const MEMORY: u64 = 32 << 20;

fn routing_tables_without_end_end_two_proxies_and_no_more() {
    let (world, mut api, google) = world_with_google();
    api.create_account("team-0", "app-0");
    let neighbour = world.pod(&mut api, "neighbour", world.address(0));
    let hostile = world.pod(&mut api, "hostile", world.address(1));
    let tables: Vec<u32> = (1000..1000 + TABLES).collect();
    for tables in tables.chunks(30_000) {
        // The kernel looks for a route that is the same in other respects. The metric makes that fast.
        let line = |table| format!("route add blackhole 10.77.0.0/24 table {table} metric {table}\n");
        hostile.sandbox().batch(&tables.iter().map(line).collect::<String>());
    }
    let dir = world.server.dir().join("state");
    fs::create_dir_all(&dir).expect("target/tmp can be written");
    let flags: Vec<String> = google.flags().into_iter().chain([format!("--state-dir={}", dir.display())]).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let group = Cgroup::new(Bounds { memory: Some(MEMORY), cpu: None }).expect("groups are needed");
    // The routes of a younger pod are not counted.
    pause(Duration::from_secs(6).saturating_sub(hostile.began.elapsed()));
    let killed = || group.usage().expect("it has a limit").killed;
    for ends in 0..=2 {
        let proxy = world.proxy_without_pods(Some(&group), &flags);
        let mut is_served = false;
        eventually(|| {
            // It scans the node's processes for the first request.
            let told = neighbour.inside(|pod| pod.connect().map(|mut open| pod.ask_for_token(&mut open)));
            is_served = matches!(told, Some(Told::Itself));
            if is_served || killed() > ends { Ok(()) } else { Err(format!("{told:?}")) }
        });
        println!("proxy {}: {}, {:?}", ends + 1, if is_served { "serves" } else { "ends by OOM" }, group.usage());
        assert_eq!(is_served, ends == 2, "{:#?}", proxy.written());
        if is_served {
            let refused = hostile.inside(|pod| pod.ask(&mut pod.connect().expect("the proxy listens")));
            assert!(matches!(refused, Told::Unavailable), "its network is not read: {refused:?}");
            proxy.line("times while it read the network of this pod");
        }
    }
}

/// Processor time of the proxy's first thread, which runs the event loop.
fn busy(proxy: &Proxy) -> Duration {
    time_of(&format!("/proc/{}/schedstat", proxy.id()))
}

/// Processor time of all threads of the proxy.
pub fn busy_threads(proxy: &Proxy) -> Duration {
    let threads = fs::read_dir(format!("/proc/{}/task", proxy.id())).expect("it runs");
    threads.map(|thread| time_of(&thread.expect("a thread").path().join("schedstat").display().to_string())).sum()
}

fn time_of(schedstat: &str) -> Duration {
    let text = fs::read_to_string(schedstat).expect("it runs");
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds"))
}
