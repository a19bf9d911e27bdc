//! The files shipped for operators: rules and dashboard refer to existing metrics, and each alert is documented and
//! tested. `tests/tools` runs the alerts, and lets a real Prometheus scrape the proxy.

use std::collections::BTreeSet;

use serde_json::Value;
use telemetry::table::TABLE;

const RULES: &str = include_str!("../../deploy/helm/gce-metadata-proxy/alerts/prometheus-rule.yaml");
const DASHBOARD: &str = include_str!("../../deploy/observability/dashboard.json");
const README: &str = include_str!("../../deploy/observability/README.md");

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
fn a_panel_has_a_line_for_ten_nodes_at_most_and_calls_them_by_their_names() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let lines: Vec<(&str, &str)> = targets
        .map(|target| (target["expr"].as_str().expect("a query"), target["legendFormat"].as_str().expect("a legend")))
        .collect();
    for (query, legend) in &lines {
        assert!(!legend.contains("{{instance}}") && query.contains("node=~\"$node\""), "{legend}: {query}");
        assert!(!legend.contains("{{node}}") || query.starts_with("topk(10, "), "{legend}: {query}");
    }
    assert!(lines.iter().any(|(_, legend)| legend.contains("{{node}}")), "{lines:?}");
}

#[test]
fn each_alert_says_where_it_is_told_what_to_do() {
    let rules = rules();
    let (mut alerts, mut runbooks) = (Vec::new(), Vec::new());
    strings(&rules, "alert", &mut alerts);
    strings(&rules, "runbook_url", &mut runbooks);
    assert_eq!(alerts.len(), runbooks.len());
    for runbook in runbooks {
        let anchor = runbook.strip_prefix("deploy/observability/README.md#").expect("a place in the README");
        let heads = README.lines().filter_map(|line| line.strip_prefix("### "));
        assert!(heads.map(|head| head.to_lowercase().replace(' ', "-")).any(|head| head == anchor), "{anchor}");
    }
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
