//! The files shipped for operators: rules and dashboard refer to existing metrics, alerts fire when they
//! should, and a real Prometheus can scrape the running proxy.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gce_metadata_proxy::telemetry::labels::Label;
use gce_metadata_proxy::telemetry::latency::Filter;
use gce_metadata_proxy::telemetry::table::TABLE;
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::{Proxy, get, upstream};

const RULES: &str = include_str!("../../deploy/observability/prometheus-rule.yaml");
const DASHBOARD: &str = include_str!("../../deploy/observability/dashboard.json");
const README: &str = include_str!("../../deploy/observability/README.md");

/// Timeout for Prometheus to answer a query. It starts within a second and scrapes every second.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(30);

fn rules() -> Value {
    let rule: Value = serde_saphyr::from_str(RULES).expect("a document");
    rule["spec"].clone()
}

/// All strings in a document, under any key.
fn strings<'a>(document: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match document {
        Value::Object(entries) => {
            for (name, value) in entries {
                match value {
                    Value::String(text) if name == key => found.push(text),
                    value => strings(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, found)),
        _ => {}
    }
}

/// The metrics that a query refers to. Their names have one of three prefixes.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    query
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != ':')
        .filter(|word| ["metadata_proxy", "process_", "request_"].iter().any(|begin| word.starts_with(begin)))
}

#[test]
fn the_rules_and_the_dashboard_name_metrics_that_exist() {
    let (rules, dashboard): (Value, Value) = (rules(), serde_json::from_str(DASHBOARD).expect("JSON"));
    let mut queries = Vec::new();
    strings(&rules, "expr", &mut queries);
    strings(&dashboard, "expr", &mut queries);
    strings(&dashboard, "query", &mut queries);
    let mut recorded = Vec::new();
    strings(&rules, "record", &mut recorded);
    let known: BTreeSet<String> = TABLE
        .iter()
        .flat_map(|row| ["", "_bucket", "_count", "_sum"].map(|suffix| format!("{}{suffix}", row.name)))
        .chain(recorded.iter().map(ToString::to_string))
        .collect();
    let named: BTreeSet<&str> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    let unknown: Vec<_> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "named and not exported: {unknown:?}");
    assert!(queries.len() > 30 && named.len() > 15, "{} queries, {} metrics", queries.len(), named.len());
}

#[test]
fn each_alert_says_where_it_is_told_what_to_do() {
    let rules = rules();
    let (mut alerts, mut runbooks) = (Vec::new(), Vec::new());
    strings(&rules, "alert", &mut alerts);
    strings(&rules, "runbook", &mut runbooks);
    assert_eq!(alerts.len(), runbooks.len());
    for runbook in runbooks {
        let anchor = runbook.strip_prefix("deploy/observability/README.md#").expect("a place in the README");
        let heads = README.lines().filter_map(|line| line.strip_prefix("### "));
        assert!(heads.map(|head| head.to_lowercase().replace(' ', "-")).any(|head| head == anchor), "{anchor}");
    }
}

/// A directory for one test.
fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("metadata-proxy-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

async fn promtool(directory: &Path, args: &[&str]) {
    let run = Command::new("promtool").args(args).current_dir(directory).output().await;
    let run = run.expect("promtool can be run (Debian: prometheus)");
    let said = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(run.status.success(), "promtool {args:?}: {said}");
}

#[tokio::test]
async fn each_alert_fires_on_its_fault_and_none_on_a_healthy_node() {
    let directory = scratch("rules");
    // JSON is YAML, too.
    std::fs::write(directory.join("rules.yaml"), rules().to_string()).expect("written");
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/observability/rules.test.yaml");
    std::fs::copy(tests, directory.join("rules.test.yaml")).expect("copied");
    promtool(&directory, &["check", "rules", "rules.yaml"]).await;
    promtool(&directory, &["test", "rules", "rules.test.yaml"]).await;
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn each_alert_has_a_test_that_fires_it_and_one_that_does_not() {
    let rules = rules();
    let tests: Value =
        serde_saphyr::from_str(include_str!("../../deploy/observability/rules.test.yaml")).expect("YAML");
    let mut alerts = Vec::new();
    strings(&rules, "alert", &mut alerts);
    let asked = tests["tests"].as_array().expect("tests").iter().flat_map(|test| {
        test["alert_rule_test"].as_array().expect("alerts").iter().map(|asked| {
            let name = asked["alertname"].as_str().expect("a name");
            (name, !asked["exp_alerts"].as_array().expect("a list").is_empty())
        })
    });
    let asked: BTreeSet<(&str, bool)> = asked.collect();
    for alert in alerts {
        assert!(asked.contains(&(alert, true)) && asked.contains(&(alert, false)), "{alert}");
    }
}

/// A Prometheus that scrapes one proxy every second.
struct Prometheus {
    addr: std::net::SocketAddr,
    directory: PathBuf,
    _process: Child,
}

impl Prometheus {
    fn start(metrics_addr: std::net::SocketAddr) -> Self {
        let directory = scratch("prometheus");
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: proxy\n    static_configs: [{{targets: ['{metrics_addr}']}}]\n"
        );
        std::fs::write(directory.join("prometheus.yml"), config).expect("written");
        // Prometheus does not report its port, so find a free one first.
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = free.local_addr().expect("an address");
        drop(free);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={addr}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus can be run (Debian: prometheus)");
        Self { addr, directory, _process: process }
    }

    /// The result of a query by the values of a label. Empty while there is none.
    async fn ask(&self, query: &str, label: &str) -> Vec<(String, f64)> {
        let answer = Command::new("curl")
            .args(["-sG", &format!("http://{}/api/v1/query", self.addr), "--data-urlencode", &format!("query={query}")])
            .output()
            .await
            .expect("curl can be run");
        let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        let series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let read = |series: &Value| {
            let value = series["value"][1].as_str()?.parse().ok()?;
            Some((series["metric"][label].as_str()?.to_owned(), value))
        };
        series.iter().filter_map(read).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn a_real_prometheus_answers_the_question_what_each_filter_costs() {
    let mock = upstream().await;
    let proxy = Proxy::start(mock.addr()).await;
    let page = get(proxy.metrics_addr, "/metrics").await.body;
    let directory = scratch("metrics");
    std::fs::write(directory.join("metrics"), page).expect("written");
    let prometheus = Prometheus::start(proxy.metrics_addr);
    let question = "histogram_quantile(0.99, \
                    sum(rate(metadata_proxy_request_filter_duration_seconds_bucket[1m])) by (filter, le))";
    let answered = timeout(SCRAPE_TIMEOUT, async {
        loop {
            // Requests that reach every filter, from the outermost to the server itself.
            get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await;
            let answer = prometheus.ask(question, "filter").await;
            if answer.len() == Filter::VALUES.len() && answer.iter().all(|(_, p99)| p99.is_finite()) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let answer = answered.await.expect("a number for each filter");
    for filter in Filter::VALUES {
        assert!(
            answer.iter().any(|(name, p99)| name == filter.label() && *p99 > 0.0),
            "{}: {answer:?}",
            filter.label()
        );
    }
    // It complains about `request_count`, whose name is k8s-metadata-proxy's and stays.
    let check =
        Command::new("sh").args(["-c", "promtool check metrics < metrics"]).current_dir(&directory).output().await;
    let check = check.expect("promtool can be run (Debian: prometheus)");
    let said = [check.stdout, check.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    let complaints: Vec<&str> = said.lines().filter(|line| !line.starts_with("request_count ")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    std::fs::remove_dir_all(directory).expect("removed");
    proxy.stop().await;
}
