//! The pages for people (`/statusz`, `/flagz`, `/loglevel`), and the log lines.

use gce_metadata_proxy::config::Config;
use mock::Fault;
use serde_json::Value;
use telemetry::labels::Label;
use telemetry::latency::Filter;

use crate::support::{Answer, Binary, Connection, Proxy, config, get, metric_becomes, raw, upstream};

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Some traffic of each kind: tokens, a value, a refusal, and a name that contains markup.
async fn some_traffic(proxy: &Proxy) {
    for _ in 0..3 {
        get(proxy.addr, TOKEN).await;
    }
    get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
    get(proxy.addr, "/computeMetadata/v1/instance/attributes/kube-env").await;
    get(proxy.addr, &format!("{TOKEN}?scopes=%3Cscript%3Ealert(1)%3C/script%3E")).await;
}

async fn status(proxy: &Proxy) -> Value {
    let answer = get(proxy.metrics_addr, "/statusz?format=json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    serde_json::from_str(&answer.body).expect("JSON")
}

#[tokio::test]
async fn the_page_tells_all_and_needs_nothing_from_elsewhere() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    some_traffic(&proxy).await;
    let answer = get(proxy.metrics_addr, "/statusz").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(answer.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'")));
    let page = &answer.body;
    let version = format!("gce-metadata-proxy {}", env!("CARGO_PKG_VERSION"));
    let upstream = mock.addr().to_string();
    let told = ["ready", &version, "compat", "--max-in-flight", "concealed", "127.0.0.1", "default", &upstream, "<svg"];
    for told in told.into_iter().chain(Filter::ALL.map(Label::label)) {
        assert!(page.contains(told), "{told} is missing from\n{page}");
    }
    assert_eq!(page.matches("<svg").count(), Filter::ALL.len());
    assert!(page.contains("&lt;script&gt;alert(1)"), "what pods write is text");
    for foreign in ["<script", "src=", "http://", "https://", "@import", "url("] {
        let places: Vec<_> = page.match_indices(foreign).map(|(at, _)| &page[at..page.len().min(at + 60)]).collect();
        // Flags are shown as they were passed: --upstream, --sts-endpoint and --iam-endpoint.
        let flags = [upstream.as_str(), "https://sts.googleapis.com<", "https://iamcredentials.googleapis.com<"];
        let is_flag = |place: &&str| flags.iter().any(|flag| place.contains(flag));
        assert!(places.iter().all(is_flag), "{foreign} is in the page: {places:?}");
    }
    assert!(!page.contains("ya29."), "a token is shown");
    proxy.stop().await;
}

#[tokio::test]
async fn the_data_is_that_of_the_page() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    some_traffic(&proxy).await;
    let status = status(&proxy).await;
    assert_eq!(status["readiness"]["status"], "ready");
    assert_eq!(status["policy"]["name"], "compat");
    let filters = status["filters"].as_array().expect("a list");
    let names: Vec<_> = filters.iter().map(|filter| filter["filter"].as_str().expect("a name")).collect();
    assert_eq!(names, Filter::ALL.map(Label::label));
    // Pods have no identities here.
    let asked: Vec<_> = Filter::without_identity().map(Label::label).collect();
    for filter in filters.iter().filter(|filter| asked.iter().any(|name| filter["filter"] == *name)) {
        assert!(filter["work"]["p99"].as_f64().is_some_and(|seconds| seconds > 0.0), "{filter}");
        assert!(filter["course"].as_array().is_some_and(|course| !course.is_empty()), "{filter}");
    }
    let forward = filters.last().expect("the innermost");
    assert_eq!(forward["waited"], forward["requests"], "the metadata server is always waited for");
    let tokens = status["tokens"].as_array().expect("a list");
    assert_eq!((tokens[0]["account"].as_str(), tokens[0]["kind"].as_str()), (Some("default"), Some("access")));
    // The warmup sent one request.
    assert_eq!(tokens[0]["requests"], 4);
    assert!(tokens[0]["expires_in_seconds"].as_u64().is_some_and(|left| left > 3000), "{tokens:?}");
    assert_eq!(tokens[1]["parameters"], "scopes=<script>alert(1)</script>");
    let talker = &status["talkers"][0];
    assert_eq!((talker["address"].as_str(), talker["requests"].as_u64()), (Some("127.0.0.1"), Some(6)));
    assert_eq!(talker["refusals"], 1);
    assert!(!status.to_string().contains("ya29."), "a token is shown");
    mock.fault(Fault::Reset);
    get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
    let status = self::status(&proxy).await;
    assert_eq!(status["readiness"]["status"], "degraded");
    assert!(status["upstream"]["failure"].is_string(), "{status}");
    proxy.stop().await;
}

/// A pod fills the token cache with the largest possible keys, made of the characters that take most space in HTML.
#[tokio::test]
async fn the_page_stays_small_however_much_is_cached() {
    let (_mock, proxy) = Proxy::of_a_mock().await;
    let before = get(proxy.metrics_addr, "/statusz").await.body.len();
    let mut pod = Connection::open(proxy.addr).await;
    for n in 100..400 {
        let scopes = format!("{n}{}", "'".repeat(2600));
        assert!(pod.ask(&format!("{TOKEN}?scopes={scopes}")).await.is_status(200), "{n}");
    }
    // The most requested one is shown first.
    let often = format!("{TOKEN}?scopes={}{}", "often", "'".repeat(2600));
    for _ in 0..3 {
        assert!(pod.ask(&often).await.is_status(200));
    }
    let page = get(proxy.metrics_addr, "/statusz").await.body;
    let grown = page.len() - before;
    assert!(grown < 64 * 1024, "{grown} bytes for the cache");
    let status = status(&proxy).await;
    let tokens = status["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 50);
    let parameters = |at: usize| tokens[at]["parameters"].as_str().expect("text");
    assert!(parameters(0).starts_with("scopes=often"), "{}", parameters(0));
    assert!((0..50).all(|at| parameters(at).chars().count() <= 101));
    let others = status["tokens_not_shown"].as_u64().expect("a number");
    assert!((50..300).contains(&others), "{others}");
    assert!(page.contains(&format!("and {others} more")));
    proxy.stop().await;
}

#[tokio::test]
async fn a_shed_is_seen_on_the_page_with_the_pod_that_caused_it() {
    let mock = upstream().await;
    let mut config = config(mock.addr());
    config.max_in_flight = 1;
    let proxy = Proxy::with(config).await;
    mock.fault(Fault::Hang);
    let addr = proxy.addr;
    let held = tokio::spawn(async move { get(addr, "/computeMetadata/v1/instance/cpu-platform").await });
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 1).await;
    let request = "GET /computeMetadata/v1/instance/tags HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n";
    assert_eq!(raw(addr, request).await, b"", "it was reset");
    let status = status(&proxy).await;
    assert_eq!(status["room"][0]["used"], 1);
    let sheds = status["sheds"].as_array().expect("a list");
    assert!(sheds.iter().any(|shed| shed["reason"] == "in_flight" && shed["count"] == 1), "{sheds:?}");
    assert_eq!(status["talkers"][0]["sheds"], 1);
    held.abort();
    proxy.stop().await;
}

#[tokio::test]
async fn flags_are_told_with_their_values_in_force() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    let flags = get(proxy.metrics_addr, "/flagz").await.body;
    for line in [&*format!("--upstream=http://{}", mock.addr()), "--max-in-flight=200", "--overload=reset"] {
        assert!(flags.lines().any(|flag| flag == line), "{line} is missing from\n{flags}");
    }
    proxy.stop().await;
}

pub async fn put(binary: std::net::SocketAddr, target: &str) -> Answer {
    let request = format!("PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    Answer::parse(&raw(binary, request).await, false).expect("an answer").0
}

#[tokio::test]
async fn log_levels_can_be_changed_and_tell_each_request() {
    let mock = upstream().await;
    let (mut binary, addr, metrics_addr) = Binary::ready(None, mock.addr(), &[]).await;
    assert_eq!(put(metrics_addr, "/loglevel?levels=loud").await.status, 400);
    assert_eq!(put(metrics_addr, "/loglevel").await.status, 400);
    let changed = put(metrics_addr, "/loglevel?levels=info%2Cgce_metadata_proxy::access=debug").await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    binary.stderr_line("log levels changed").await;
    assert!(get(metrics_addr, "/loglevel").await.body.contains("gce_metadata_proxy::access=debug"));
    get(addr, "/computeMetadata/v1/instance/cpu-platform?alt=json").await;
    let line = binary.stderr_line("gce_metadata_proxy::access").await;
    for told in
        ["127.0.0.1:", "GET", "/computeMetadata/v1/instance/cpu-platform?alt=json", "status=200", "outcome=\"passed\""]
    {
        assert!(line.contains(told), "{told} is missing from {line}");
    }
    let misspelt = put(metrics_addr, "/loglevel?levels=info,nosuch_module=debug").await;
    assert_eq!((misspelt.status, misspelt.body.lines().count()), (200, 2), "{}", misspelt.body);
    assert!(misspelt.body.contains("This program has no crate nosuch_module"), "{}", misspelt.body);
    binary.stderr_line("log levels changed").await;
    assert_eq!(put(metrics_addr, "/loglevel?levels=off").await.status, 200);
    let line = binary.stderr_line("log levels changed").await;
    assert!(line.contains("levels=off") && line.contains("peer=127.0.0.1:"), "{line}");
    get(addr, "/computeMetadata/v1/instance/attributes/kube-env").await;
    binary.terminate();
    assert!(!binary.stderr_to_end().await.contains("kube-env"), "nothing is written any more");
}

#[tokio::test]
async fn levels_cannot_forge_a_log_line() {
    let mock = upstream().await;
    let (mut binary, _, metrics_addr) = Binary::ready(None, mock.addr(), &[]).await;
    for forged in
        ["info,a%0A2026-01-01T00:00:00Z%20%20INFO%20FORGED=info", "info,FORGED%0D=info", "info,%1b[2JFORGED=info"]
    {
        let answer = put(metrics_addr, &format!("/loglevel?levels={forged}")).await;
        assert_eq!(answer.status, 400, "{forged}: {}", answer.body);
    }
    binary.terminate();
    let log = binary.stderr_to_end().await;
    assert!(!log.contains("FORGED") && !log.contains("log levels changed"), "{log}");
}

/// With a duplicate key, some readers take the first value and others the last.
#[tokio::test]
async fn a_line_of_json_has_no_key_twice() {
    let mock = upstream().await;
    let upstream = format!("http://{}", mock.addr());
    let ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream", &upstream];
    let mut binary = Binary::start(&[&ports[..], &["--log-format=json", "--log=trace", "--audit"]].concat());
    let mut lines = Vec::new();
    for wanted in ["serving operators", "serving pods", "cache warmed up"] {
        lines.push(binary.stderr_line(wanted).await);
    }
    let read = |line: &String| serde_json::from_str::<Value>(line).expect("JSON");
    let addr_in = |line| read(line)["addr"].as_str().expect("an address").parse().expect("an address");
    let (metrics_addr, addr) = (addr_in(&lines[0]), addr_in(&lines[1]));
    get(addr, TOKEN).await;
    get(addr, "/computeMetadata/v1/instance/attributes/kube-env").await;
    mock.fault(Fault::Reset);
    get(addr, "/computeMetadata/v1/instance/cpu-platform").await;
    put(metrics_addr, "/loglevel?levels=off").await;
    binary.terminate();
    let (log, mut accesses) = (binary.stderr_to_end().await, 0);
    lines.extend(log.lines().map(str::to_owned));
    for line in &lines {
        let read = read(line);
        assert_eq!(read.to_string().len(), line.len(), "a key is there twice: {line}");
        if read["target"] == "gce_metadata_proxy::access" {
            accesses += 1;
            assert!(read["uri"].as_str().is_some_and(|uri| uri.starts_with("/computeMetadata/v1/")), "{line}");
        }
    }
    assert_eq!(accesses, 3, "{log}");
    assert!(log.contains("token handed out") && log.contains("log levels changed"), "{log}");
}

/// Like a request from a browser on the node that was misled by DNS rebinding.
#[tokio::test]
async fn operators_pages_are_not_shown_under_a_foreign_name() {
    let mock = upstream().await;
    let settings = Config { metrics_allowed_hosts: vec!["node-1.example".to_owned()], ..config(mock.addr()) };
    let proxy = Proxy::with(settings).await;
    let ask = async |method: &str, target: &str, host: &str| {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        Answer::parse(&raw(proxy.metrics_addr, request).await, false).expect("an answer").0
    };
    for (method, target) in [("GET", "/statusz"), ("GET", "/metrics"), ("GET", "/"), ("PUT", "/loglevel?levels=info")] {
        let refused = ask(method, target, "evil.example:989").await;
        assert_eq!(refused.status, 403, "{target}");
        assert!(
            refused.body.contains("evil.example") && refused.body.contains("--metrics-allowed-host"),
            "{}",
            refused.body
        );
        assert_eq!(refused.body.lines().count(), 1, "{}", refused.body);
    }
    for host in ["localhost", "127.0.0.1:989", "[::1]:989", "10.128.0.2:989", "node-1.example:989"] {
        assert_eq!(ask("GET", "/metrics", host).await.status, 200, "{host}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn refusals_are_told_with_their_reason_and_client() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
    for _ in 0..3 {
        get(addr, "/computeMetadata/v1/instance/attributes/kube-env").await;
    }
    let line = binary.stderr_line("refused requests").await;
    assert!(line.contains("reason=\"concealed\"") && line.contains("peer=127.0.0.1:"), "{line}");
    binary.terminate();
    assert!(!binary.stderr_to_end().await.contains("refused requests"), "one line for a burst");
}

/// The metadata server answers, so its health does not change.
#[tokio::test]
async fn a_response_that_is_not_a_token_is_told() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
    mock.fault(Fault::Html);
    get(addr, &format!("{TOKEN}?scopes=a")).await;
    let line = binary.stderr_line("is not a token").await;
    assert!(line.contains("WARN") && line.contains("it is not JSON with access_token"), "{line}");
    binary.terminate();
}

#[tokio::test]
async fn the_audit_names_who_got_which_token_and_never_the_token() {
    let mock = upstream().await;
    let (mut binary, addr, metrics_addr) = Binary::ready(None, mock.addr(), &["--audit"]).await;
    // The audit is enabled by its flag, regardless of log levels.
    put(metrics_addr, "/loglevel?levels=off").await;
    get(addr, TOKEN).await;
    get(addr, &format!("{TOKEN}?scopes=b,a")).await;
    let first = binary.stderr_line("token handed out").await;
    let second = binary.stderr_line("token handed out").await;
    for (line, cache) in [(&first, "cache=\"fresh\""), (&second, "cache=\"miss\"")] {
        for told in ["client=127.0.0.1:", "kind=\"access\"", "account=default", cache, "expires_in=3"] {
            assert!(line.contains(told), "{told} is missing from {line}");
        }
        assert!(!line.contains("ya29."), "{line}");
    }
    assert!(!first.contains("scopes") && second.contains("scopes=\"a,b\""), "{first}\n{second}");
}

#[tokio::test]
async fn a_pod_fills_at_most_10_kib_of_audit_in_a_minute() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &["--audit"]).await;
    let scopes = "s".repeat(1000);
    for number in 0..200 {
        assert_eq!(get(addr, &format!("{TOKEN}?scopes={number}{scopes}")).await.status, 200);
        assert_eq!(get(addr, TOKEN).await.status, 200);
    }
    binary.terminate();
    let log = binary.stderr_to_end().await;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("gce_metadata_proxy::audit: ")).collect();
    assert!(log.len() <= 10 << 10, "{} bytes in {} lines", log.len(), lines.len());
    assert!((5..=20).contains(&lines.len()), "{log}");
    let (rest, own) = lines.split_last().expect("lines");
    assert!(own.iter().all(|line| line.len() < 800 && line.contains("count=1")), "{log}");
    assert!(rest.contains("account=default") && !rest.contains("scopes="), "{log}");
}
