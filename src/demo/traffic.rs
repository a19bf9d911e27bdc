//! The traffic of `demo --traffic`: pods, each with a loopback address, and the responses that they get.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use http_client::{ClientError, HttpClient, HttpConnector, Limits};
use mock::Handle;
use operator::check;
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR};

const DEFAULT_TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token?scopes=storage-ro";
const SECRET: &str = "/computeMetadata/v1/instance/attributes/kube-env";

/// Not cached by the proxy, so each request needs the metadata server.
const VALUE: &str = "/computeMetadata/v1/instance/cpu-platform";

/// Number of pods that start at the same moment: as many as a node may have.
const PODS: u8 = 110;

/// Number of connections that the flooding pod keeps opening, and the duration of the flood.
const FLOOD_CONNECTIONS: usize = 1_200;
const FLOOD_TIME: Duration = Duration::from_secs(5);

/// Requests of the healthy pod during the flood, and the interval between them.
const HEALTHY_REQUESTS: u32 = 100;
const HEALTHY_INTERVAL: Duration = Duration::from_millis(40);

const FLOODING_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
const HEALTHY_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 2);

/// The timeout is longer than the proxy makes any client wait.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 64 * 1024 };

/// Sends the traffic once, and prints the results as they arrive.
pub(super) async fn run(proxy: SocketAddr, mock: &Handle) {
    println!("Traffic of pods:\n");
    println!("{}", start(proxy, mock).await);
    println!("{}", secret(proxy).await);
    println!("{}", flood(proxy).await);
    println!("What `gce-metadata-proxy check` says in a pod, without its checks of the redirect:\n");
    println!("{}", check::at(proxy).await.findings_as_text());
}

/// All pods request the same new token at once.
async fn start(proxy: SocketAddr, mock: &Handle) -> String {
    // When the default token is cached, its own requests are not counted.
    let _ = get(Ipv4Addr::LOCALHOST, proxy, DEFAULT_TOKEN).await;
    mock.reset_counters();
    let mut pods = JoinSet::new();
    for pod in 1..=PODS {
        pods.spawn(async move { get(Ipv4Addr::new(127, 0, 0, pod), proxy, TOKEN).await });
    }
    let answers = pods.join_all().await;
    let served =
        answers.iter().filter(|answer| answer.as_ref().is_ok_and(|answer| answer.status() == StatusCode::OK)).count();
    let asked = mock.requests_to(DEFAULT_TOKEN);
    format!("  {PODS} pods request the same new token at once: {served} get it. Requests to the server: {asked}.")
}

/// A pod requests a secret.
async fn secret(proxy: SocketAddr) -> String {
    let outcome = match get(Ipv4Addr::LOCALHOST, proxy, SECRET).await {
        Ok(answer) => {
            format!("{}: {}", answer.status().as_u16(), String::from_utf8_lossy(answer.body()).trim_end())
        }
        Err(error) => error.to_string(),
    };
    format!("  A pod requests kube-env: {outcome}")
}

/// One pod floods the proxy; another makes its requests as usual.
async fn flood(proxy: SocketAddr) -> String {
    let mut flood = JoinSet::new();
    for _ in 0..FLOOD_CONNECTIONS {
        flood.spawn(timeout(FLOOD_TIME, async move {
            loop {
                // The next request follows, whatever the result.
                let _ = get(FLOODING_POD, proxy, VALUE).await;
                sleep(Duration::from_millis(100)).await;
            }
        }));
    }
    let (mut served, mut slowest) = (0, Duration::ZERO);
    let mut tick = interval(HEALTHY_INTERVAL);
    for number in 0..HEALTHY_REQUESTS {
        tick.tick().await;
        let began = Instant::now();
        let target = if number % 2 == 0 { TOKEN } else { VALUE };
        served +=
            u32::from(get(HEALTHY_POD, proxy, target).await.is_ok_and(|answer| answer.status() == StatusCode::OK));
        slowest = slowest.max(began.elapsed());
    }
    while flood.join_next().await.is_some() {}
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "  One pod floods the proxy with {FLOOD_CONNECTIONS} connections at once. The pod beside it:");
    let _ = writeln!(
        text,
        "  {served} of {HEALTHY_REQUESTS} requests answered, the slowest in {} ms.",
        slowest.as_millis()
    );
    text
}

/// Sends a request from this address on a new connection.
async fn get(from: Ipv4Addr, proxy: SocketAddr, target: &str) -> Result<Response<Bytes>, ClientError> {
    let mut connector = HttpConnector::new();
    connector.set_local_address(Some(from.into()));
    let request = Request::get(format!("http://{proxy}{target}"))
        .header(HOST, "metadata.google.internal")
        .header(METADATA_FLAVOR, GOOGLE)
        .body(Bytes::new())
        .expect("the targets are constants");
    HttpClient::with_idle(connector, LIMITS, 0).send(request).await
}
