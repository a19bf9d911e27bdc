//! [`Latency`]: all duration histograms, and their handles for the request path.

use std::array;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::export::{Exported, Value};
use super::histogram::{Histogram, Snapshot, TIME, WORK};
use super::labels::{Label, labels};
use super::registry::Registry;
use super::table::{self, Row};
use crate::metadata::Endpoint;

labels! {
    /// The filters of the request path, by the layer's name, from the outside in.
    Filter {
        /// `layers::classify`.
        Classify = "classify",
        /// `layers::in_flight`.
        InFlight = "in_flight",
        /// `layers::discovery`.
        Discovery = "discovery",
        /// `layers::conceal`.
        Conceal = "conceal",
        /// `layers::hanging`.
        Hanging = "hanging",
        /// `layers::leaves`.
        Leaves = "leaves",
        /// `layers::token_cache`.
        TokenCache = "token_cache",
        /// `upstream::Forward`.
        Forward = "forward",
    }
}

labels! {
    /// What a filter did with a request.
    FilterOutcome {
        /// The next filter began.
        Passed = "passed",
        /// It answered.
        Answered = "answered",
        /// It ended the request by an error: a refusal, or a failure of the metadata server.
        Refused = "refused",
    }
}

labels! {
    /// What a request asks for, by its path alone.
    EndpointClass {
        /// `/`.
        Root = "root",
        /// `/computeMetadata/`.
        Versions = "versions",
        /// An access token.
        Token = "token",
        /// An identity token.
        Identity = "identity",
        /// Anything else of a service account.
        ServiceAccounts = "service_accounts",
        /// Any other directory of v1.
        Directory = "directory",
        /// Any other value of v1.
        Leaf = "leaf",
        /// An API version from before v1.
        Legacy = "legacy",
        /// An API version that nobody knows.
        Unknown = "unknown",
        /// It was refused before it was read.
        Unread = "unread",
    }
}

labels! {
    /// What became of a request.
    RequestOutcome {
        /// The proxy answered in its own name.
        Answered = "answered",
        /// The metadata server's answer was passed on, whatever its status, or the same one as it was kept.
        Passed = "passed",
        /// The proxy refused it, by its rules.
        Refused = "refused",
        /// There was no room for it.
        Shed = "shed",
        /// The metadata server failed it.
        Failed = "failed",
        /// Its client left, or the answer was cut, before the last byte.
        Cut = "cut",
    }
}

labels! {
    /// What became of a request to the metadata server.
    UpstreamOutcome {
        /// A success.
        Success = "2xx",
        /// A redirect.
        Redirect = "3xx",
        /// A refusal.
        Refusal = "4xx",
        /// An error of the server's.
        Error = "5xx",
        /// No answer, or none to its end.
        Failed = "failed",
        /// Whoever waited for it had left.
        Abandoned = "abandoned",
    }
}

impl From<&Endpoint> for EndpointClass {
    fn from(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Root => Self::Root,
            Endpoint::Versions => Self::Versions,
            Endpoint::Token(_) => Self::Token,
            Endpoint::Identity(_) => Self::Identity,
            Endpoint::ServiceAccounts => Self::ServiceAccounts,
            Endpoint::Directory => Self::Directory,
            Endpoint::Leaf => Self::Leaf,
            Endpoint::Legacy => Self::Legacy,
            Endpoint::Unknown => Self::Unknown,
        }
    }
}

/// Durations of requests, filters and upstream requests.
#[derive(Debug)]
pub struct Latency {
    filters: [FilterTimes; Filter::ALL.len()],
    /// Of requests.
    pub requests: Exchanges<RequestOutcome>,
    /// Of what is asked of the metadata server.
    pub upstream: Exchanges<UpstreamOutcome>,
}

/// Of one filter.
#[derive(Debug)]
pub struct FilterTimes {
    /// Whose they are.
    pub filter: Filter,
    work: [Histogram<{ WORK.len() }>; FilterOutcome::ALL.len()],
    wait: Histogram<{ TIME.len() }>,
}

/// Of requests and their answers.
#[derive(Debug)]
pub struct Exchanges<O> {
    /// Until the head of the answer was there.
    pub first_byte: ByEndpoint<O>,
    /// Until the last byte of the answer was there, or there could be none any more.
    pub last_byte: ByEndpoint<O>,
}

/// A histogram for each endpoint class and outcome. Most of these combinations never occur, so each has its memory, 328 bytes,
/// from its first observation on.
#[derive(Debug)]
pub struct ByEndpoint<O> {
    histograms: Box<[OnceLock<Box<Histogram<{ TIME.len() }>>>]>,
    outcomes: PhantomData<O>,
}

/// One histogram's labels, and what it holds.
pub type Series = (Vec<(&'static str, &'static str)>, Snapshot);

type Read = fn(&Latency) -> Vec<Series>;

/// Each metric of this file, and where it is read.
const FAMILIES: [(&Row, Read); 6] = [
    (&table::REQUEST_DURATION, |latency| latency.requests.last_byte.series()),
    (&table::REQUEST_FIRST_BYTE, |latency| latency.requests.first_byte.series()),
    (&table::FILTER_DURATION, Latency::work),
    (&table::FILTER_WAIT, Latency::waits),
    (&table::UPSTREAM_DURATION, |latency| latency.upstream.last_byte.series()),
    (&table::UPSTREAM_FIRST_BYTE, |latency| latency.upstream.first_byte.series()),
];

impl Latency {
    /// Registers its metrics.
    pub fn new(registry: &Registry) -> Arc<Self> {
        let latency = Arc::<Self>::default();
        registry.export(latency.exported());
        latency
    }

    /// For a registry. Series without observations are left out: most combinations of an endpoint and an outcome never
    /// occur.
    fn exported(self: &Arc<Self>) -> Exported {
        let latency = Arc::clone(self);
        Exported::new(&FAMILIES.map(|(row, _)| row), move || {
            let family = |(row, read): (&'static Row, Read)| {
                let seen = read(&latency).into_iter().filter(|(_, snapshot)| snapshot.count() > 0);
                let named = |(name, value): (&'static str, &'static str)| (name, value.into());
                let series = seen
                    .map(|(labels, snapshot)| (labels.into_iter().map(named).collect(), Value::Histogram(snapshot)));
                (row, series.collect())
            };
            FAMILIES.map(family).into()
        })
    }

    /// One filter's.
    pub fn filter(&self, filter: Filter) -> &FilterTimes {
        &self.filters[filter.index()]
    }

    /// What each filter does itself, by outcome.
    pub fn work(&self) -> Vec<Series> {
        let of_filter = |filter: Filter| {
            FilterOutcome::ALL.map(|outcome| {
                let labels = vec![("filter", filter.label()), ("outcome", outcome.label())];
                (labels, self.filter(filter).work[outcome.index()].snapshot())
            })
        };
        Filter::ALL.into_iter().flat_map(of_filter).collect()
    }

    /// How long requests are suspended in each filter.
    pub fn waits(&self) -> Vec<Series> {
        let of_filter = |filter: Filter| (vec![("filter", filter.label())], self.filter(filter).wait.snapshot());
        Filter::ALL.map(of_filter).into()
    }
}

/// Registered nowhere.
impl Default for Latency {
    fn default() -> Self {
        let filters = Filter::ALL.map(FilterTimes::new);
        Self { filters, requests: Exchanges::new(), upstream: Exchanges::new() }
    }
}

impl FilterTimes {
    fn new(filter: Filter) -> Self {
        Self { filter, work: array::from_fn(|_| Histogram::new(&WORK)), wait: Histogram::new(&TIME) }
    }

    /// A request left the filter with this outcome, after this much work of the filter itself, in nanoseconds.
    pub fn worked(&self, outcome: FilterOutcome, nanoseconds: u64) {
        self.work[outcome.index()].record_nanos(nanoseconds);
    }

    /// A request was suspended in the filter for this long in total, in nanoseconds.
    pub fn waited(&self, nanoseconds: u64) {
        self.wait.record_nanos(nanoseconds);
    }

    /// What the filter does itself, whatever the outcome; and how long requests wait in it.
    pub fn snapshots(&self) -> (Snapshot, Snapshot) {
        let mut work = Snapshot::empty(&WORK);
        for outcome in &self.work {
            work.add(&outcome.snapshot());
        }
        (work, self.wait.snapshot())
    }
}

impl<O: Label> Exchanges<O> {
    fn new() -> Self {
        Self { first_byte: ByEndpoint::new(), last_byte: ByEndpoint::new() }
    }
}

impl<O: Label> ByEndpoint<O> {
    fn new() -> Self {
        let histograms = (0..EndpointClass::ALL.len() * O::VALUES.len()).map(|_| OnceLock::new()).collect();
        Self { histograms, outcomes: PhantomData }
    }

    /// It took so long.
    pub fn record(&self, endpoint: EndpointClass, outcome: O, duration: Duration) {
        let histogram = &self.histograms[endpoint.index() * O::VALUES.len() + outcome.index()];
        histogram.get_or_init(|| Box::new(Histogram::new(&TIME))).record(duration);
    }

    /// What was recorded.
    pub fn series(&self) -> Vec<Series> {
        let labels = EndpointClass::ALL.into_iter().flat_map(|endpoint| {
            O::VALUES.iter().map(move |outcome| vec![("endpoint", endpoint.label()), ("outcome", outcome.label())])
        });
        labels.zip(&self.histograms).filter_map(|(labels, seen)| Some((labels, seen.get()?.snapshot()))).collect()
    }
}
