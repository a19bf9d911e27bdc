//! Exports metrics that are counted outside the prometheus crate.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::histogram::Snapshot;
use super::table::{Kind, Row};
use base::hook::Hook;

/// Metrics that are read when they are exported.
#[derive(Debug)]
pub(super) struct Exported {
    descs: Vec<Desc>,
    read: Hook<dyn Fn() -> Vec<Family> + Send + Sync>,
}

/// A metric and its series.
pub(super) type Family = (&'static Row, Vec<(Labels, Value)>);

pub(super) type Labels = Vec<(&'static str, Cow<'static, str>)>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Counter(f64),
    Gauge(f64),
    Histogram(Snapshot),
}

impl Exported {
    /// Exports these metrics, read by the function.
    pub(super) fn new(rows: &[&Row], read: impl Fn() -> Vec<Family> + Send + Sync + 'static) -> Self {
        let desc = |row: &&Row| {
            let labels = row.labels.iter().map(ToString::to_string).collect();
            Desc::new(row.name.into(), row.help.into(), labels, HashMap::new()).expect("the table's names are valid")
        };
        Self { descs: rows.iter().map(desc).collect(), read: Hook::new(Arc::new(read)) }
    }
}

impl Collector for Exported {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // A metric without a series cannot be encoded.
        (self.read)().into_iter().filter(|(_, series)| !series.is_empty()).map(family).collect()
    }
}

fn family((row, series): Family) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(row.name.into());
    family.set_help(row.help.into());
    let (kind, exported) = match series[0].1 {
        Value::Counter(_) => (Kind::Counter, MetricType::COUNTER),
        Value::Gauge(_) => (Kind::Gauge, MetricType::GAUGE),
        Value::Histogram(_) => (Kind::Histogram, MetricType::HISTOGRAM),
    };
    debug_assert_eq!(row.kind, kind, "{}", row.name);
    family.set_field_type(exported);
    family.set_metric(series.into_iter().map(metric).collect());
    family
}

fn metric((labels, value): (Labels, Value)) -> Metric {
    let pair = |(name, value): (&str, Cow<'_, str>)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.into());
        pair.set_value(value.into_owned());
        pair
    };
    let mut metric = Metric::from_label(labels.into_iter().map(pair).collect());
    match value {
        Value::Counter(value) => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        Value::Gauge(value) => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        Value::Histogram(snapshot) => metric.set_histogram(histogram(&snapshot)),
    }
    metric
}

fn histogram(snapshot: &Snapshot) -> Histogram {
    let mut below = 0;
    let bucket = |(bound, count): (&u64, &u64)| {
        below += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(seconds(*bound));
        bucket.set_cumulative_count(below);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(snapshot.bounds.iter().zip(&snapshot.counts).map(bucket).collect());
    histogram.set_sample_count(snapshot.count());
    histogram.set_sample_sum(seconds(snapshot.nanoseconds));
    histogram
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 nanoseconds (104 days); a larger sum is rounded")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
