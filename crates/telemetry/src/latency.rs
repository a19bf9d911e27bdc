//! [`Latency`]: all duration histograms, and their handles for the request path.

use std::array;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::export::{Exported, Value};
use super::histogram::{Histogram, Snapshot, TIME_BOUNDS, WORK_BOUNDS};
use super::labels::Label;
use super::registry::Registry;
use super::table::{self, Row};
use crate::labels;
use protocol::metadata::{Endpoint, Request};

labels! {
    /// The filters of the request path, named after their layers, in the order of `stack.rs`.
    Filter {
        /// `layers::classify`.
        Classify = "classify",
        /// `identity::identify`.
        Identify = "identify",
        /// `layers::in_flight`.
        InFlight = "in_flight",
        /// `layers::discovery`.
        Discovery = "discovery",
        /// `layers::conceal`.
        Conceal = "conceal",
        /// `identity::accounts`.
        Accounts = "accounts",
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

impl Filter {
    /// The filters of a proxy that does not identify pods, in order.
    pub fn without_identity() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|filter| !matches!(filter, Self::Identify | Self::Accounts))
    }
}

labels! {
    FilterOutcome {
        /// The filter passed the request on.
        Passed = "passed",
        /// The filter answered.
        Answered = "answered",
        /// The filter returned an error: a refusal, or a failure of the metadata server.
        Refused = "refused",
    }
}

labels! {
    /// The kind of a request, determined by its path, and by whether it waits for a change.
    EndpointClass {
        /// `/`.
        Root = "root",
        /// `/computeMetadata/`.
        Versions = "versions",
        /// An access token.
        Token = "token",
        /// An identity token.
        Identity = "identity",
        /// Any other path of a service account.
        ServiceAccounts = "service_accounts",
        /// Any other directory of v1.
        Directory = "directory",
        /// Any other value of v1.
        Leaf = "leaf",
        /// A request that waits for a change (`wait_for_change`), of any path. It has no duration to compare: it lasts
        /// until something changes.
        Watch = "watch",
        /// An API version before v1.
        Legacy = "legacy",
        /// An unknown API version.
        Unknown = "unknown",
        /// The request was refused before it was parsed.
        Unread = "unread",
    }
}

labels! {
    RequestOutcome {
        /// The proxy itself answered.
        Answered = "answered",
        /// A response of the metadata server was passed on or served from memory, unless its status is 429 or 5xx.
        Passed = "passed",
        /// The proxy refused the request by its rules.
        Refused = "refused",
        /// The request was shed under overload.
        Shed = "shed",
        /// The metadata server failed: it did not answer, or its status 429 or 5xx was passed on.
        Failed = "failed",
        /// The client disconnected, or the response was cut, before its last byte.
        Cut = "cut",
    }
}

labels! {
    UpstreamOutcome {
        Success = "2xx",
        Redirect = "3xx",
        /// Other than 429.
        Refusal = "4xx",
        /// The metadata server says that it gets too many requests.
        TooMany = "429",
        Error = "5xx",
        /// No response, or an incomplete one.
        Failed = "failed",
        /// No client was waiting for it any more.
        Abandoned = "abandoned",
    }
}

impl From<&Request> for EndpointClass {
    fn from(request: &Request) -> Self {
        match request.endpoint {
            Endpoint::Token(_) => Self::Token,
            Endpoint::Identity(_) => Self::Identity,
            _ if request.hangs() => Self::Watch,
            Endpoint::Root => Self::Root,
            Endpoint::Versions => Self::Versions,
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
    /// Durations of requests.
    pub requests: Exchanges<RequestOutcome>,
    /// Durations of upstream requests.
    pub upstream: Exchanges<UpstreamOutcome>,
}

#[derive(Debug)]
pub struct FilterTimes {
    pub filter: Filter,
    work: [Histogram<{ WORK_BOUNDS.len() }>; FilterOutcome::ALL.len()],
    wait: Histogram<{ TIME_BOUNDS.len() }>,
}

/// Durations from a request to its response.
#[derive(Debug)]
pub struct Exchanges<O> {
    /// Until the response head.
    pub first_byte: ByEndpoint<O>,
    /// Until the last byte of the response, or until it was cut short.
    pub last_byte: ByEndpoint<O>,
}

/// A histogram for each endpoint class and outcome. Most of these combinations never occur, so the 328 bytes of each
/// are allocated at its first observation, or when its series must exist from the start.
#[derive(Debug)]
pub struct ByEndpoint<O> {
    histograms: Box<[OnceLock<Box<Histogram<{ TIME_BOUNDS.len() }>>>]>,
    outcomes: PhantomData<O>,
}

/// Labels and state of one histogram.
pub type Series = (Vec<(&'static str, &'static str)>, Snapshot);

type Read = fn(&Latency) -> Vec<Series>;

/// The metrics of this file, and how to read each.
const FAMILIES: [(&Row, Read); 6] = [
    (&table::REQUEST_DURATION, |latency| latency.requests.last_byte.series()),
    (&table::REQUEST_FIRST_BYTE, |latency| latency.requests.first_byte.series()),
    (&table::FILTER_DURATION, |latency| observed(latency.work())),
    (&table::FILTER_WAIT, |latency| observed(latency.waits())),
    (&table::UPSTREAM_DURATION, |latency| latency.upstream.last_byte.series()),
    (&table::UPSTREAM_FIRST_BYTE, |latency| latency.upstream.first_byte.series()),
];

fn observed(mut all: Vec<Series>) -> Vec<Series> {
    all.retain(|(_, snapshot)| snapshot.count() > 0);
    all
}

impl Latency {
    /// Registers its metrics.
    pub fn new(registry: &Registry) -> Arc<Self> {
        let latency = Arc::<Self>::default();
        // The objective needs these. A series that begins with the first failure has no rate for it.
        for outcome in RequestOutcome::ALL {
            latency.requests.last_byte.histogram(EndpointClass::Token, outcome);
        }
        registry.export(latency.exported());
        latency
    }

    /// The metrics, for a registry. Other series without observations are left out: most combinations of an endpoint
    /// and an outcome never occur.
    fn exported(self: &Arc<Self>) -> Exported {
        let latency = Arc::clone(self);
        Exported::new(&FAMILIES.map(|(row, _)| row), move || {
            let family = |(row, read): (&'static Row, Read)| {
                let named = |(name, value): (&'static str, &'static str)| (name, value.into());
                let series = read(&latency)
                    .into_iter()
                    .map(|(labels, snapshot)| (labels.into_iter().map(named).collect(), Value::Histogram(snapshot)));
                (row, series.collect())
            };
            FAMILIES.map(family).into()
        })
    }

    pub fn filter(&self, filter: Filter) -> &FilterTimes {
        &self.filters[filter.index()]
    }

    /// Working time of each filter, by outcome.
    pub fn work(&self) -> Vec<Series> {
        let of_filter = |filter: Filter| {
            FilterOutcome::ALL.map(|outcome| {
                let labels = vec![("filter", filter.label()), ("outcome", outcome.label())];
                (labels, self.filter(filter).work[outcome.index()].snapshot())
            })
        };
        Filter::ALL.into_iter().flat_map(of_filter).collect()
    }

    /// Time that requests spend suspended in each filter.
    pub fn waits(&self) -> Vec<Series> {
        let of_filter = |filter: Filter| (vec![("filter", filter.label())], self.filter(filter).wait.snapshot());
        Filter::ALL.map(of_filter).into()
    }
}

/// Not registered anywhere.
impl Default for Latency {
    fn default() -> Self {
        let filters = Filter::ALL.map(FilterTimes::new);
        Self { filters, requests: Exchanges::new(), upstream: Exchanges::new() }
    }
}

impl FilterTimes {
    fn new(filter: Filter) -> Self {
        Self { filter, work: array::from_fn(|_| Histogram::new(&WORK_BOUNDS)), wait: Histogram::new(&TIME_BOUNDS) }
    }

    /// Records that a request left the filter with this outcome, after this much work of the filter itself, in
    /// nanoseconds.
    pub fn worked(&self, outcome: FilterOutcome, nanoseconds: u64) {
        self.work[outcome.index()].record_nanos(nanoseconds);
    }

    /// Records that a request was suspended in the filter for this long in total, in nanoseconds.
    pub fn waited(&self, nanoseconds: u64) {
        self.wait.record_nanos(nanoseconds);
    }

    /// Working time over all outcomes, and waiting time.
    pub fn snapshots(&self) -> (Snapshot, Snapshot) {
        let mut work = Snapshot::empty(&WORK_BOUNDS);
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

    pub fn record(&self, endpoint: EndpointClass, outcome: O, duration: Duration) {
        self.histogram(endpoint, outcome).record(duration);
    }

    fn histogram(&self, endpoint: EndpointClass, outcome: O) -> &Histogram<{ TIME_BOUNDS.len() }> {
        let histogram = &self.histograms[endpoint.index() * O::VALUES.len() + outcome.index()];
        histogram.get_or_init(|| Box::new(Histogram::new(&TIME_BOUNDS)))
    }

    /// All histograms that are allocated.
    pub fn series(&self) -> Vec<Series> {
        let labels = EndpointClass::ALL.into_iter().flat_map(|endpoint| {
            O::VALUES.iter().map(move |outcome| vec![("endpoint", endpoint.label()), ("outcome", outcome.label())])
        });
        labels.zip(&self.histograms).filter_map(|(labels, seen)| Some((labels, seen.get()?.snapshot()))).collect()
    }
}
