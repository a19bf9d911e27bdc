//! [`Metrics`]: all metrics of the proxy.
//!
//! Labels come from fixed sets only. With a path, URL, address or audience as a label, any pod could create
//! unlimited series.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use tokio::time::Instant;

use super::compat::RequestCount;
use super::labels::{Label, labels};
use super::latency::{Latency, RequestOutcome};
use super::moment::Moment;
use super::process;
use super::sampled::Sampled;
use super::table::{self, Row};
use super::talkers::{Talker, Talkers};

/// What is counted and measured, with the handles that the request path uses.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Where time goes.
    pub latency: &'static Latency,
    request_count: Arc<RequestCount>,
    answers: [IntCounter; CODES.len()],
    refusals: IntCounterVec,
    /// Connections of clients that are open now.
    pub connections: IntGauge,
    /// Connections of clients that were accepted.
    pub accepted: IntCounter,
    sheds: [IntCounter; Shed::ALL.len()],
    shed_log: Sampled,
    refusal_log: Sampled,
    /// Who asks most.
    pub talkers: &'static Talkers,
    /// Connections that were reset in place of an answer, or at once.
    pub resets: IntCounter,
    /// Panics that ended a client's request.
    pub panics: IntCounter,
    /// Requests in flight, as of the last scrape.
    pub in_flight: IntGauge,
    /// Most requests in flight between the last two scrapes.
    pub in_flight_peak: IntGauge,
    /// Most requests in flight that are let in.
    pub in_flight_limit: IntGauge,
    /// Watches under way, as of the last scrape.
    pub hanging: IntGauge,
    /// Requests to the upstream, by class of status or `Failure::label`.
    pub upstream_requests: IntCounterVec,
    token_requests: [IntCounter; TokenOutcome::ALL.len()],
    token_flights: [[IntCounter; FlightOutcome::ALL.len()]; FlightCause::ALL.len()],
    /// Keys that the token cache gave up for others.
    pub token_evictions: IntCounter,
    /// Keys in the token cache, as of the last scrape.
    pub token_entries: IntGauge,
    /// Memory, as of the last scrape.
    pub memory: MemoryMetrics,
    default_token_expiry: IntGaugeVec,
    policy: PolicyMetrics,
    spans: [IntCounter; SpanOutcome::ALL.len()],
    on_scrape: OnScrape,
}

/// How near the process is to its memory limit. In bytes, but for the level.
#[derive(Debug)]
pub struct MemoryMetrics {
    /// What the control group uses.
    pub usage: IntGauge,
    /// What it may use.
    pub limit: IntGauge,
    /// The step of shedding that is in force.
    pub level: IntGauge,
    /// What connections are charged.
    pub connections: IntGauge,
    /// What they may be charged.
    pub connections_limit: IntGauge,
}

impl MemoryMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            usage: gauge(registry, &table::MEMORY_USAGE),
            limit: gauge(registry, &table::MEMORY_LIMIT),
            level: gauge(registry, &table::MEMORY_LEVEL),
            connections: gauge(registry, &table::CONNECTION_BYTES),
            connections_limit: gauge(registry, &table::CONNECTION_BYTES_LIMIT),
        }
    }
}

/// What the policy does, and which it is.
#[derive(Debug)]
struct PolicyMetrics {
    verdicts: [[IntCounter; JudgeMode::ALL.len()]; Judgement::ALL.len()],
    info: IntGaugeVec,
    rejected: IntGauge,
    reloads: [IntCounter; Reload::ALL.len()],
}

labels! {
    /// What the policy made of a request.
    Judgement {
        /// It went on as it was.
        Allowed = "allowed",
        /// What is concealed was to be cut out of its answer.
        Redacted = "redacted",
        /// It was to be refused.
        Concealed = "concealed",
    }
}

labels! {
    /// Whether the policy was carried out.
    JudgeMode {
        /// It was.
        Enforce = "enforce",
        /// It was only logged.
        Audit = "audit",
    }
}

labels! {
    /// What came of a change of the policy's file.
    Reload {
        /// The new policy is in force.
        Applied = "applied",
        /// The old one stays.
        Rejected = "rejected",
    }
}

labels! {
    /// How a request for a token was answered.
    TokenOutcome {
        /// From memory.
        Fresh = "fresh",
        /// From memory, while a new token was being looked for.
        Stale = "stale",
        /// After a flight that it began.
        Miss = "miss",
        /// After a flight that another request began.
        Coalesced = "coalesced",
        /// By a failure so recent that the server was not asked again.
        Failure = "failure",
    }
}

labels! {
    /// Why a token was fetched.
    FlightCause {
        /// Somebody waited for it.
        Demand = "demand",
        /// To have a new one in time.
        Refresh = "refresh",
    }
}

labels! {
    /// What came of fetching a token.
    FlightOutcome {
        /// A token that was not known.
        New = "new",
        /// The one that was known.
        Same = "same",
        /// An answer that is no token.
        Refused = "refused",
        /// No answer, or garbage.
        Failed = "failed",
    }
}

labels! {
    /// What became of a span.
    SpanOutcome {
        /// The collector has it.
        Exported = "exported",
        /// The collector did not take it.
        Failed = "failed",
        /// It found no room in the queue.
        Dropped = "dropped",
    }
}

labels! {
    /// Why something was refused or closed for want of room.
    Shed {
        /// A request: all seats are taken.
        InFlight = "in_flight",
        /// A hanging GET: there are as many watches as there may be.
        Hanging = "hanging",
        /// A newcomer: no connection could give way to it.
        Connections = "connections",
        /// A connection that got nowhere gave way to another.
        IdleConnection = "idle_connection",
        /// A request in flight of the client with most connections was cut for another client.
        FairShare = "fair_share",
        /// An answer that its client did not read was cut.
        UnreadAnswer = "unread_answer",
        /// A request with a large answer: the memory for those is taken.
        LargeAnswers = "large_answers",
        /// A request for a token: its client asks for too many different ones.
        Tokens = "tokens",
        /// A connection was closed or reset because memory is short.
        Memory = "memory",
    }
}

/// What brings gauges up to date before they are read.
#[derive(Default)]
struct OnScrape(OnceLock<Update>);

type Update = Box<dyn Fn(&Metrics) + Send + Sync>;

impl std::fmt::Debug for OnScrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnScrape")
    }
}

/// The classes of status that are told apart.
const CODES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl PolicyMetrics {
    fn new(registry: &Registry) -> Self {
        let verdicts = counters(registry, &table::POLICY_VERDICTS);
        let reloads = counters(registry, &table::POLICY_RELOADS);
        Self {
            verdicts: Judgement::ALL
                .map(|verdict| JudgeMode::ALL.map(|mode| verdicts.with_label_values(&[verdict.label(), mode.label()]))),
            info: register(registry, IntGaugeVec::new(opts(&table::POLICY_INFO), table::POLICY_INFO.labels)),
            rejected: gauge(registry, &table::POLICY_REJECTED),
            reloads: Reload::ALL.map(|outcome| reloads.with_label_values(&[outcome.label()])),
        }
    }
}

impl Metrics {
    /// All metrics at zero, in a registry of their own, for as long as the process lives.
    pub fn leak() -> &'static Self {
        let registry = Registry::new();
        let latency = Latency::leak();
        let request_count = Arc::<RequestCount>::default();
        for exported in [latency.exported(), request_count.exported(), process::exported()] {
            registry.register(Box::new(exported)).expect("the table's names are distinct");
        }
        let answers = counters(&registry, &table::REQUESTS);
        let sheds = counters(&registry, &table::SHEDS);
        let token_requests = counters(&registry, &table::TOKEN_REQUESTS);
        let token_flights = counters(&registry, &table::TOKEN_FLIGHTS);
        let spans = counters(&registry, &table::SPANS);
        let metrics = Self {
            latency,
            request_count,
            answers: CODES.map(|code| answers.with_label_values(&[code])),
            refusals: counters(&registry, &table::REFUSALS),
            sheds: Shed::ALL.map(|reason| sheds.with_label_values(&[reason.label()])),
            shed_log: Sampled::new(Duration::from_secs(1)),
            refusal_log: Sampled::new(Duration::from_secs(10)),
            talkers: Box::leak(Box::default()),
            resets: counter(&registry, &table::RESETS),
            panics: counter(&registry, &table::PANICS),
            in_flight: gauge(&registry, &table::IN_FLIGHT),
            in_flight_peak: gauge(&registry, &table::IN_FLIGHT_PEAK),
            in_flight_limit: gauge(&registry, &table::IN_FLIGHT_LIMIT),
            hanging: gauge(&registry, &table::HANGING),
            connections: gauge(&registry, &table::CONNECTIONS),
            accepted: counter(&registry, &table::ACCEPTED),
            upstream_requests: counters(&registry, &table::UPSTREAM_REQUESTS),
            token_requests: TokenOutcome::ALL.map(|outcome| token_requests.with_label_values(&[outcome.label()])),
            token_flights: FlightCause::ALL.map(|cause| {
                FlightOutcome::ALL.map(|outcome| token_flights.with_label_values(&[cause.label(), outcome.label()]))
            }),
            token_evictions: counter(&registry, &table::TOKEN_EVICTIONS),
            token_entries: gauge(&registry, &table::TOKEN_ENTRIES),
            memory: MemoryMetrics::new(&registry),
            default_token_expiry: register(
                &registry,
                IntGaugeVec::new(opts(&table::DEFAULT_TOKEN_EXPIRY), table::DEFAULT_TOKEN_EXPIRY.labels),
            ),
            policy: PolicyMetrics::new(&registry),
            spans: SpanOutcome::ALL.map(|outcome| spans.with_label_values(&[outcome.label()])),
            on_scrape: OnScrape::default(),
            registry,
        };
        metrics.describe_build();
        Box::leak(Box::new(metrics))
    }

    /// Counts an answer to a client.
    pub fn count_answer(&self, outcome: RequestOutcome, status: StatusCode) {
        self.request_count.count(outcome, status);
        let class = usize::from(status.as_u16() / 100).clamp(1, CODES.len());
        self.answers[class - 1].inc();
    }

    /// Counts a request that was refused or failed here.
    pub fn count_refusal(&self, reason: &str) {
        self.refusals.with_label_values(&[reason]).inc();
    }

    /// Counts a refusal for the log. Returns how many there were since the last line about them if another line is due.
    pub fn refusal_line_due(&self) -> Option<u64> {
        self.refusal_log.due(Instant::now())
    }

    /// Counts a connection that was reset at once, because all others are in use.
    pub fn shed_connection(&self, peer: SocketAddr) {
        self.resets.inc();
        self.talkers.note(peer.ip(), RequestOutcome::Shed, Moment::now());
        self.shed(Shed::Connections, Some(peer));
    }

    /// Counts what there was no room for, and says so, at most once a second, with those who ask most.
    pub fn shed(&self, reason: Shed, peer: Option<SocketAddr>) {
        self.sheds[reason as usize].inc();
        let now = Instant::now();
        let Some(count) = self.shed_log.due(now) else { return };
        let talkers = self.talkers.top(3, Moment::now());
        let told = |talker: &Talker| format!("{}: {} requests, {} shed", talker.address, talker.requests, talker.sheds);
        let talkers: Vec<String> = talkers.iter().map(told).collect();
        tracing::warn!(
            reason = reason.label(),
            count,
            peer = peer.map(tracing::field::display),
            last_minute = talkers.join("; "),
            "overloaded: shedding requests or connections"
        );
    }

    /// Counts what the policy made of a request.
    pub fn judged(&self, judgement: Judgement, mode: JudgeMode) {
        self.policy.verdicts[judgement as usize][mode as usize].inc();
    }

    /// Says how many seconds the default account's token has left: 0 if it expired and no new one came, and no series at
    /// all while there is none for a good reason, so that no alert can fire then.
    pub fn default_token_expires_in(&self, seconds: Option<u32>) {
        match seconds {
            Some(seconds) => self.default_token_expiry.with_label_values::<&str>(&[]).set(seconds.into()),
            None => self.default_token_expiry.reset(),
        }
    }

    /// Says which policy is in force.
    pub fn policy_in_force(&self, name: &str, version: &str, hash: &str) {
        self.policy.info.reset();
        self.policy.info.with_label_values(&[name, version, hash]).set(1);
    }

    /// Counts a change of the policy's file.
    pub fn policy_reloaded(&self, outcome: Reload) {
        self.policy.rejected.set(i64::from(outcome == Reload::Rejected));
        self.policy.reloads[outcome as usize].inc();
    }

    /// What was refused or failed here so far, by reason.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        counted(&self.refusals)
    }

    /// What came of requests to the metadata server so far.
    pub fn upstream_outcomes(&self) -> Vec<(String, u64)> {
        counted(&self.upstream_requests)
    }

    /// What was refused or closed for want of room so far, by reason.
    pub fn sheds(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Shed::ALL.into_iter().map(Shed::label).zip(self.sheds.iter().map(IntCounter::get))
    }

    /// The counter of requests for tokens that were answered in this way.
    pub fn token_request(&self, outcome: TokenOutcome) -> &IntCounter {
        &self.token_requests[outcome as usize]
    }

    /// The counter of tokens fetched for this reason with this outcome.
    pub fn token_flight(&self, cause: FlightCause, outcome: FlightOutcome) -> &IntCounter {
        &self.token_flights[cause as usize][outcome as usize]
    }

    /// The counter of spans of which this became.
    pub fn spans(&self, outcome: SpanOutcome) -> &IntCounter {
        &self.spans[outcome as usize]
    }

    /// Has gauges brought up to date before they are read. Only the first call counts.
    pub fn on_scrape(&self, update: impl Fn(&Self) + Send + Sync + 'static) {
        let _ = self.on_scrape.0.set(Box::new(update));
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        if let Some(update) = self.on_scrape.0.get() {
            update(self);
        }
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        encoded.expect("writing to memory does not fail, and no metric is without a value");
        String::from_utf8(text).expect("names, helps and labels are UTF-8")
    }

    fn describe_build(&self) {
        let info = IntGaugeVec::new(opts(&table::BUILD_INFO), table::BUILD_INFO.labels);
        register(&self.registry, info).with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    }
}

/// The series of a counter with one label.
fn counted(counters: &IntCounterVec) -> Vec<(String, u64)> {
    let families = counters.collect();
    let mut counted: Vec<_> = families.iter().flat_map(MetricFamily::get_metric).map(value).collect();
    counted.sort();
    counted
}

fn value(metric: &Metric) -> (String, u64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it counts whole things")]
    (metric.get_label()[0].value().to_owned(), metric.get_counter().get_value() as u64)
}

fn counters(registry: &Registry, row: &Row) -> IntCounterVec {
    register(registry, IntCounterVec::new(opts(row), row.labels))
}

fn counter(registry: &Registry, row: &Row) -> IntCounter {
    register(registry, IntCounter::with_opts(opts(row)))
}

fn gauge(registry: &Registry, row: &Row) -> IntGauge {
    register(registry, IntGauge::with_opts(opts(row)))
}

fn opts(row: &Row) -> Opts {
    Opts::new(row.name, row.help)
}

fn register<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("the table's names are valid");
    registry.register(Box::new(metric.clone())).expect("the table's names are distinct");
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_counted_under_its_class() {
        let metrics = Metrics::leak();
        for code in [200, 301, 403, 404, 503] {
            metrics.count_answer(RequestOutcome::Passed, StatusCode::from_u16(code).expect("a status"));
        }
        let text = metrics.render();
        for line in [
            r#"metadata_proxy_requests_total{code="2xx"} 1"#,
            r#"metadata_proxy_requests_total{code="4xx"} 2"#,
            r#"metadata_proxy_requests_total{code="1xx"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
    }
}
