//! Every metric: its name, its labels, its buckets, once.
//!
//! Labels come from closed sets only. A path, a URL, an address or an audience as a label would let any pod make series
//! without end.

use std::net::SocketAddr;
use std::sync::OnceLock;

use http::StatusCode;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::shed_log::ShedLog;
use crate::error::Overload;
use crate::policy::Policy;

/// What is counted and measured, with the handles that the request path uses.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    answers: [IntCounter; CODES.len()],
    /// Answers that were a refusal or a failure of the proxy's own, by [`Error::reason`](crate::error::Error::reason).
    pub refusals: IntCounterVec,
    /// Connections of clients that are open now.
    pub connections: IntGauge,
    /// Connections of clients that were accepted.
    pub accepted: IntCounter,
    sheds: [IntCounter; SHEDS.len()],
    shed_log: ShedLog,
    /// Connections that were reset in place of an answer, or at once.
    pub resets: IntCounter,
    /// Requests in flight, as of the last scrape.
    pub in_flight: IntGauge,
    /// Most requests in flight between the last two scrapes.
    pub in_flight_peak: IntGauge,
    /// Most requests in flight that are let in.
    pub in_flight_limit: IntGauge,
    /// Watches under way, as of the last scrape.
    pub hanging: IntGauge,
    /// Requests to the upstream, by class of status or [`Failure::label`](crate::upstream::Failure::label).
    pub upstream_requests: IntCounterVec,
    token_requests: [IntCounter; TokenOutcome::ALL.len()],
    token_flights: [[IntCounter; FlightOutcome::ALL.len()]; FlightCause::ALL.len()],
    /// Keys that the token cache gave up for others.
    pub token_evictions: IntCounter,
    /// Keys in the token cache, as of the last scrape.
    pub token_entries: IntGauge,
    /// Seconds that the default account's token has left, as of the last scrape; 0 while there is none.
    pub default_token_expiry: IntGauge,
    policy: PolicyMetrics,
    on_scrape: OnScrape,
    /// From sending a request to the upstream until its answer can be passed on.
    pub upstream_duration: Histogram,
}

/// What the policy does and which it is.
#[derive(Debug)]
struct PolicyMetrics {
    judged: [[IntCounter; JudgeMode::ALL.len()]; Judgement::ALL.len()],
    info: IntGaugeVec,
    rejected: IntGauge,
    reloads: [IntCounter; Reload::ALL.len()],
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $label:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            const ALL: [&str; [$($label),+].len()] = [$($label),+];
        }
    };
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

/// For want of what something was refused or closed.
const SHEDS: [&str; 6] = ["in_flight", "hanging", "connections", "idle_connection", "unread_answer", "redaction"];

/// From an answer on the same machine to the deadline of 2.5 s, and what a hanging GET may take beyond.
const UPSTREAM_SECONDS: [f64; 12] = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.5, 10.0, 60.0, 300.0];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl PolicyMetrics {
    fn new(registry: &Registry) -> Self {
        let judged = counters(
            registry,
            "metadata_proxy_policy_verdicts_total",
            "Requests judged by the policy, by verdict and by whether it was carried out.",
            &["verdict", "mode"],
        );
        let reloads = counters(
            registry,
            "metadata_proxy_policy_reloads_total",
            "Changes of the policy's file, by what came of them.",
            &["outcome"],
        );
        Self {
            judged: Judgement::ALL.map(|verdict| JudgeMode::ALL.map(|mode| judged.with_label_values(&[verdict, mode]))),
            info: register(
                registry,
                IntGaugeVec::new(
                    Opts::new("metadata_proxy_policy_info", "The policy in force; the value is always 1."),
                    &["name", "version", "hash"],
                ),
            ),
            rejected: register(
                registry,
                IntGauge::new(
                    "metadata_proxy_policy_rejected",
                    "1 while the policy's file cannot be used and the policy before it stays in force.",
                ),
            ),
            reloads: Reload::ALL.map(|outcome| reloads.with_label_values(&[outcome])),
        }
    }
}

impl Metrics {
    /// All metrics at zero, in a registry of their own.
    pub fn new() -> Self {
        let registry = Registry::new();
        let answers =
            counters(&registry, "metadata_proxy_requests_total", "Requests answered, by class of status.", &["code"]);
        let token_requests = counters(
            &registry,
            "metadata_proxy_token_requests_total",
            "Requests for tokens, by how they were answered.",
            &["outcome"],
        );
        let sheds = counters(
            &registry,
            "metadata_proxy_sheds_total",
            "Requests and connections refused, and idle connections closed, for want of room.",
            &["reason"],
        );
        let token_flights = counters(
            &registry,
            "metadata_proxy_token_flights_total",
            "Tokens fetched from the metadata server, by cause and outcome.",
            &["cause", "outcome"],
        );
        let metrics = Self {
            answers: CODES.map(|code| answers.with_label_values(&[code])),
            refusals: counters(
                &registry,
                "metadata_proxy_refusals_total",
                "Requests that got a refusal or a failure made by the proxy, by reason.",
                &["reason"],
            ),
            sheds: SHEDS.map(|reason| sheds.with_label_values(&[reason])),
            shed_log: ShedLog::default(),
            resets: register(
                &registry,
                IntCounter::new("metadata_proxy_resets_total", "Connections of clients that were reset."),
            ),
            in_flight: register(&registry, IntGauge::new("metadata_proxy_in_flight", "Requests in flight.")),
            in_flight_peak: register(
                &registry,
                IntGauge::new("metadata_proxy_in_flight_peak", "Most requests in flight since the last scrape."),
            ),
            in_flight_limit: register(
                &registry,
                IntGauge::new("metadata_proxy_in_flight_limit", "Most requests in flight that are let in."),
            ),
            hanging: register(
                &registry,
                IntGauge::new("metadata_proxy_hanging", "wait_for_change requests to the metadata server under way."),
            ),
            connections: register(
                &registry,
                IntGauge::new("metadata_proxy_connections", "Open connections of clients."),
            ),
            accepted: register(
                &registry,
                IntCounter::new("metadata_proxy_connections_total", "Connections of clients accepted."),
            ),
            upstream_requests: counters(
                &registry,
                "metadata_proxy_upstream_requests_total",
                "Requests sent to the metadata server, by outcome.",
                &["outcome"],
            ),
            upstream_duration: register(
                &registry,
                Histogram::with_opts(
                    HistogramOpts::new(
                        "metadata_proxy_upstream_duration_seconds",
                        "From sending a request to the metadata server until its answer can be passed on.",
                    )
                    .buckets(UPSTREAM_SECONDS.to_vec()),
                ),
            ),
            token_requests: TokenOutcome::ALL.map(|outcome| token_requests.with_label_values(&[outcome])),
            token_flights: FlightCause::ALL
                .map(|cause| FlightOutcome::ALL.map(|outcome| token_flights.with_label_values(&[cause, outcome]))),
            token_evictions: register(
                &registry,
                IntCounter::new(
                    "metadata_proxy_token_evictions_total",
                    "Keys that the token cache gave up for others.",
                ),
            ),
            token_entries: register(
                &registry,
                IntGauge::new("metadata_proxy_token_entries", "Keys in the token cache."),
            ),
            default_token_expiry: register(
                &registry,
                IntGauge::new(
                    "metadata_proxy_default_token_expiry_seconds",
                    "Seconds that the default account's token has left; 0 while there is none.",
                ),
            ),
            policy: PolicyMetrics::new(&registry),
            on_scrape: OnScrape::default(),
            registry,
        };
        metrics.describe_build();
        metrics
    }

    /// Counts an answer to a client.
    pub fn count_answer(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CODES.len());
        self.answers[class - 1].inc();
    }

    /// Counts what the policy made of a request.
    pub fn judged(&self, judgement: Judgement, mode: JudgeMode) {
        self.policy.judged[judgement as usize][mode as usize].inc();
    }

    /// Says which policy is in force.
    pub fn policy_in_force(&self, policy: &Policy) {
        self.policy.info.reset();
        self.policy.info.with_label_values(&[policy.name(), policy.version(), policy.hash()]).set(1);
    }

    /// Counts a change of the policy's file.
    pub fn policy_reloaded(&self, outcome: Reload) {
        self.policy.rejected.set(i64::from(outcome == Reload::Rejected));
        self.policy.reloads[outcome as usize].inc();
    }

    /// Counts a request that was refused for want of room, and says so, at most once a second.
    pub fn shed(&self, overload: Overload, peer: SocketAddr) {
        let reason = match overload {
            Overload::InFlight => 0,
            Overload::Hanging => 1,
            Overload::Redaction => 5,
        };
        self.sheds[reason].inc();
        self.shed_log.note(SHEDS[reason], Some(peer));
    }

    /// Counts a connection that was reset at once, because all others are in use.
    pub fn shed_connection(&self) {
        self.sheds[2].inc();
        self.resets.inc();
        self.shed_log.note(SHEDS[2], None);
    }

    /// Counts a connection that was closed to let another in.
    pub fn shed_idle_connection(&self) {
        self.sheds[3].inc();
        self.shed_log.note(SHEDS[3], None);
    }

    /// Counts a connection that was cut because its client does not read its answer, and others want its seat.
    pub fn shed_unread_answer(&self) {
        self.sheds[4].inc();
        self.shed_log.note(SHEDS[4], None);
    }

    /// The counter of requests for tokens that were answered in this way.
    pub fn token_request(&self, outcome: TokenOutcome) -> &IntCounter {
        &self.token_requests[outcome as usize]
    }

    /// The counter of tokens fetched for this reason with this outcome.
    pub fn token_flight(&self, cause: FlightCause, outcome: FlightOutcome) -> &IntCounter {
        &self.token_flights[cause as usize][outcome as usize]
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
        let opts = Opts::new("metadata_proxy_build_info", "1, with the version of the running binary.")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        register(&self.registry, IntGauge::with_opts(opts)).set(1);
    }
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn register<M: prometheus::core::Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("the names in this file are valid");
    registry.register(Box::new(metric.clone())).expect("the names in this file are distinct");
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_counted_under_its_class() {
        let metrics = Metrics::new();
        for code in [200, 301, 403, 404, 503] {
            metrics.count_answer(StatusCode::from_u16(code).expect("a status"));
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
