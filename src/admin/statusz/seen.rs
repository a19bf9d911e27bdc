//! Collects the [`Overview`] from the parts of the proxy that own the data.

use std::fs;
use std::net::IpAddr;

use jiff::Timestamp;
use tokio::time::Instant;

use super::overview::{Count, LastMinute, Overview, Policy, RefusalStatus, Rejected, Surroundings, TalkerStatus};
use crate::condition::{self, Condition, Fact, PolicySeen, Seen};
use crate::shared::{Shared, State};
use crate::units::span;
use identity::Identity;
use protocol::metadata::CallingPod;
use proxy::policy::A_RESTART_FAILS;
use proxy::upstream::Upstream;
use telemetry::Moment;
use telemetry::labels::Label;
use telemetry::refusals::Refusal;

/// Maximum number of clients shown.
const MAX_TALKERS: usize = 10;

/// The current problems.
pub fn facts(shared: &Shared) -> Vec<Fact> {
    condition::facts(&Seen::of(shared))
}

impl Seen {
    fn of(shared: &Shared) -> Self {
        let Shared { readiness, identity, .. } = shared;
        let state = readiness.state();
        Self {
            troubles: if state.is_ready() { readiness.troubles() } else { Vec::new() },
            state,
            policy: PolicySeen::of(shared),
            minute: shared.measures.last_minute().1,
            busiest: busiest(&talkers(shared, usize::MAX)),
            redirect: shared.redirect.get().and_then(|redirect| redirect.trouble()),
            watch_error: identity.as_ref().and_then(|identity| identity.watch_error()),
            state_error: identity.as_ref().and_then(|identity| identity.state_error()),
            credential: identity.as_ref().map(|identity| identity.credential().get()),
        }
    }
}

impl PolicySeen {
    fn of(shared: &Shared) -> Self {
        let rejected = shared.concealment.policy().rejected();
        Self {
            source: shared.config.policy.source.to_string(),
            mode: shared.config.policy_mode,
            served: shared.concealment.metrics().audited(),
            rejected: rejected.map(|rejection| (rejection.error.clone(), rejection.since.elapsed())),
        }
    }
}

/// Names the client that was shed most. If what was shed is of no known client: the one with the most requests.
fn busiest(talkers: &[TalkerStatus]) -> Option<String> {
    // Of equals, the first has the most requests.
    let asks = talkers.iter().rev().max_by_key(|asks| asks.talker.sheds)?;
    let what = if asks.talker.sheds > 0 { "the client shed most is" } else { "the client with the most requests is" };
    Some(format!("{what} {}: {} requests, {} shed", asks.who(), asks.talker.number(), asks.talker.sheds))
}

impl Overview {
    /// Collects the current state.
    pub(super) fn of(shared: &Shared) -> Self {
        let facts = facts(shared);
        let (lasted, minute) = shared.measures.last_minute();
        let sheds = minute.sheds().into_iter();
        Self {
            condition: Condition::of(&facts),
            facts,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: node(shared),
            time: now(),
            uptime_seconds: shared.began.elapsed().as_secs(),
            readiness: shared.readiness.state(),
            policy: Policy::of(shared),
            surroundings: Surroundings::of(shared),
            last_minute: LastMinute {
                seconds: lasted.as_secs(),
                requests: minute.requests,
                refused: minute.refused + minute.server_failed,
                sheds: sheds.map(|(reason, count)| Count { reason: reason.label().to_owned(), count }).collect(),
            },
            last_refusals: shared.refusals.last().iter().map(RefusalStatus::of).collect(),
            refusals_not_shown: shared.refusals.without_place(),
            talkers: talkers(shared, MAX_TALKERS),
        }
    }
}

/// The clients with the most requests in the last minute.
fn talkers(shared: &Shared, max: usize) -> Vec<TalkerStatus> {
    let pod_at = |addr: IpAddr| shared.identity.as_ref()?.pod_at(addr);
    let talkers = shared.measures.instruments.talkers.top(max, Moment::now()).into_iter();
    talkers.map(|talker| TalkerStatus { pod: pod_at(talker.address).as_deref().map(name), talker }).collect()
}

fn name(pod: &CallingPod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// The node's name in the cluster if it is configured, otherwise the host name.
fn node(shared: &Shared) -> String {
    let configured = shared.config.identity.as_ref().map(|identity| identity.cluster.node.as_str().to_owned());
    let host = || fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
    configured.or_else(|| host().ok()).unwrap_or_else(|| "an unknown node".to_owned())
}

/// The time, to the second.
fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

impl Policy {
    fn of(shared: &Shared) -> Self {
        let policy = shared.concealment.policy().current();
        let seen = PolicySeen::of(shared);
        let rejected = |(error, lasts): (String, std::time::Duration)| Rejected {
            error,
            seconds: lasts.as_secs(),
            a_restart: A_RESTART_FAILS.to_owned(),
        };
        Self {
            name: policy.name().to_owned(),
            version: policy.version().to_owned(),
            hash: policy.hash().to_owned(),
            source: seen.source,
            mode: seen.mode.to_string(),
            recursive: policy.recursive().to_string(),
            rejected: seen.rejected.map(rejected),
        }
    }
}

impl Surroundings {
    fn of(shared: &Shared) -> Self {
        Self {
            metadata_server: metadata_server(shared),
            identity: match (shared.identity.as_deref(), shared.handover.state()) {
                (None, _) => NO_IDENTITY.to_owned(),
                (Some(known), State::Off) => format!("{}{}", identity(known), spent(shared)),
                (Some(known), handover) => format!("{}{}; hand-over: {handover}", identity(known), spent(shared)),
            },
            redirect: match shared.redirect.get().map(|redirect| redirect.trouble()) {
                None => NO_REDIRECT.to_owned(),
                Some(None) => "installed, and kept by this process (--redirect)".to_owned(),
                Some(Some(_)) => "NOT installed; this process tries again (--redirect)".to_owned(),
            },
            canary: NO_CANARY.to_owned(),
        }
    }
}

/// The requests for tokens that were sent, if pods have tokens of their own.
fn spent(shared: &Shared) -> String {
    let Some(source) = shared.tokens.source().of_workloads() else { return String::new() };
    format!("; requests for tokens: {}", source.spent().join("; "))
}

const NO_IDENTITY: &str = "off: all pods act as the node";

const NO_REDIRECT: &str =
    "not known here: this process keeps none; `redirect check` in the container that keeps it says";

const NO_CANARY: &str = "not known here: `check --last` in the canary's pod says";

fn metadata_server(shared: &Shared) -> String {
    let Upstream::Server(_) = &shared.config.upstream else {
        return "none: configured values and those of the node are answered (--upstream none)".to_owned();
    };
    let address = &shared.config.upstream;
    match shared.upstream.health.failure() {
        None => format!("available at {address}"),
        Some(failure) => format!("unavailable at {address}: {failure}"),
    }
}

fn identity(identity: &Identity) -> String {
    let summary = identity.summary();
    let heard = match summary.api_age {
        Some(seconds) => format!("last heard from {} ago", span(seconds)),
        None => "not heard from yet".to_owned(),
    };
    let tokens = if identity.workloads().federation().is_some() { "of their own" } else { "none" };
    format!("{} pods reported by {}, {heard}; pods' tokens: {tokens}", summary.pods, identity.api_server())
}

impl RefusalStatus {
    fn of(refusal: &Refusal) -> Self {
        let now = Instant::now();
        let ago = |then: Instant| now.saturating_duration_since(then).as_secs();
        Self {
            client: refusal.client,
            pod: refusal.pod.as_deref().map(name),
            reason: refusal.reason.to_owned(),
            status: refusal.status.as_u16(),
            path: refusal.path.to_string(),
            said: refusal.said.to_string(),
            count: refusal.count,
            first_seconds_ago: ago(refusal.first),
            last_seconds_ago: ago(refusal.last),
        }
    }
}
