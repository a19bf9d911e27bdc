//! The metrics that operators see: names, labels, and the origin of responses.

use std::collections::{BTreeMap, BTreeSet};

use mock::{Fault, Handle};
use telemetry::table::{Row, TABLE};

use crate::support::{Connection, Proxy, get, metric_becomes, raw, request};

const PAGE: &str = include_str!("../../docs/metrics.md");
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// A row of the table in docs/metrics.md.
fn told(row: &Row) -> String {
    let labels = if row.labels.is_empty() { String::new() } else { format!("{{{}}}", row.labels.join(",")) };
    format!("| `{}{labels}` | {} |", row.name, row.help)
}

/// Takes the reasons from matches that the compiler checks for completeness.
#[test]
fn the_documentation_has_every_reason_of_a_refusal() {
    let sources = [
        include_str!("../../crates/proxy/src/error.rs"),
        include_str!("../../crates/proxy/src/failure.rs"),
        include_str!("../../crates/protocol/src/metadata/parse.rs"),
    ];
    let matches = sources.iter().flat_map(|text| text.split("self) -> &'static str {").skip(1));
    let arms = matches.flat_map(|text| text.split("\n    }\n").next().unwrap_or_default().lines());
    let texts = arms.filter_map(|arm| arm.split_once("=> \"")?.1.split('"').next());
    let reasons: BTreeSet<_> = texts.filter(|text| !text.is_empty() && !text.contains(' ')).collect();
    let section =
        PAGE.split("### Reasons of refusals").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("there is one");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let told: BTreeSet<_> = rows.flat_map(|row| row.split(", ")).map(|reason| reason.trim_matches('`')).collect();
    assert_eq!(told, reasons);
}

#[test]
fn the_documentation_has_every_metric() {
    let rows: Vec<String> = TABLE.iter().map(told).collect();
    let table = format!("| metric | what |\n|---|---|\n{}\n", rows.join("\n"));
    assert!(PAGE.contains(&table), "the table in docs/metrics.md should be:\n{table}");
}

/// The metric families on a page, with the label names of their series.
fn families(page: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut families: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut name = "";
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            name = family.split(' ').next().expect("a name");
            families.entry(name).or_default();
        } else if let (false, Some((_, labels))) = (line.starts_with('#'), line.split_once('{')) {
            let labels = labels.rsplit_once('}').expect("a closing brace").0;
            let names =
                labels.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0)).filter(|name| *name != "le");
            families.get_mut(name).expect("a type comes first").extend(names);
        }
    }
    families
}

/// Sends requests of each kind, so that every metric has a series.
async fn ask_for_everything(proxy: &Proxy, mock: &Handle) {
    for path in [TOKEN, "/", "/computeMetadata/v1/instance/zone", "/computeMetadata/v1/instance/cpu-platform", "/x"] {
        get(proxy.addr, path).await;
    }
    mock.fault(Fault::Status(503, String::new()));
    get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
}

/// Metrics of other processes. Pods have no identities here; `tests/identity` scrapes these metrics. Nor is this the
/// process of `check --interval`, or one with `--redirect`, which `tests/node` scrapes.
fn is_elsewhere(row: &Row) -> bool {
    ["Absent without --workload-identity", "Only with check --interval", "Only with --redirect"]
        .iter()
        .any(|text| row.help.contains(text))
}

#[tokio::test]
async fn what_is_scraped_is_what_the_table_says() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    ask_for_everything(&proxy, &mock).await;
    let page = get(proxy.metrics_addr, "/metrics").await.body;
    let found = families(&page);
    let wanted: BTreeMap<&str, BTreeSet<&str>> = TABLE
        .iter()
        .filter(|row| !is_elsewhere(row))
        .map(|row| (row.name, row.labels.iter().copied().collect()))
        .collect();
    for (name, labels) in &wanted {
        let found = found.get(name).unwrap_or_else(|| panic!("{name} is missing from\n{page}"));
        assert_eq!(found, labels, "{name}");
    }
    let unknown: Vec<_> = found.keys().filter(|name| !wanted.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "not in the table: {unknown:?}");
    proxy.stop().await;
}

#[tokio::test]
async fn each_filter_is_measured_whatever_it_does() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    ask_for_everything(&proxy, &mock).await;
    get(proxy.addr, "/computeMetadata/v1/instance/attributes/kube-env").await;
    raw(proxy.addr, "GET / HTTP/1.1\r\nHost: metadata\r\nX-Forwarded-For: 10.0.0.1\r\nConnection: close\r\n\r\n").await;
    for (filter, outcome) in [
        ("classify", "passed"),
        ("classify", "refused"),
        ("in_flight", "passed"),
        ("discovery", "answered"),
        ("discovery", "passed"),
        ("conceal", "refused"),
        ("conceal", "passed"),
        ("hanging", "passed"),
        ("leaves", "answered"),
        ("leaves", "passed"),
        ("token_cache", "answered"),
        ("token_cache", "passed"),
        ("forward", "answered"),
    ] {
        let series = format!(
            "metadata_proxy_request_filter_duration_seconds_count{{filter=\"{filter}\",outcome=\"{outcome}\"}}"
        );
        assert!(proxy.metric(&series).await.is_some_and(|count| count >= 1.0), "{series}");
    }
    let waited = "metadata_proxy_request_filter_wait_duration_seconds_count{filter=\"forward\"}";
    assert!(proxy.metric(waited).await.is_some_and(|count| count >= 1.0), "the upstream was waited for");
    proxy.stop().await;
}

#[tokio::test]
async fn a_request_is_measured_to_its_last_byte_by_what_it_asked_for_and_what_became_of_it() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    ask_for_everything(&proxy, &mock).await;
    get(proxy.addr, "/computeMetadata/v1/instance/attributes/kube-env").await;
    raw(
        proxy.addr,
        format!("HEAD {TOKEN} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"),
    )
    .await;
    mock.stop().await;
    get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
    for (metric, endpoint, outcome, count) in [
        ("request_duration", "token", "answered", 2.0),
        ("request_first_byte", "token", "answered", 2.0),
        ("request_duration", "root", "answered", 1.0),
        ("request_duration", "leaf", "refused", 1.0),
        ("request_duration", "leaf", "passed", 2.0),
        ("request_duration", "leaf", "failed", 2.0),
        ("request_duration", "unknown", "refused", 1.0),
        ("upstream_duration", "leaf", "5xx", 1.0),
        ("upstream_duration", "token", "2xx", 1.0),
        ("upstream_duration", "leaf", "failed", 1.0),
    ] {
        let series = format!("metadata_proxy_{metric}_seconds_count{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}}");
        assert_eq!(proxy.metric(&series).await, Some(count), "{series}");
    }
    proxy.stop().await;
}

/// Clients get the server's own answer, and the objective for tokens shows that they got no token.
#[tokio::test]
async fn a_server_that_answers_429_or_5xx_fails_and_one_that_refuses_does_not() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    let failures = "metadata_proxy_request_duration_seconds_count{endpoint=\"token\",outcome=\"failed\"}";
    assert_eq!(proxy.metric(failures).await, Some(0.0), "the first failure has a rate");
    let mut failed = 0.0;
    for (status, upstream_outcome, is_failure) in
        [(503, "5xx", true), (500, "5xx", true), (429, "429", true), (404, "4xx", false), (403, "4xx", false)]
    {
        mock.fault(Fault::Status(status, "not now".to_owned()));
        let answer = get(proxy.addr, &format!("{TOKEN}?scopes=s{status}")).await;
        assert_eq!((answer.status, answer.header("server")), (status, Some("Metadata Server for VM")));
        assert_eq!(answer.body, "not now");
        failed += f64::from(u8::from(is_failure));
        assert_eq!(proxy.metric(failures).await, Some(failed), "{status}");
        let series = format!(
            "metadata_proxy_upstream_duration_seconds_count{{endpoint=\"token\",outcome=\"{upstream_outcome}\"}}"
        );
        assert!(proxy.metric(&series).await.is_some_and(|count| count >= 1.0), "{series}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_request_that_waits_for_a_change_does_not_make_others_look_slow() {
    let (_mock, proxy) = Proxy::of_a_mock().await;
    let waits = "/computeMetadata/v1/instance/attributes/?recursive=true&wait_for_change=true&timeout_sec=1";
    let elsewhere = |page: &str| -> f64 {
        page.lines()
            .filter(|line| line.contains("_seconds_sum") && !line.contains("endpoint=\"watch\""))
            .filter(|line| line.contains("_request_") || line.contains("_upstream_"))
            .map(|line| line.rsplit(' ').next().and_then(|sum| sum.parse::<f64>().ok()).expect("a number"))
            .sum()
    };
    let before = elsewhere(&get(proxy.metrics_addr, "/metrics").await.body);
    assert_eq!(get(proxy.addr, waits).await.status, 200);
    let page = get(proxy.metrics_addr, "/metrics").await.body;
    let seconds = elsewhere(&page) - before;
    assert!(seconds < 0.5, "a second was measured elsewhere: {seconds}");
    for metric in ["request_duration", "request_first_byte", "upstream_duration", "upstream_first_byte"] {
        let series = format!("metadata_proxy_{metric}_seconds_sum{{endpoint=\"watch\"");
        let sum = page.lines().find(|line| line.starts_with(&series)).and_then(|line| line.rsplit(' ').next());
        assert!(sum.is_some_and(|sum| sum.parse::<f64>().is_ok_and(|sum| sum > 0.9)), "{series}: {sum:?}");
    }
    proxy.stop().await;
}

/// 403, 429 and 503 can come from either side; a header shows which.
#[tokio::test]
async fn an_answer_says_who_made_it_and_refusals_are_counted_by_reason() {
    const SERVER: &str = "Metadata Server for VM";
    const PROXY: &str = "gce-metadata-proxy";
    let (mock, proxy) = Proxy::of_a_mock().await;
    let server = |path: &'static str| async move { get(proxy.addr, path).await.header("server").map(str::to_owned) };
    assert_eq!(server("/computeMetadata/v1/instance/cpu-platform").await.as_deref(), Some(SERVER));
    assert_eq!(server("/computeMetadata/v1/instance/attributes/kube-env").await.as_deref(), Some(PROXY));
    for status in [403, 429, 503] {
        mock.fault(Fault::Status(status, String::new()));
        let answer = get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
        assert_eq!((answer.status, answer.header("server")), (status, Some(SERVER)));
    }
    let concealed = "metadata_proxy_refusals_total{reason=\"concealed\"}";
    assert_eq!(proxy.metric(concealed).await, Some(1.0));
    assert_eq!(proxy.metric("request_count{code=\"403\",filter_result=\"filter_result_blocked\"}").await, Some(1.0));
    assert_eq!(proxy.metric("request_count{code=\"403\",filter_result=\"filter_result_proxied\"}").await, Some(1.0));
    mock.stop().await;
    assert_eq!(server("/computeMetadata/v1/instance/cpu-platform").await.as_deref(), Some(PROXY));
    proxy.stop().await;
}

/// The series on a page, without values.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

/// The nth request of a client that never repeats one.
fn inventive(number: u32) -> String {
    let hosted = |host: &str, agent: &str, target: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nMetadata-Flavor: Google\r\n\r\n")
    };
    let agent = format!("agent/{number}");
    match number % 64 {
        // These few reach the metadata server.
        0 => hosted("metadata", &agent, &format!("/computeMetadata/v1/instance/service-accounts/a{number}@b.c/token")),
        1 => hosted(
            "metadata",
            &agent,
            &format!("/computeMetadata/v1/instance/service-accounts/default/token?scopes=s{number}"),
        ),
        2 => hosted(
            &format!("10.{}.{}.1", number / 256 % 256, number % 256),
            &agent,
            "/computeMetadata/v1/instance/tags",
        ),
        3..16 => {
            hosted("metadata", &agent, &format!("/computeMetadata/v1/instance/service-accounts/a{number}@b.c/identity"))
        }
        16..32 => hosted(&format!("host-{number}.example"), &agent, "/"),
        32..48 => hosted("metadata", &agent, &format!("/computeMetadata/v{number}/")),
        _ => hosted("metadata", &agent, &format!("/?{number}=x")),
    }
}

#[tokio::test]
async fn a_hundred_thousand_different_requests_add_no_series() {
    /// At rest, and once pods have asked for all kinds of things: as docs/metrics.md says, and some to spare.
    const SERIES: [usize; 2] = [400, 1100];
    const REQUESTS: u32 = 100_000;
    const AT_ONCE: u32 = 200;
    let (_mock, proxy) = Proxy::of_a_mock().await;
    let mut known = series(&get(proxy.metrics_addr, "/metrics").await.body);
    assert!(known.len() <= SERIES[0], "{}", known.len());
    // The proxy's own probe requests it now and then.
    get(proxy.addr, "/").await;
    let mut connection = Connection::open(proxy.addr).await;
    for begin in (0..REQUESTS).step_by(AT_ONCE as usize) {
        let requests: Vec<String> = (begin..begin + AT_ONCE).map(inventive).collect();
        connection.send(requests.concat()).await;
        for _ in 0..AT_ONCE {
            connection.answer().await.expect("every request is answered");
        }
        if begin == 0 {
            known = series(&get(proxy.metrics_addr, "/metrics").await.body);
        }
    }
    let now = series(&get(proxy.metrics_addr, "/metrics").await.body);
    let more: Vec<_> = now.difference(&known).collect();
    assert!(more.is_empty(), "{more:?}");
    assert!(known.len() <= SERIES[1], "{}", known.len());
    proxy.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_is_counted_as_cut_and_what_it_asked_for_as_abandoned() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.fault(Fault::Hang);
    let mut client = Connection::open(proxy.addr).await;
    client.send(request("/computeMetadata/v1/instance/cpu-platform")).await;
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 1).await;
    drop(client);
    for (metric, outcome) in [("request", "cut"), ("upstream", "abandoned")] {
        let series =
            format!("metadata_proxy_{metric}_duration_seconds_count{{endpoint=\"leaf\",outcome=\"{outcome}\"}}");
        metric_becomes(proxy.metrics_addr, &series, 1).await;
    }
    proxy.stop().await;
}
