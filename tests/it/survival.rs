//! What the binary lives through: a stop under load, floods, and crowds on little memory and little CPU.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gce_metadata_proxy::mock::Mock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::overload::turn;
use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::{Binary, Connection, Outcome, ask, metric, request};

/// Not one of the values that the proxy knows by itself.
const LEAF: &str = "/computeMetadata/v1/instance/machine-type";

const ZONE: &str = "/computeMetadata/v1/instance/zone";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

const LARGE: &str = "/computeMetadata/v1/instance/attributes/large";

/// What the proxy is to live on.
const MEMORY: u64 = 25 * 1024 * 1024;

/// Asks for everything at the size that the issue names, instead of at one that two cores do in passing.
fn is_full_size() -> bool {
    std::env::var_os("METADATA_PROXY_FULL_SIZE").is_some()
}

/// A control group with these bounds; where the machine has none, none, and a word about it.
fn bounded(memory: Option<u64>, cpu: Option<u32>) -> Option<Cgroup> {
    let group = Cgroup::new(Bounds { memory, cpu });
    if let Err(error) = &group {
        println!("no control group can be made here ({error}): nothing is bounded, and VmHWM is measured instead");
    }
    group.ok()
}

/// Says what memory was used, and asserts that it was enough.
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
    assert!(usage.peak <= MEMORY, "{what}: {}", mib(usage.peak));
    // Version 1 counts sockets' buffers apart. Version 2 counts them too, and takes them back from sockets before it kills.
    assert!(usage.sockets <= MEMORY, "{what}: {} in sockets' buffers", mib(usage.sockets));
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}

/// A client that asks again and again on one connection, and knows that `Connection: close` is its cue. It ends when it is
/// told that the connection closes, finds it closed before it asks, or the time is up; returns how many answers it had.
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
    let mock = Mock::start().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
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

/// A crowd in front of a binary on 25 MiB and so many milliseconds of CPU in every 100.
async fn crowd_is_served(cpu: Option<u32>, requests: u32, concurrency: u32, args: &[&str]) {
    let mock = Mock::start().await;
    let group = bounded(Some(MEMORY), cpu);
    let (binary, addr, metrics_addr) = Binary::ready(group.as_ref(), mock.addr(), args).await;
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

/// In CI size; with `METADATA_PROXY_FULL_SIZE=1`, here and below, at the size that the issue names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_two_hundred_is_served_in_25_mib() {
    let _turn = turn().await;
    crowd_is_served(None, if is_full_size() { 200_000 } else { 20_000 }, 200, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_a_thousand_is_served_in_25_mib() {
    let _turn = turn().await;
    crowd_is_served(None, if is_full_size() { 200_000 } else { 10_000 }, 1000, &["--max-connections=2000"]).await;
    if is_full_size() {
        crowd_is_served(None, 200_000, 3000, &["--max-connections=4000"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_on_half_a_core_and_on_three_hundredths() {
    let _turn = turn().await;
    let (half, little) = if is_full_size() { (200_000, 10_000) } else { (5_000, 1_000) };
    crowd_is_served(Some(50), half, 200, &[]).await;
    crowd_is_served(Some(3), little, 200, &[]).await;
}

/// The ways to be a burden.
#[derive(Debug, Clone, Copy)]
enum Burden {
    /// Connects and says nothing.
    Silent,
    /// Sends its head a byte at a time.
    Trickling,
    /// Sends a head that does not end.
    Endless,
    /// Asks for something large and does not read it.
    NotReading,
    /// The same with a window of a few KiB.
    NotReadingNarrow,
}

const BURDENS: [Burden; 5] =
    [Burden::Silent, Burden::Trickling, Burden::Endless, Burden::NotReading, Burden::NotReadingNarrow];

/// Who is a burden.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The honest client's own pod.
    SamePod,
    /// So many others.
    OtherPods(u8),
}

impl Source {
    /// The address of one of them.
    fn address(self, number: u64) -> Ipv4Addr {
        match self {
            Self::SamePod => Ipv4Addr::LOCALHOST,
            Self::OtherPods(pods) => {
                Ipv4Addr::new(127, 0, 1, u8::try_from(number % u64::from(pods)).expect("less than pods"))
            }
        }
    }
}

impl Burden {
    /// Is one, and when it is closed another, for as long as it is polled.
    async fn last(self, addr: SocketAddr, source: Source, number: u64, pause: Duration) {
        sleep(Duration::from_millis(number % 1000)).await;
        loop {
            // Whatever ends it, the next begins; a busy port is not this task's concern.
            let _ = self.once(addr, source.address(number), pause).await;
            sleep(Duration::from_millis(1000 + number % 1000)).await;
        }
    }

    async fn once(self, addr: SocketAddr, source: Ipv4Addr, pause: Duration) -> std::io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        if matches!(self, Self::NotReadingNarrow) {
            socket.set_recv_buffer_size(4096)?;
        }
        let mut stream = socket.connect(addr).await?;
        match self {
            Self::Silent => drop(stream.read_u8().await?),
            Self::Trickling => {
                for byte in request(LEAF).bytes().cycle() {
                    send_unless_closed(&mut stream, &[byte], pause).await?;
                }
            }
            Self::Endless => {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: metadata\r\n").await?;
                let header = format!("X-Padding: {}\r\n", "x".repeat(900));
                loop {
                    send_unless_closed(&mut stream, header.as_bytes(), pause).await?;
                }
            }
            Self::NotReading | Self::NotReadingNarrow => {
                // Three in a row: more than the kernel takes off the proxy's hands.
                stream.write_all(request(LARGE).repeat(3).as_bytes()).await?;
                loop {
                    sleep(pause).await;
                    // Only so that a closed connection is noticed.
                    if stream.try_write(b"").is_err() || stream.take_error()?.is_some() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Sends a piece, and reads during the pause that follows: an end there is the connection's.
async fn send_unless_closed(stream: &mut TcpStream, piece: &[u8], pause: Duration) -> std::io::Result<()> {
    stream.write_all(piece).await?;
    match timeout(pause, stream.read_u8()).await {
        Err(_) => Ok(()),
        Ok(Ok(_)) => Err(std::io::ErrorKind::ConnectionAborted.into()),
        Ok(Err(error)) => Err(error),
    }
}

/// 50 requests a second until the time is up, each on a connection of its own, whatever became of those before: how many
/// there were, those that failed, and the slowest.
async fn honest(addr: SocketAddr, targets: &[&'static str], end: Instant) -> (u64, Vec<String>, Duration) {
    let mut every = interval(Duration::from_millis(20));
    every.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    for (number, target) in (0..).zip(targets.iter().copied().cycle()) {
        if every.tick().await >= end {
            break;
        }
        requests.spawn(async move {
            let began = Instant::now();
            let outcome = ask(addr, target).await;
            (began.elapsed(), (!outcome.is_status(200)).then(|| format!("{target} at {number}: {outcome:?}")))
        });
    }
    let (took, failed): (Vec<_>, Vec<_>) = requests.join_all().await.into_iter().unzip();
    let asked = u64::try_from(took.len()).expect("a small number");
    (asked, failed.into_iter().flatten().collect(), took.into_iter().max().unwrap_or_default())
}

/// An honest client among so many connections that are a burden in these ways, in turn.
async fn honest_is_served_among(
    burdens: &[Burden],
    source: Source,
    targets: &[&'static str],
    (connections, time): (u64, Duration),
) {
    let mock = Mock::start().await;
    mock.set("instance/attributes/large", &"0123456789abcdef".repeat(16 * 1024 - 1));
    let group = bounded(Some(MEMORY), None);
    let (binary, addr, metrics_addr) = Binary::ready(group.as_ref(), mock.addr(), &[]).await;
    let mut flood = JoinSet::new();
    for (number, burden) in (0..connections).zip(burdens.iter().cycle()) {
        flood.spawn(burden.last(addr, source, number, time / 4));
    }
    let (asked, failed, slowest) = honest(addr, targets, Instant::now() + time).await;
    let what = format!("{connections} connections of {source:?} that are {burdens:?} for {time:?}");
    println!("{what}: {asked} honest requests, {} failed, the slowest took {slowest:?}", failed.len());
    // A page that cannot be had is shown by what is asserted next.
    if let Outcome::Answered(page) = ask(metrics_addr, "/metrics").await {
        let counts = page.body.lines().filter(|line| line.contains("sheds_total{") || line.contains("connections"));
        println!("{}", counts.filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"));
    }
    assert_memory_sufficed(&what, group.as_ref(), &binary);
    assert!(failed.is_empty(), "{what}: {} of {asked} failed, as {:?}", failed.len(), &failed[..failed.len().min(5)]);
}

/// The size for CI, and with `METADATA_PROXY_FULL_SIZE=1` the issue's:
/// `METADATA_PROXY_FULL_SIZE=1 cargo test --release --test it survival -- --nocapture`
fn flood_size(connections: u64, seconds: u64) -> (u64, Duration) {
    let (connections, seconds) = if is_full_size() { (10_000, 30) } else { (connections, seconds) };
    (connections, Duration::from_secs(seconds))
}

/// So an honest pod's share is 19 of the 200 seats, i.e. a second's worth of what it asks for.
const FLOODERS: Source = Source::OtherPods(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_is_served_through_other_pods_flood_of_all_kinds_in_25_mib() {
    let _turn = turn().await;
    honest_is_served_among(&BURDENS, FLOODERS, &[TOKEN, LEAF, ZONE], flood_size(2000, 6)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_is_served_among_other_pods_that_ask_and_do_not_read_in_25_mib() {
    let _turn = turn().await;
    let not_reading = [Burden::NotReading, Burden::NotReadingNarrow];
    honest_is_served_among(&not_reading, FLOODERS, &[TOKEN, LEAF, ZONE], flood_size(500, 4)).await;
}

/// Those that ask for large answers take seats like anybody, so what needs one may be refused to the pod that they are of;
/// what is known is served even there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_is_served_through_its_own_pods_flood_of_all_kinds_in_25_mib() {
    let _turn = turn().await;
    honest_is_served_among(&BURDENS, Source::SamePod, &[TOKEN, ZONE], flood_size(2000, 6)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_is_served_among_its_own_pods_heads_that_do_not_end_in_25_mib() {
    let _turn = turn().await;
    let slow = [Burden::Silent, Burden::Trickling, Burden::Endless];
    honest_is_served_among(&slow, Source::SamePod, &[TOKEN, LEAF, ZONE], flood_size(2000, 4)).await;
}
