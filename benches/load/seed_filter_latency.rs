//! Cost of each filter under increasing load: up to 3,000 requests in flight in steps of 300, with upstream
//! responses delayed by a second, as Kubernetes measured its fairness filter.
//!
//! `cargo bench --bench seed_filter_latency` runs the real binary as a process, reads its own histogram after
//! each step, prints the quantiles at rest and at every step, plots them to `target/seed_filter_latency.svg`,
//! and fails if a filter misses the goal: p99 below 100 us, and less than 50 us more at the peak than at rest.
//! It takes two minutes. `SEED_STEP_SECONDS` changes the length of the steps.

#![allow(clippy::cast_precision_loss, reason = "numbers of requests are small")]

use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mock::{Fault, Mock};
use telemetry::histogram::{Snapshot, WORK_BOUNDS};
use telemetry::labels::Label;
use telemetry::latency::Filter;
use tokio::net::TcpStream;
use tokio::time::sleep;

const STEPS: usize = 10;
const STEP_REQUESTS: usize = 300;

/// Requests in flight at rest.
const REST_REQUESTS: usize = 30;

const UPSTREAM_DELAY: Duration = Duration::from_secs(1);
const MAX_P99: Duration = Duration::from_micros(100);
const MAX_P99_RISE: Duration = Duration::from_micros(50);

type Failure = Box<dyn Error + Send + Sync>;

/// Measurements of one step.
struct Sample {
    in_flight: f64,
    requests: u64,
    filters: Vec<(Duration, Duration)>,
}

/// The running binary and its addresses. Killed on drop.
struct Proxy {
    child: Child,
    addr: SocketAddr,
    metrics_addr: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("seed_filter_latency: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<bool, Failure> {
    gce_metadata_proxy::app::allow_files(u64::MAX)?;
    let step = std::env::var("SEED_STEP_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(8);
    let step = Duration::from_secs(step);
    let mock = Mock::start().await;
    let proxy = start(mock.addr())?;
    while get(proxy.metrics_addr, "/readyz").await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
    mock.fault(Fault::Delay(UPSTREAM_DELAY));

    let mut seen = Vec::new();
    add_clients(proxy.addr, REST_REQUESTS);
    seen.push(watch(&proxy, 2 * step).await?);
    for number in 1..=STEPS {
        add_clients(proxy.addr, if number == 1 { STEP_REQUESTS - REST_REQUESTS } else { STEP_REQUESTS });
        seen.push(watch(&proxy, step).await?);
    }
    let is_met = report(&seen);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/seed_filter_latency.svg");
    std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/target"))?;
    std::fs::write(file, draw(&seen)?)?;
    println!("\nchart: {file}");
    Ok(is_met)
}

fn start(upstream: SocketAddr) -> Result<Proxy, Failure> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"))
        .args(["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--max-in-flight=4000", "--max-connections=4000"])
        .args(["--upstream", &format!("http://{upstream}")])
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut addr_after = |what: &str| -> Result<SocketAddr, Failure> {
        loop {
            let line = lines.next().ok_or("the proxy ended")??;
            if let (true, Some((_, addr))) = (line.contains(what), line.rsplit_once("addr=")) {
                return Ok(addr.trim().parse()?);
            }
        }
    };
    let (metrics_addr, addr) = (addr_after("serving operators")?, addr_after("serving pods")?);
    // Its other lines are not needed, but a full pipe would block it.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(Proxy { child, addr, metrics_addr })
}

/// Starts clients that send requests continuously, each on its own connection.
fn add_clients(addr: SocketAddr, number: usize) {
    for client in 0..number {
        tokio::spawn(async move {
            // Starts are spread over the delay, so that the requests do not stay synchronised.
            sleep(UPSTREAM_DELAY.mul_f64(client as f64 / number as f64)).await;
            if let Err(error) = send_requests(addr).await {
                eprintln!("a client gave up: {error}");
            }
        });
    }
}

async fn send_requests(addr: SocketAddr) -> Result<(), Failure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(TcpStream::connect(addr).await?)).await?;
    tokio::spawn(connection);
    loop {
        let request = http::Request::get("/computeMetadata/v1/instance/cpu-platform")
            .header("host", "metadata.google.internal")
            .header("metadata-flavor", "Google")
            .body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        if answer.status() != http::StatusCode::OK {
            return Err(format!("answered {}", answer.status()).into());
        }
        answer.into_body().collect().await?;
        sender.ready().await?;
    }
}

async fn get(addr: SocketAddr, path: &str) -> Result<String, Failure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(TcpStream::connect(addr).await?)).await?;
    tokio::spawn(connection);
    let request = http::Request::get(path).header("host", "localhost").body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    if !answer.status().is_success() {
        return Err(format!("{path} answered {}", answer.status()).into());
    }
    Ok(String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?)
}

/// The proxy's metrics from when the load has settled until the end of a step.
async fn watch(proxy: &Proxy, step: Duration) -> Result<Sample, Failure> {
    let settling = UPSTREAM_DELAY + UPSTREAM_DELAY / 2;
    sleep(settling).await;
    let before = get(proxy.metrics_addr, "/metrics").await?;
    sleep(step.saturating_sub(settling)).await;
    let after = get(proxy.metrics_addr, "/metrics").await?;
    let quantiles = |filter: Filter| {
        let seen = filter_work(&after, filter).since(&filter_work(&before, filter));
        let quantile = |share| seen.quantile(share).unwrap_or_default();
        (quantile(0.5), quantile(0.99))
    };
    let in_flight = after.lines().find_map(|line| line.strip_prefix("metadata_proxy_in_flight ")?.parse().ok());
    let forwarded = filter_work(&after, Filter::Forward).since(&filter_work(&before, Filter::Forward));
    let seen = Sample {
        in_flight: in_flight.ok_or("the number of requests in flight is missing")?,
        requests: forwarded.count(),
        filters: Filter::ALL.map(quantiles).into(),
    };
    eprintln!("{:>5} in flight, {} requests", seen.in_flight, seen.requests);
    Ok(seen)
}

/// A filter's histogram on a metrics page, summed over all outcomes.
fn filter_work(page: &str, filter: Filter) -> Snapshot {
    let mut all = Snapshot::empty(&WORK_BOUNDS);
    let named = format!("filter=\"{}\"", filter.label());
    let mut bucket = 0;
    let mut below = 0;
    for line in page.lines().filter(|line| line.starts_with("metadata_proxy_request_filter_duration_seconds_bucket{")) {
        if !line.contains(&named) {
            continue;
        }
        let count: u64 = line.rsplit_once(' ').and_then(|(_, count)| count.parse().ok()).expect("a count");
        all.counts[bucket] += count - below;
        // The buckets of a series are in order, with the unbounded one last.
        (bucket, below) = if bucket == WORK_BOUNDS.len() { (0, 0) } else { (bucket + 1, count) };
    }
    all
}

fn report(seen: &[Sample]) -> bool {
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    let (rest, peak) = (&seen[0], &seen[seen.len() - 1]);
    println!(
        "\nwhat each filter does itself, in us; {} requests in flight at rest, {} at the peak",
        rest.in_flight, peak.in_flight
    );
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "filter", "rest p50", "rest p99", "peak p50", "peak p99", "rise p99"
    );
    let mut is_met = peak.in_flight > (STEPS * STEP_REQUESTS) as f64 * 0.95;
    for filter in Filter::without_identity() {
        let ((rest50, rest99), (peak50, peak99)) = (rest.filters[filter.index()], peak.filters[filter.index()]);
        let rise = micros(peak99) - micros(rest99);
        println!(
            "{:<12} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>+9.2}",
            filter.label(),
            micros(rest50),
            micros(rest99),
            micros(peak50),
            micros(peak99),
            rise
        );
        is_met &= peak99 < MAX_P99 && peak99.saturating_sub(rest99) < MAX_P99_RISE;
    }
    println!(
        "goal: p99 below {} us, rise below {} us: {}",
        MAX_P99.as_micros(),
        MAX_P99_RISE.as_micros(),
        if is_met { "met" } else { "MISSED" }
    );
    is_met
}

/// p99 of each filter over the number of requests in flight, from 100 ns to 1 ms on a logarithmic scale.
fn draw(seen: &[Sample]) -> Result<String, std::fmt::Error> {
    const COLOURS: [&str; 8] = ["#2a78b8", "#b86e00", "#1a7f4b", "#b3261e", "#7a4fb5", "#8a5a44", "#c2478f", "#5b6570"];
    let x = |in_flight: f64| 60.0 + in_flight / (STEPS * STEP_REQUESTS) as f64 * 560.0;
    let y = |seconds: f64| 330.0 - (seconds.max(1e-7).log10() + 7.0) / 4.0 * 300.0;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 380\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"760\" height=\"380\" fill=\"#fff\"/>\
         <text x=\"60\" y=\"18\">p99 of what each filter does itself, over requests in flight</text>",
    );
    for (seconds, name) in [(1e-7, "100 ns"), (1e-6, "1 us"), (1e-5, "10 us"), (1e-4, "100 us"), (1e-3, "1 ms")] {
        let dash = if seconds > 5e-5 && seconds < 5e-4 { " stroke-dasharray=\"6 4\" stroke-width=\"2\"" } else { "" };
        let y = y(seconds);
        write!(
            svg,
            "<path d=\"M60 {y:.1}H620\" stroke=\"#ccc\"{dash}/><text x=\"54\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            y + 4.0
        )?;
    }
    for step in (0..=STEPS).step_by(2) {
        let in_flight = (step * STEP_REQUESTS) as f64;
        write!(svg, "<text x=\"{:.1}\" y=\"350\" text-anchor=\"middle\">{in_flight}</text>", x(in_flight))?;
    }
    svg.push_str(
        "<text x=\"340\" y=\"372\" text-anchor=\"middle\">requests in flight (the goal is the dashed line)</text>",
    );
    for (filter, colour) in Filter::without_identity().zip(COLOURS.iter().cycle()) {
        let points = seen.iter().map(|seen| (x(seen.in_flight), y(seen.filters[filter.index()].1.as_secs_f64())));
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let row = 40.0 + filter.index() as f64 * 20.0;
        write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"640\" y=\"{row}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            filter.label()
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
