//! A crowd of `ab` clients against the release binary in 25 MiB with little CPU. Crowds without a CPU limit are in
//! `tests/siege`.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, timeout};

use crate::block_on;
use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::support::{Binary, metric, release, upstream};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![a_crowd_is_served_on_half_a_core_and_on_three_hundredths];

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Memory limit of the proxy, in bytes.
const MEMORY: u64 = 25 * 1024 * 1024;

/// Prints the memory used and asserts that it sufficed.
fn assert_memory_sufficed(what: &str, group: &Cgroup, binary: &Binary) {
    let usage = group.usage().expect("the group has a memory limit");
    println!(
        "{what}: peak {} of 25, and {} in socket buffers; limit reached {} times; VmHWM {}",
        mib(usage.peak),
        mib(usage.sockets),
        usage.met,
        binary.peak_memory().map_or_else(|| "unknown, the process is gone".to_owned(), mib)
    );
    assert_eq!(usage.killed, 0, "{what}: the proxy was killed for lack of memory");
    // Version 1 counts socket buffers separately, version 2 counts them against the same limit.
    let all = usage.peak + usage.sockets;
    assert!(all <= MEMORY, "{what}: {}, sockets included", mib(all));
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}

/// The report of `ab`.
struct Crowd {
    complete: u64,
    failed: u64,
    refused: u64,
    report: String,
}

async fn ab(addr: SocketAddr, requests: u32, concurrency: u32) -> Crowd {
    let url = format!("http://{addr}{TOKEN}");
    let mut ab = Command::new("ab");
    ab.args(["-q", "-n", &requests.to_string(), "-c", &concurrency.to_string(), "-s", "30"]);
    ab.args(["-H", "Metadata-Flavor: Google", &url]).kill_on_drop(true);
    let output = timeout(Duration::from_secs(120), ab.output()).await.expect("ab ends in time");
    let output = output.expect("ab can be run");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ab -n {requests} -c {concurrency} gave up: {complaint}{report}");
    let number = |name: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |rest| rest.trim().split(' ').next().and_then(|text| text.parse().ok()).expect("a number"))
    };
    let (complete, failed, refused) =
        (number("Complete requests:"), number("Failed requests:"), number("Non-2xx responses:"));
    Crowd { complete, failed, refused, report }
}

/// Runs a crowd against a binary with 25 MiB and this many milliseconds of CPU per 100.
async fn crowd_is_served(cpu: u32, requests: u32, concurrency: u32) {
    let mock = upstream().await;
    let group = Cgroup::new(Bounds { memory: Some(MEMORY), cpu: Some(cpu) }).expect("control groups are writable");
    let (binary, addr, metrics_addr) = Binary::ready_of(release(), Some(&group), mock.addr(), &[]).await;
    let began = Instant::now();
    let crowd = ab(addr, requests, concurrency).await;
    let what = format!("ab -n {requests} -c {concurrency}, {cpu} ms of CPU in 100");
    let rate = crowd.report.lines().find_map(|line| line.strip_prefix("Requests per second:")).unwrap_or_default();
    let longest = crowd.report.lines().find_map(|line| line.trim().strip_prefix("100%")).unwrap_or_default();
    println!("{what}: {:?},{rate}, longest {} ms", began.elapsed(), longest.trim());
    assert_memory_sufficed(&what, &group, &binary);
    assert_eq!((crowd.complete, crowd.failed, crowd.refused), (requests.into(), 0, 0), "{}", crowd.report);
    let sheds = metric(metrics_addr, "metadata_proxy_sheds_total{reason=\"in_flight\"}").await;
    assert_eq!(sheds, Some(0.0), "a known token needs no seat");
    drop(binary);
}

/// Runs at CI size, or at full size with `METADATA_PROXY_FULL_SIZE=1`.
fn a_crowd_is_served_on_half_a_core_and_on_three_hundredths() {
    let (half, little) = if is_full_size() { (200_000, 10_000) } else { (5_000, 1_000) };
    block_on(async {
        crowd_is_served(50, half, 200).await;
        crowd_is_served(3, little, 200).await;
    });
}
