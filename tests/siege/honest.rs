//! Honest pods, with the requests of usual pods, and operators.

use std::net::SocketAddr;
use std::time::Duration;

use mock::Handle;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::scene::is_emulated;
use crate::support::request;
use crate::visit::{Pod, ask, connect, patience, visit};

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// A value that the proxy does not cache.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

/// The leaf that changes, below `/computeMetadata/v1/`.
const WATCHED: &str = "instance/attributes/honest";

/// Interval between changes of it.
const CHANGES_EVERY: Duration = Duration::from_millis(200);

/// Interval between the requests of an operator.
const OPERATOR_EVERY: Duration = Duration::from_millis(500);

/// Time after which an honest pod repeats a request on an emulated processor.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Results of the honest requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Number of requests.
    pub(crate) asked: usize,
    /// Failed requests, with their errors.
    pub(crate) failed: Vec<String>,
    /// Number of repeated requests.
    pub(crate) retried: usize,
    /// Duration of the slowest request.
    pub(crate) slowest: Duration,
    /// Target of the slowest request.
    pub(crate) slowest_asked: String,
    /// Durations of all requests.
    pub(crate) took: Vec<Duration>,
}

impl Tally {
    /// The time within which this percentage of requests was answered.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        took.get((took.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
    }

    fn count(&mut self, asked: String, took: Duration, outcome: Result<(), String>) {
        self.asked += 1;
        self.took.push(took);
        self.failed.extend(outcome.err().map(|fault| format!("{asked}: {fault}")));
        if took > self.slowest {
            self.slowest = took;
            self.slowest_asked = asked;
        }
    }
}

/// The kinds of requests of honest pods, in turn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Errand {
    /// Detects the metadata server.
    Ping,
    /// Requests a token that the proxy has cached.
    KnownToken,
    /// Requests a token that the proxy has not cached yet.
    NewScope,
    /// Reads a value that only the upstream has.
    Leaf,
    /// Waits for a change, which happens.
    Change,
}

/// All kinds.
pub(crate) const ERRANDS: &[Errand] =
    &[Errand::Ping, Errand::KnownToken, Errand::NewScope, Errand::Leaf, Errand::Change];

/// The honest clients of a test, with their requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Honest {
    /// Pods that have nothing to do with the hostile one. They send all kinds of requests.
    OtherPods,
    /// Ten pods that each request a known token every 0.2 s, half of them on kept connections.
    Steady,
    /// The hostile pod itself, which is guaranteed less: only these kinds of requests.
    SamePod(&'static [Errand]),
}

impl Honest {
    /// The kind of a request, and its source address. Each of five pods sends every kind.
    fn request(self, number: usize) -> (Errand, Pod) {
        match self {
            Self::OtherPods => {
                let pod = u8::try_from(number / ERRANDS.len() % 5 + 1).expect("small");
                (ERRANDS[number % ERRANDS.len()], Pod::honest(pod))
            }
            Self::Steady => unreachable!("these have a loop of their own"),
            Self::SamePod(errands) => (errands[number % errands.len()], Pod::HOSTILE),
        }
    }
}

impl Errand {
    fn target(self, number: usize) -> String {
        match self {
            Self::Ping => "/".to_owned(),
            Self::KnownToken => TOKEN.to_owned(),
            Self::NewScope => format!("{TOKEN}?scopes=honest-{number}"),
            Self::Leaf => LEAF.to_owned(),
            Self::Change => format!("/computeMetadata/v1/{WATCHED}?wait_for_change=true"),
        }
    }
}

/// Sends honest requests, one in each period, until the test is over. Requests do not wait for each other.
pub(crate) async fn pods(
    honest: Honest,
    mock: &Handle,
    addr: SocketAddr,
    period: Duration,
    over: &CancellationToken,
) -> Tally {
    if matches!(honest, Honest::Steady) {
        return steady(addr, over).await;
    }
    let _changing = changing(mock.clone());
    let mut every = interval(period);
    every.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    for number in 0.. {
        if over.run_until_cancelled(every.tick()).await.is_none() {
            break;
        }
        requests.spawn(errand(honest, addr, number));
    }
    let mut tally = Tally::default();
    for (asked, took, is_retried, outcome) in requests.join_all().await {
        tally.retried += usize::from(is_retried);
        tally.count(asked, took, outcome);
    }
    tally
}

/// Pods of [`Honest::Steady`].
const STEADY_PODS: u8 = 10;

/// Interval between two requests of each pod.
fn steady_every() -> Duration {
    Duration::from_millis(if is_emulated() { 1000 } else { 200 })
}

/// Maximum time that they wait for a response.
const STEADY_PATIENCE: Duration = Duration::from_secs(10);

/// Requests a known token several times on one connection.
pub(crate) async fn ask_for_token(addr: SocketAddr, times: u32) -> Result<(), String> {
    let mut stream = connect(Pod::honest(1), addr).await.map_err(|error| error.to_string())?;
    for _ in 0..times {
        ask(&mut stream, &request(TOKEN), STEADY_PATIENCE).await?;
    }
    Ok(())
}

async fn steady(addr: SocketAddr, over: &CancellationToken) -> Tally {
    let mut pods = JoinSet::new();
    for number in 1..=STEADY_PODS {
        pods.spawn(steady_pod(addr, number, over.clone()));
    }
    pods.join_all().await.into_iter().fold(Tally::default(), |mut all, one| {
        all.retried += one.retried;
        for (took, fault) in one.requests {
            all.count(format!("known token {}", all.asked), took, fault.map_or(Ok(()), Err));
        }
        all
    })
}

#[derive(Default)]
struct Steady {
    requests: Vec<(Duration, Option<String>)>,
    retried: usize,
}

async fn steady_pod(addr: SocketAddr, number: u8, over: CancellationToken) -> Steady {
    let mut told = Steady::default();
    let pod = Pod::honest(number);
    let mut kept: Option<TcpStream> = None;
    sleep(steady_every() / u32::from(STEADY_PODS) * u32::from(number)).await;
    let mut every = interval(steady_every());
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while over.run_until_cancelled(every.tick()).await.is_some() {
        let began = Instant::now();
        let mut outcome = Err("not asked".to_owned());
        if let Some(mut stream) = kept.take() {
            outcome = ask(&mut stream, &request(TOKEN), STEADY_PATIENCE).await.map(|_| kept = Some(stream));
            // The proxy may close a connection between two requests. Client libraries then open another.
            told.retried += usize::from(outcome.is_err());
        }
        if outcome.is_err() && began.elapsed() < STEADY_PATIENCE {
            outcome = async {
                let mut stream = connect(pod, addr).await.map_err(|error| error.to_string())?;
                ask(&mut stream, &request(TOKEN), STEADY_PATIENCE).await?;
                kept = number.is_multiple_of(2).then_some(stream);
                Ok(())
            }
            .await;
        }
        told.requests.push((began.elapsed(), outcome.err()));
    }
    told
}

/// Changes the watched leaf again and again, until the returned value is dropped.
fn changing(mock: Handle) -> JoinSet<()> {
    mock.set(WATCHED, "0");
    let mut task = JoinSet::new();
    task.spawn(async move {
        for change in 1_u64.. {
            sleep(CHANGES_EVERY).await;
            mock.set(WATCHED, &change.to_string());
        }
    });
    task
}

async fn errand(honest: Honest, addr: SocketAddr, number: usize) -> (String, Duration, bool, Result<(), String>) {
    let (errand, pod) = honest.request(number);
    let began = Instant::now();
    // The watch has no time limit, so a 200 means a change.
    let ask = async || visit(connect(pod, addr), &request(&errand.target(number)), patience()).await;
    let mut outcome = ask().await;
    let is_retried = outcome.is_err() && is_emulated();
    if is_retried {
        // The proxy's deadlines are in real time, and an emulated processor may miss them. Then a request is repeated
        // once, as client libraries do.
        sleep(RETRY_AFTER).await;
        outcome = ask().await;
    }
    (format!("{errand:?} {number}"), began.elapsed(), is_retried, outcome.map(drop))
}

/// Reads the operators' pages again and again until the test is over.
pub(crate) async fn operator(metrics_addr: SocketAddr, over: &CancellationToken) -> Tally {
    let mut tally = Tally::default();
    while !over.is_cancelled() {
        for page in ["/statusz", "/metrics"] {
            let began = Instant::now();
            let outcome = visit(connect(Pod::OPERATOR, metrics_addr), &request(page), patience()).await;
            tally.count(page.to_owned(), began.elapsed(), outcome.map(drop));
        }
        sleep(OPERATOR_EVERY).await;
    }
    tally
}
