//! The names that users and their tools rely on (docs/stability.md): changing a name, a label or a default is a decision.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::cli;
use telemetry::table::{Row, TABLE};

/// The committed list.
const PROMISED: &str = include_str!("../docs/stable.txt");

/// The chart's values, with comments.
const VALUES: &str = include_str!("../deploy/helm/gce-metadata-proxy/values.yaml");

fn metric(row: &Row) -> String {
    let labels = if row.labels.is_empty() { String::new() } else { format!("{{{}}}", row.labels.join(",")) };
    format!("metric {} {}{labels}", row.kind, row.name)
}

/// A line for each value that is not a section. An empty map is a value.
fn values(value: &Value, path: &str, lines: &mut Vec<String>) {
    match value {
        Value::Object(section) if !section.is_empty() => {
            let dot = if path.is_empty() { "" } else { "." };
            section.iter().for_each(|(key, value)| values(value, &format!("{path}{dot}{key}"), lines));
        }
        value => lines.push(format!("value {path} = {value}")),
    }
}

fn found() -> Vec<String> {
    let chart: Value = serde_saphyr::from_str(VALUES).expect("the chart's values are YAML");
    let mut lines = cli::tests::promised_flags();
    lines.extend(TABLE.iter().map(metric));
    values(&chart, "", &mut lines);
    lines
}

/// The lines to take out of the list and to put in. Empty if there are none.
fn differences(promised: &str, found: &[String]) -> String {
    let promised: BTreeSet<_> = promised.lines().collect();
    let found: BTreeSet<_> = found.iter().map(String::as_str).collect();
    let mut text = String::new();
    for line in promised.difference(&found) {
        let _ = writeln!(text, "take out: {line}");
    }
    for line in found.difference(&promised) {
        let _ = writeln!(text, "put in:   {line}");
    }
    text
}

#[test]
fn flags_metrics_and_values_are_those_that_were_promised() {
    let differences = differences(PROMISED, &found());
    assert!(
        differences.is_empty(),
        "docs/stable.txt is not what the program and the chart have. If the change is meant, change these lines, and tell \
         users in CHANGELOG.md: with 'Breaking' for each line that is taken out, unless only its default changes \
         (docs/stability.md).\n{differences}"
    );
}

#[test]
fn the_list_is_sorted_and_has_each_line_once() {
    let lines: Vec<_> = PROMISED.lines().collect();
    let misplaced = lines.windows(2).find(|pair| pair[0] >= pair[1]);
    assert_eq!(misplaced, None, "in docs/stable.txt, sorted as by `LC_ALL=C sort -u`");
}

#[test]
fn a_renamed_metric_is_two_lines() {
    let found = ["metric counter a_total{code}".to_owned(), "metric gauge c".to_owned()];
    assert_eq!(
        differences("metric counter a_total{code}\nmetric gauge b\n", &found),
        "take out: metric gauge b\nput in:   metric gauge c\n"
    );
}
