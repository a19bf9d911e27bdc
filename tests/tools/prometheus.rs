//! The files shipped for operators and the metrics, checked by a real Prometheus and by `promtool`.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use form_urlencoded::byte_serialize;
use serde_json::Value;
use telemetry::labels::Label;
use telemetry::latency::Filter;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::block_on;
use crate::support::needs::{Test, tests};
use crate::support::{Outcome, Proxy, Scratch, ask, get};

/// The tests that need `prometheus`.
pub(crate) const WITH_PROMETHEUS: &[Test] = tests![
    a_real_prometheus_answers_the_question_what_each_filter_costs,
    the_dashboard_has_an_answer_while_two_pods_are_on_a_node,
];

/// The tests that need `promtool`.
pub(crate) const WITH_PROMTOOL: &[Test] =
    tests![each_alert_fires_on_its_fault_and_none_on_a_healthy_node, promtool_finds_no_fault_with_the_metrics];

const DASHBOARD: &str = include_str!("../../deploy/observability/dashboard.json");
const RULES: &str = include_str!("../../deploy/helm/gce-metadata-proxy/alerts/prometheus-rule.yaml");

/// Timeout for Prometheus to answer a query. It starts within a second and scrapes every second.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between queries.
const QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// Runs `promtool` in a directory. Returns whether it succeeded, and its output.
async fn promtool(directory: &Scratch, command: &str) -> (bool, String) {
    let line = format!("promtool {command}");
    let run = Command::new("sh").args(["-c", &line]).current_dir(directory.dir()).output().await.expect("a shell");
    let said = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (run.status.success(), said)
}

fn each_alert_fires_on_its_fault_and_none_on_a_healthy_node() {
    let directory = Scratch::new("rules");
    let rules: Value = serde_saphyr::from_str(RULES).expect("a document");
    // JSON is valid YAML.
    directory.file("rules.yaml", &rules["spec"].to_string());
    directory.file("rules.test.yaml", include_str!("../../deploy/observability/rules.test.yaml"));
    block_on(async {
        for command in ["check rules rules.yaml", "test rules rules.test.yaml"] {
            let (is_right, said) = promtool(&directory, command).await;
            assert!(is_right, "promtool {command}: {said}");
        }
    });
}

fn promtool_finds_no_fault_with_the_metrics() {
    let directory = Scratch::new("metrics");
    block_on(async {
        let (_mock, proxy) = Proxy::of_a_mock().await;
        // A request that reaches every filter, from the outermost to the server itself.
        get(proxy.addr, LEAF).await;
        directory.file("metrics", &get(proxy.metrics_addr, "/metrics").await.body);
        let (_, said) = promtool(&directory, "check metrics < metrics").await;
        // It complains about `request_count`, a name of k8s-metadata-proxy, which stays.
        let complaints: Vec<&str> = said.lines().filter(|line| !line.starts_with("request_count ")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
        proxy.stop().await;
    });
}

/// A Prometheus that scrapes one proxy every second. Killed on drop.
struct Prometheus {
    addr: SocketAddr,
    _process: Child,
    _directory: Scratch,
}

impl Prometheus {
    /// Scrapes the proxy once for each of these pods. During an update a node has two, and one address.
    fn start(metrics_addr: SocketAddr, pods: &[&str]) -> Self {
        let directory = Scratch::new("prometheus");
        let target = |pod| format!("{{targets: ['{metrics_addr}'], labels: {{node: n, pod: {pod}}}}}");
        let targets: Vec<String> = pods.iter().map(target).collect();
        let scrape = format!("{{job_name: proxy, static_configs: [{}]}}", targets.join(", "));
        directory.file("prometheus.yml", &format!("global: {{scrape_interval: 1s}}\nscrape_configs: [{scrape}]\n"));
        // Prometheus does not report its port, so find a free one first.
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = free.local_addr().expect("an address");
        drop(free);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", directory.path("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", directory.path("data")))
            .arg(format!("--web.listen-address={addr}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus can be run");
        Self { addr, _process: process, _directory: directory }
    }

    /// The answer to a query; null while Prometheus starts.
    async fn say(&self, query: &str) -> Value {
        let query: String = byte_serialize(query.as_bytes()).collect();
        let Outcome::Answered(answer) = ask(self.addr, &format!("/api/v1/query?query={query}")).await else {
            return Value::Null;
        };
        serde_json::from_str(&answer.body).unwrap_or_default()
    }

    /// The result of a query by the values of a label. Empty while there is none.
    async fn ask(&self, query: &str, label: &str) -> Vec<(String, f64)> {
        let answer = self.say(query).await;
        let series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let read = |series: &Value| {
            let value = series["value"][1].as_str()?.parse().ok()?;
            Some((series["metric"][label].as_str()?.to_owned(), value))
        };
        series.iter().filter_map(read).collect()
    }
}

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// A value that the proxy does not cache.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

fn a_real_prometheus_answers_the_question_what_each_filter_costs() {
    const QUESTION: &str = "histogram_quantile(0.99, \
                            sum(rate(metadata_proxy_request_filter_duration_seconds_bucket[1m])) by (filter, le))";
    block_on(async {
        let (_mock, proxy) = Proxy::of_a_mock().await;
        let prometheus = Prometheus::start(proxy.metrics_addr, &["only"]);
        let answered = timeout(SCRAPE_TIMEOUT, async {
            loop {
                get(proxy.addr, LEAF).await;
                let answer = prometheus.ask(QUESTION, "filter").await;
                let is_answered =
                    |filter: Filter| answer.iter().any(|(name, p99)| name == filter.label() && p99.is_finite());
                if Filter::without_identity().all(is_answered) {
                    return answer;
                }
                // Wait between queries: another process cannot announce that it has scraped.
                sleep(QUERY_INTERVAL).await;
            }
        });
        let answer = answered.await.expect("a number for each filter");
        for filter in Filter::without_identity() {
            let is_answered = answer.iter().any(|(name, p99)| name == filter.label() && *p99 > 0.0);
            assert!(is_answered, "{}: {answer:?}", filter.label());
        }
        proxy.stop().await;
    });
}

fn the_dashboard_has_an_answer_while_two_pods_are_on_a_node() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().expect("a query"))
        .map(|query| query.replace("$node", ".*").replace("$__rate_interval", "10s"))
        .collect();
    assert!(queries.len() > 30, "{}", queries.len());
    block_on(async {
        let (_mock, proxy) = Proxy::of_a_mock().await;
        let prometheus = Prometheus::start(proxy.metrics_addr, &["old", "new"]);
        let scraped = timeout(SCRAPE_TIMEOUT, async {
            // Two scrapes of each pod, so that there are rates.
            while prometheus.ask("count_over_time(metadata_proxy_build_info[1m]) > 1", "pod").await.len() < 2 {
                sleep(QUERY_INTERVAL).await;
            }
        });
        scraped.await.expect("both pods are scraped");
        let mut refused = Vec::new();
        for query in &queries {
            let answer = prometheus.say(query).await;
            if answer["status"] != "success" {
                refused.push(format!("{query}: {}", answer["error"]));
            }
        }
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        // The tiles of the first row, without those of the canary and of the container's limit, which are not here.
        let first_row = panels.iter().skip(1).take_while(|panel| panel["type"] != "row");
        let absent = ["Nodes that are open", "Most memory, of its limit"];
        let tiles = first_row.filter(|tile| !absent.contains(&tile["title"].as_str().expect("a title")));
        for tile in tiles {
            let query = tile["targets"][0]["expr"].as_str().expect("a query");
            let query = query.replace("$node", ".*").replace("$__rate_interval", "10s");
            let answered = timeout(SCRAPE_TIMEOUT, async {
                loop {
                    get(proxy.addr, TOKEN).await;
                    let answer = prometheus.say(&query).await;
                    let value = answer["data"]["result"][0]["value"][1].as_str().and_then(|value| value.parse().ok());
                    if value.is_some_and(f64::is_finite) {
                        return;
                    }
                    sleep(QUERY_INTERVAL).await;
                }
            });
            assert!(answered.await.is_ok(), "a healthy node has no answer to {}: {query}", tile["title"]);
        }
        // Joined queries must return results, not only succeed.
        for joined in queries.iter().filter(|query| query.contains("on (instance, job)")) {
            let answer = prometheus.say(joined).await;
            assert_ne!(answer["data"]["result"], Value::Array(Vec::new()), "{joined}");
        }
        proxy.stop().await;
    });
}
