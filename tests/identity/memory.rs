//! The memory that identity takes: little for the pods of this node, and none for those of others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::claims::busy_threads;
use crate::google::world_with_google;
use crate::kube::pause;
use crate::namespace::Kept;
use crate::pod::{Pod, Told};
use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::tokens::linked_accounts;
use crate::world::{Proxy, World};

pub const TESTS: &[Test] = tests![identity_takes_little_memory, a_busy_node_is_served_within_its_memory];

/// Pods of this node, each of which sends requests.
const PODS: u8 = 110;

/// Maximum additional memory, in KiB.
const MOST: u64 = 8 * 1024;

/// Time in which nobody asks for anything.
const IDLE: Duration = Duration::from_secs(10);

fn identity_takes_little_memory() {
    let (world, mut api) = World::with_account();
    let elsewhere = if is_full_size() { 10_000 } else { 500 };
    for number in 0..elsewhere {
        api.create_pod("team-0", &format!("elsewhere-{number}"), "app-0", "node-2");
    }
    let pods: Vec<Arc<Pod>> =
        (0..PODS).map(|number| world.pod(&mut api, &format!("pod-{number}"), world.address(number))).collect();
    let without = world.proxy_without_identity();
    let before = settled(&without);
    drop(without);

    let with = world.proxy(&[]);
    for pod in &pods {
        let began = Instant::now();
        while !matches!(pod.inside(|pod| pod.connect().map(|mut open| pod.ask(&mut open))), Some(Told::Itself)) {
            assert!(began.elapsed() < Duration::from_secs(30), "{pod} is not known");
        }
    }
    let after = settled(&with);
    println!("{PODS} pods that ask for nothing cost {:.1} ms of CPU a second", idle_cpu(&with));
    println!("{PODS} pods here and {elsewhere} elsewhere: {before} KiB without identity, {after} KiB with it");
    assert!(after <= before + MOST, "{after} KiB with identity, {before} KiB without");
}

/// Memory limit of the image's container with identity on, in bytes, buffers of sockets included.
const LIMIT: u64 = 32 * 1024 * 1024;

/// Duration of each rate, in seconds.
const SECONDS: u32 = 5;

fn a_busy_node_is_served_within_its_memory() {
    // Debug builds are larger, and slower. If there are more connections than the proxy keeps, each pod continues with some.
    let (pods, connections, kept, rates, limit) = if is_full_size() {
        (PODS, 28, 8, &[10, 100, 1_000, 5_000][..], LIMIT)
    } else {
        (20, 10, 8, &[10, 200][..], 4 * LIMIT)
    };
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, pods);
    let group = Cgroup::new(Bounds { memory: Some(limit), cpu: None }).expect("groups are needed");
    let flags = google.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let with = world.proxy_in(Some(&group), &flags);
    let pods = world.pods(&mut api, pods);
    // Not in the clock tick in which the last pod began.
    pause(Duration::from_millis(100));

    let open: Vec<_> = pods.iter().map(|pod| pod.spawn(move |pod| fresh(pod, connections))).collect();
    let mut open: Vec<Vec<Kept>> = open.into_iter().map(|pod| pod.join().expect("all are answered")).collect();
    println!("{} connections of {} pods were answered", open.iter().map(Vec::len).sum::<usize>(), pods.len());
    for open in &mut open {
        open.truncate(kept);
    }
    for rate in rates {
        let each = f64::from(*rate) / f64::from(u32::try_from(pods.len()).expect("few"));
        let asking: Vec<_> =
            pods.iter().zip(open).map(|(pod, open)| pod.spawn(move |pod| keep_asking(pod, open, each))).collect();
        let asked: Vec<Asked> = asking.into_iter().map(|pod| pod.join().expect("no panic")).collect();
        let sum = |of: fn(&Asked) -> usize| asked.iter().map(of).sum::<usize>();
        let (failed, reopened) = (sum(|asked| asked.failed), sum(|asked| asked.reopened));
        let pods = pods.len();
        println!(
            "{rate} requests/s of {pods} pods on {kept} connections each: {failed} failed, {reopened} opened again"
        );
        assert_eq!(failed, 0);
        open = asked.into_iter().map(|asked| asked.open).collect();
    }
    let usage = group.usage().expect("it has a limit");
    let (all, sockets) = ((usage.peak + usage.sockets) >> 10, usage.sockets >> 10);
    println!("peak {all} KiB, of which {sockets} are buffers of sockets");
    assert_eq!(usage.killed, 0);
    assert!(usage.peak > 1 << 20, "the proxy is not in its group: {usage:?}");
    assert!(usage.peak + usage.sockets <= limit, "{usage:?}");
    drop((open, with));
}

/// Opens this number of connections, each with its first answer.
fn fresh(pod: &Pod, number: usize) -> Vec<Kept> {
    let began = Instant::now();
    let mut open = Vec::new();
    while open.len() < number {
        let mut connection = pod.connect().expect("the proxy listens");
        match pod.ask_for_token(&mut connection) {
            Told::Itself => open.push(connection),
            told => assert!(began.elapsed() < Duration::from_secs(30), "{pod}: {told:?}"),
        }
    }
    open
}

/// The results of a pod's requests.
struct Asked {
    open: Vec<Kept>,
    failed: usize,
    /// Connections that the proxy had closed because they were idle.
    reopened: usize,
}

/// Sends requests on each connection in turn, at this rate a second. On a connection that has ended since its last
/// answer it retries on a new one, as clients that keep connections do. That one must be answered.
fn keep_asking(pod: &Pod, mut open: Vec<Kept>, rate: f64) -> Asked {
    let (mut failed, mut reopened, mut turn, mut asked) = (0, 0, 0, 0.0);
    let began = Instant::now() + Duration::from_secs_f64(fastrand::f64() / rate);
    while asked < rate * f64::from(SECONDS) {
        let next = began + Duration::from_secs_f64(asked / rate);
        pause(next.saturating_duration_since(Instant::now()));
        let all = open.len();
        let connection = &mut open[turn % all];
        let mut told = pod.ask_for_token(connection);
        if matches!(told, Told::Broken(_)) {
            reopened += 1;
            *connection = pod.connect().expect("the proxy listens");
            told = pod.ask_for_token(connection);
        }
        if !matches!(told, Told::Itself) {
            failed += 1;
        }
        turn += 1;
        asked += 1.0;
    }
    let late = began.elapsed().saturating_sub(Duration::from_secs(SECONDS.into()));
    assert!(!is_full_size() || late < Duration::from_secs(1), "{pod}: {late:?} more than {SECONDS} s");
    Asked { open, failed, reopened }
}

/// The CPU time that a proxy takes while nobody asks, in milliseconds a second.
fn idle_cpu(proxy: &Proxy) -> f64 {
    let before = busy_threads(proxy);
    // Several scans.
    pause(IDLE);
    1e3 * busy_threads(proxy).saturating_sub(before).div_duration_f64(IDLE)
}

/// A process's own memory after its start, in KiB.
fn settled(proxy: &Proxy) -> u64 {
    pause(Duration::from_secs(2));
    proxy.anonymous_kib()
}
