//! [`Registry`]: the metrics of this process. Each part of the proxy registers its own.

use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderValue;
use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder};

use super::export::{Exported, Value};
use super::histogram::Snapshot;
use super::labels::Label;
use super::process;
use super::table::{self, Kind, Row};

/// Collects metrics and writes them out. A clone is the same registry.
///
/// Labels come from fixed sets only. With a path, URL, address or audience as a label, any pod could create unlimited
/// series.
///
/// # Panics
///
/// All methods that register panic if the metric is registered already.
#[derive(Debug, Clone, Default)]
pub struct Registry(prometheus::Registry);

/// Counters with one label, one for each of its values.
#[derive(Debug, Clone)]
pub struct Counters<L> {
    counters: Arc<[IntCounter]>,
    label: PhantomData<fn(L)>,
}

/// Counters with two labels.
#[derive(Debug, Clone)]
pub struct CounterGrid<A, B> {
    rows: Arc<[Counters<B>]>,
    label: PhantomData<fn(A)>,
}

impl Registry {
    /// Content type of the output of [`render`](Self::render).
    pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

    /// Creates a registry with the process's own metrics: its version and resource usage.
    pub fn of_this_process() -> Self {
        let registry = Self::default();
        registry.export(process::exported());
        registry.gauge_vec(&table::BUILD_INFO).with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry
    }

    /// Registers a counter without labels.
    pub fn counter(&self, row: &Row) -> IntCounter {
        self.register(IntCounter::with_opts(opts(row, Kind::Counter)))
    }

    /// Registers a counter whose label values the caller supplies. They must come from a fixed set.
    pub fn counter_vec(&self, row: &Row) -> IntCounterVec {
        self.register(IntCounterVec::new(opts(row, Kind::Counter), row.labels))
    }

    /// Registers a counter for each value of its label.
    pub fn counters<L: Label>(&self, row: &Row) -> Counters<L> {
        let all = self.counter_vec(row);
        Counters::new(|value: L| all.with_label_values(&[value.label()]))
    }

    /// Registers a counter for each pair of values of its labels.
    pub fn counter_grid<A: Label, B: Label>(&self, row: &Row) -> CounterGrid<A, B> {
        let all = self.counter_vec(row);
        let row = |a: &A| Counters::new(|b: B| all.with_label_values(&[a.label(), b.label()]));
        CounterGrid { rows: A::VALUES.iter().map(row).collect(), label: PhantomData }
    }

    /// Registers a gauge without labels.
    pub fn gauge(&self, row: &Row) -> IntGauge {
        self.register(IntGauge::with_opts(opts(row, Kind::Gauge)))
    }

    /// Registers a gauge whose label values the caller supplies.
    pub fn gauge_vec(&self, row: &Row) -> IntGaugeVec {
        self.register(IntGaugeVec::new(opts(row, Kind::Gauge), row.labels))
    }

    /// Registers a gauge without labels that is read when metrics are written. `None` leaves it out.
    pub fn observe(&self, row: &'static Row, read: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        self.export(Exported::new(&[row], move || {
            #[expect(clippy::cast_precision_loss, reason = "Prometheus has floats only")]
            let value = |value| vec![(Vec::new(), Value::Gauge(value as f64))];
            vec![(row, read().map(value).unwrap_or_default())]
        }));
    }

    /// Registers a histogram of durations without labels, which is counted elsewhere.
    pub fn observe_times(&self, row: &'static Row, read: impl Fn() -> Snapshot + Send + Sync + 'static) {
        self.export(Exported::new(&[row], move || vec![(row, vec![(Vec::new(), Value::Histogram(read()))])]));
    }

    pub(super) fn export(&self, exported: Exported) {
        self.0.register(Box::new(exported)).expect("each metric is registered once");
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&self.0.gather(), &mut text);
        encoded.expect("writing to memory does not fail, and no metric is without a value");
        String::from_utf8(text).expect("names, helps and labels are UTF-8")
    }

    fn register<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        let metric = metric.expect("the table's names are valid");
        self.0.register(Box::new(metric.clone())).expect("each metric is registered once");
        metric
    }
}

fn opts(row: &Row, kind: Kind) -> Opts {
    debug_assert_eq!(row.kind, kind, "{}", row.name);
    Opts::new(row.name, row.help)
}

impl<L: Label> Counters<L> {
    fn new(counter: impl Fn(L) -> IntCounter) -> Self {
        Self { counters: L::VALUES.iter().map(|value| counter(*value)).collect(), label: PhantomData }
    }

    pub fn of(&self, value: L) -> &IntCounter {
        &self.counters[value.index()]
    }

    /// All values with their counts.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        L::VALUES.iter().map(|value| (value.label(), self.of(*value).get()))
    }
}

impl<A: Label, B: Label> CounterGrid<A, B> {
    pub fn of(&self, a: A, b: B) -> &IntCounter {
        self.rows[a.index()].of(b)
    }
}

/// The series of a counter with one label, sorted.
pub fn counts(counters: &IntCounterVec) -> Vec<(String, u64)> {
    let families = counters.collect();
    let mut counts: Vec<_> = families.iter().flat_map(MetricFamily::get_metric).map(count).collect();
    counts.sort();
    counts
}

fn count(metric: &Metric) -> (String, u64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters hold whole numbers")]
    (metric.get_label()[0].value().to_owned(), metric.get_counter().get_value() as u64)
}
