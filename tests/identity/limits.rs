//! Identity under the manifests' limit on CPU time: a throttled process sleeps most of the time.

use std::io::ErrorKind;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use mock::google::Endpoint;
use tokio::time::Instant;

use crate::google::{Cloud, world_with_google};
use crate::kube::pause;
use crate::namespace::Kept;
use crate::pod::{Pod, Told};
use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::world::{Proxy, World};

pub const TESTS: &[Test] = tests![
    a_herd_is_answered_under_the_limit_of_the_manifests,
    pods_that_open_a_connection_for_each_request_are_answered,
];

/// The limits of the manifest with identity on.
pub fn of_manifest() -> Bounds {
    let manifest = include_str!("../../deploy/components/identity/daemonset.yaml");
    let (_, limits) = manifest.split_once("limits:\n").expect("it sets limits");
    let limit = |name: &str, unit: &str| -> u32 {
        let line = limits.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_suffix(unit));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no limit {name} in {unit}"))
    };
    let (thousandths, mebibytes) = (limit("cpu:", "m"), limit("memory:", "Mi"));
    Bounds { memory: Some(u64::from(mebibytes) << 20), cpu: Some(thousandths / 10) }
}

/// Pods of a full node.
const PODS: u8 = 110;

/// Connections that each pod opens at once.
const CONNECTIONS: usize = 5;

/// Time from which on an answer is late.
const LATE: Duration = Duration::from_millis(2500);

/// The CPU limit of the manifest. A debug build needs more time for the same.
pub fn bounds() -> Bounds {
    let cpu = of_manifest().cpu.map(|milliseconds| if is_full_size() { milliseconds } else { 3 * milliseconds });
    Bounds { memory: None, cpu }
}

fn a_herd_is_answered_under_the_limit_of_the_manifests() {
    let runs = if is_full_size() { 5 } else { 1 };
    let (world, mut api, google) = world_with_google();
    (0..PODS).for_each(|number| api.create_account("team-0", &format!("app-{number}")));
    let pods = world.pods(&mut api, PODS);
    let flags = google.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // Without a limit on CPU, more connections are open at once.
    for bounds in [bounds(), Bounds { memory: None, cpu: None }] {
        let bounds = Bounds { memory: of_manifest().memory, ..bounds };
        println!("{bounds:?}");
        a_herd_is_answered(runs, bounds, &pods, |group| world.proxy_in(Some(group), &flags), &google);
    }
}

fn a_herd_is_answered(
    runs: usize,
    bounds: Bounds,
    pods: &[Arc<Pod>],
    start: impl Fn(&Cgroup) -> Proxy,
    google: &Cloud,
) {
    let group = Cgroup::new(bounds).expect("groups are needed");
    let (mut failed, mut exchanges) = (Vec::new(), Vec::new());
    for run in 0..runs {
        let before = google.count(Endpoint::Sts);
        let _proxy = start(&group);
        for herd in ["cold", "warm", "warm again"] {
            let answers = herd_of(pods, Pod::ask_for_token);
            let slowest = answers.iter().map(|(_, time)| *time).max().unwrap_or_default();
            let late = answers.iter().filter(|(_, time)| *time > LATE).count();
            let others: Vec<_> = answers.iter().filter(|(told, _)| !matches!(told, Told::Itself)).collect();
            println!(
                "run {run}, {herd}: {} of {} not answered, {late} late, the slowest after {slowest:.1?}",
                others.len(),
                answers.len()
            );
            failed.extend(others.iter().map(|(told, time)| format!("run {run}, {herd}: {told:?} after {time:.1?}")));
            assert!(!is_full_size() || late == 0, "{late} answers took longer than {LATE:?}");
        }
        exchanges.push(google.count(Endpoint::Sts) - before);
    }
    let usage = group.usage().expect("the group tells");
    println!("peak {} KiB", usage.peak >> 10);
    assert_eq!(usage.killed, 0, "for want of memory");
    assert!(failed.is_empty(), "{} not answered, as {:#?}", failed.len(), &failed[..failed.len().min(5)]);
    assert!(exchanges.iter().all(|number| *number == pods.len() as u64), "one for each account: {exchanges:?}");
}

/// Lets all pods open their connections at once. Returns their answers, and the time of each.
fn herd_of(pods: &[Arc<Pod>], request: fn(&Pod, &mut Kept) -> Told) -> Vec<(Told, Duration)> {
    let ready = Arc::new(Barrier::new(pods.len() * CONNECTIONS));
    let ask = |pod: &Arc<Pod>| {
        let ready = Arc::clone(&ready);
        pod.spawn(move |pod| {
            ready.wait();
            let began = Instant::now();
            let told = pod.connect().map(|mut connection| request(pod, &mut connection));
            (told.unwrap_or(Told::Broken(ErrorKind::ConnectionRefused)), began.elapsed())
        })
    };
    let asking: Vec<_> = pods.iter().flat_map(|pod| [(); CONNECTIONS].map(|()| ask(pod))).collect();
    let answers = asking.into_iter().map(|client| client.join().expect("no panic")).collect();
    // Lets the throttled process catch up.
    pause(Duration::from_secs(1));
    answers
}

/// Average interval between the requests of each of these pods, and the duration of the load.
const GAP: Duration = Duration::from_millis(500);
const ASKING: Duration = Duration::from_secs(6);

/// Of 100 answers to known pods, 99 must come within this time.
const MOST: Duration = Duration::from_millis(250);

fn pods_that_open_a_connection_for_each_request_are_answered() {
    let (world, mut api) = World::with_account();
    let pods: Vec<Arc<Pod>> =
        (0..20).map(|number| world.pod(&mut api, &format!("pod-{number}"), world.address(number))).collect();
    let group = Cgroup::new(bounds()).expect("groups are needed");
    let _proxy = world.proxy_in(Some(&group), &[]);
    herd_of(&pods, Pod::ask);
    let asking: Vec<_> = pods.iter().map(|pod| pod.spawn(ask_anew_and_again)).collect();
    let answers: Vec<_> = asking.into_iter().flat_map(|pod| pod.join().expect("no panic")).collect();
    let mut times: Vec<Duration> = answers.iter().map(|(_, time)| *time).collect();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    let (number, p99) = (times.len(), at(99));
    println!("{number} new connections of pods that are known: p50 {:.1?}, p99 {p99:.1?}, {:.1?}", at(50), at(100));
    let failed: Vec<_> = answers.iter().filter(|(told, _)| !matches!(told, Told::Itself)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(!is_full_size() || p99 <= MOST, "the 99th of 100 answers took {p99:?}");
}

/// Opens a connection for each request of a pod. Returns the answers, and the time of each.
fn ask_anew_and_again(pod: &Pod) -> Vec<(Told, Duration)> {
    let (mut answers, end) = (Vec::new(), Instant::now() + ASKING);
    while Instant::now() < end {
        pause(GAP.mul_f64(fastrand::f64() * 2.0));
        let began = Instant::now();
        let told = pod.connect().map(|mut connection| pod.ask(&mut connection));
        answers.push((told.unwrap_or(Told::Broken(ErrorKind::ConnectionRefused)), began.elapsed()));
    }
    answers
}
