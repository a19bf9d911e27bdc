//! The binary under stress: a stop under load, and crowds with little memory and little CPU. Hostile pods are
//! in `tests/siege`.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::{Binary, Connection, Outcome, metric, upstream};
use crate::{release, turn};

/// A value that the proxy does not cache.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Memory limit of the proxy, in bytes.
const MEMORY: u64 = 25 * 1024 * 1024;

/// Whether to run at full size instead of a size that two cores handle easily.
fn is_full_size() -> bool {
    std::env::var_os("METADATA_PROXY_FULL_SIZE").is_some()
}

/// A control group with these limits. `None`, with a message, if the machine does not support it.
fn bounded(memory: Option<u64>, cpu: Option<u32>) -> Option<Cgroup> {
    let group = Cgroup::new(Bounds { memory, cpu });
    if let Err(error) = &group {
        println!("no control group can be made here ({error}): nothing is bounded, and VmHWM is measured instead");
    }
    group.ok()
}

/// Prints the memory used and asserts that it sufficed.
fn assert_memory_sufficed(what: &str, group: Option<&Cgroup>, binary: &Binary) {
    let Some(usage) = group.and_then(Cgroup::usage) else {
        let own = binary.peak_memory().expect("it is still running");
        println!("{what}: peak {} (VmHWM, without what the kernel keeps for it)", mib(own));
        assert!(own <= MEMORY, "{what}: {}", mib(own));
        return;
    };
    println!(
        "{what}: peak {} of 25, and {} in sockets' buffers; the limit was met {} times; VmHWM {}",
        mib(usage.peak),
        mib(usage.sockets),
        usage.met,
        binary.peak_memory().map_or_else(|| "unknown, it is gone".to_owned(), mib)
    );
    assert_eq!(usage.killed, 0, "{what}: the proxy was killed for want of memory");
    // Version 1 counts socket buffers separately, version 2 counts them against the same limit.
    let all = usage.peak + usage.sockets;
    assert!(all <= MEMORY, "{what}: {}, sockets included", mib(all));
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}

/// A client that sends requests continuously on one connection and respects `Connection: close`. It ends when
/// the connection is announced to close, is closed before a request, or the time is up. Returns the number of
/// responses.
async fn diligent(addr: SocketAddr, number: u64, end: Instant) -> Result<u64, String> {
    let mut connection = Connection::open(addr).await;
    for answers in 0.. {
        if Instant::now() >= end || connection.is_closed() {
            return Ok(answers);
        }
        let target = if (number + answers).is_multiple_of(2) { TOKEN } else { LEAF };
        match connection.ask(target).await {
            Outcome::Answered(answer) if answer.status == 200 => {
                if answer.header("connection") == Some("close") {
                    return Ok(answers + 1);
                }
            }
            other => return Err(format!("client {number}, request {answers}, {target}: {other:?}")),
        }
        if number.is_multiple_of(5) {
            sleep(Duration::from_millis(20)).await;
        }
    }
    unreachable!("a number is enough for three seconds")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_no_request() {
    let _turn = turn().await;
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready_of(release(), None, mock.addr(), &[]).await;
    let end = Instant::now() + Duration::from_secs(4);
    let clients: JoinSet<_> = (0..50).map(|number| diligent(addr, number, end)).collect();
    sleep(Duration::from_millis(1500)).await;
    binary.terminate().await;
    let told = Instant::now();
    assert_eq!(binary.ended().await.code(), Some(0));
    println!("the binary ended {:?} after SIGTERM", told.elapsed());
    assert!(Instant::now() < end, "it ended before its clients did");
    let outcomes = clients.join_all().await;
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    let answers: u64 = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).sum();
    println!("{answers} answers to 50 clients");
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
}

/// Crowds by `ab` of Debian's apache2-utils.
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
    let output = output.unwrap_or_else(|error| {
        panic!("this test needs ab, which Debian has in apache2-utils (apt-get install apache2-utils): {error}")
    });
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
async fn crowd_is_served(cpu: Option<u32>, requests: u32, concurrency: u32, args: &[&str]) {
    let mock = upstream().await;
    let group = bounded(Some(MEMORY), cpu);
    let (binary, addr, metrics_addr) = Binary::ready_of(release(), group.as_ref(), mock.addr(), args).await;
    let began = Instant::now();
    let crowd = ab(addr, requests, concurrency).await;
    let what = format!(
        "ab -n {requests} -c {concurrency}, {}",
        cpu.map_or_else(|| "all the CPU".to_owned(), |share| format!("{share} ms of CPU in 100"))
    );
    let rate = crowd.report.lines().find_map(|line| line.strip_prefix("Requests per second:")).unwrap_or_default();
    let longest = crowd.report.lines().find_map(|line| line.trim().strip_prefix("100%")).unwrap_or_default();
    println!("{what}: {:?},{rate}, longest {} ms", began.elapsed(), longest.trim());
    assert_memory_sufficed(&what, group.as_ref(), &binary);
    assert_eq!((crowd.complete, crowd.failed, crowd.refused), (requests.into(), 0, 0), "{}", crowd.report);
    let sheds = metric(metrics_addr, "metadata_proxy_sheds_total{reason=\"in_flight\"}").await;
    assert_eq!(sheds, Some(0.0), "a known token needs no seat");
    drop(binary);
}

/// Runs at CI size, or at full size with `METADATA_PROXY_FULL_SIZE=1`. Crowds without a CPU limit are in
/// `tests/siege`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_on_half_a_core_and_on_three_hundredths() {
    let _turn = turn().await;
    let (half, little) = if is_full_size() { (200_000, 10_000) } else { (5_000, 1_000) };
    crowd_is_served(Some(50), half, 200, &[]).await;
    crowd_is_served(Some(3), little, 200, &[]).await;
}
