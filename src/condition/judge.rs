//! [`facts`]: finds problems in the observations.

use std::num::NonZero;
use std::time::Duration;

use super::{Condition, Fact, Topic};
use crate::readiness::{State, TokenUsers, Trouble};
use crate::units::span;
use identity::CredentialStatus;
use proxy::layers::conceal::Mode;
use proxy::policy::A_RESTART_FAILS;
use telemetry::labels::Label;
use telemetry::minute::Tally;
use telemetry::shedding::Shed;

/// Time after which failures of the metadata server make the condition failing instead of degraded: cached tokens are
/// served meanwhile, and a pod can make a single request fail.
const OUTAGE: Duration = Duration::from_secs(60);

/// Observations of this proxy.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Whether the proxy is ready for pods.
    pub state: State,
    /// Problems that readiness reports in a serving process.
    pub troubles: Vec<Trouble>,
    pub policy: PolicySeen,
    pub minute: Tally,
    /// The client with the most sheds in the last minute, or otherwise with the most requests, in words.
    pub busiest: Option<String>,
    /// Why the redirect that this process keeps is not installed.
    pub redirect: Option<String>,
    /// Why the API server is not heard.
    pub watch_error: Option<String>,
    /// Why the last write to the state directory failed.
    pub state_error: Option<String>,
    /// Rights of the proxy's own credential for the API server.
    pub credential: Option<CredentialStatus>,
}

/// Observations of the policy.
#[derive(Debug, Clone)]
pub struct PolicySeen {
    /// The policy's file, or the name of a built-in policy.
    pub source: String,
    pub mode: Mode,
    /// Requests since the start that the policy conceals but that were answered, in audit mode.
    pub served: u64,
    /// Why the file's current content is not in force, and for how long.
    pub rejected: Option<(String, Duration)>,
}

/// The problems, the worst first.
pub fn facts(seen: &Seen) -> Vec<Fact> {
    let (watch_error, minute) = (seen.watch_error.as_deref(), &seen.minute);
    let mut facts: Vec<Fact> = of_state(&seen.state, watch_error)
        .into_iter()
        .chain(seen.troubles.iter().map(|trouble| of_trouble(trouble, watch_error, minute)))
        .chain(server_failed(seen))
        .chain(NonZero::new(minute.unidentified).map(unidentified))
        .chain(NonZero::new(minute.unread_account).map(unread_account))
        .chain(seen.state_error.as_deref().map(state_dir))
        .chain(NonZero::new(minute.no_token).map(no_tokens))
        .chain(NonZero::new(minute.account_refused).map(account_refused))
        .chain(audit(&seen.policy))
        .chain(rejected(&seen.policy))
        .chain(overload(minute, seen.busiest.as_deref()))
        .chain(seen.redirect.as_deref().map(redirect))
        .chain(seen.credential.as_ref().and_then(credential))
        .chain(NonZero::new(minute.panics).map(panics))
        .collect();
    facts.sort_by_key(|fact| (std::cmp::Reverse(fact.verdict), fact.topic));
    facts
}

fn failing(topic: Topic, what: &str, seen: impl AsRef<str>) -> Fact {
    Fact::new(topic, Condition::Failing, what, seen)
}

fn degraded(topic: Topic, what: &str, seen: impl AsRef<str>) -> Fact {
    Fact::new(topic, Condition::Degraded, what, seen)
}

fn of_state(state: &State, watch_error: Option<&str>) -> Option<Fact> {
    let topic = Topic::Readiness;
    match state {
        State::Ready | State::Degraded(_) => None,
        State::Starting => Some(
            degraded(topic, "not ready", "the proxy is starting")
                .advising("wait: after 10 s it serves, or says what it lacks"),
        ),
        State::Unable(why) => Some(unheard(failing(topic, "not ready", why), watch_error)),
        State::Draining => Some(
            degraded(topic, "not ready", "the proxy is ending, and accepts no connections")
                .advising("nothing, if it is being replaced; otherwise see who stopped it"),
        ),
    }
}

/// Adds what the API server answered, or what is in the way to it.
fn unheard(fact: Fact, watch_error: Option<&str>) -> Fact {
    match watch_error {
        Some(error) => fact.saying(error).advising("run `identity doctor` beside the proxy"),
        None => fact.advising("see the proxy's log, then run `identity doctor` beside the proxy"),
    }
}

fn of_trouble(trouble: &Trouble, watch_error: Option<&str>, minute: &Tally) -> Fact {
    match trouble {
        Trouble::Door(why) => failing(Topic::Door, "the proxy's own door", why.to_string()).advising(why.advice()),
        Trouble::Upstream { failure, lasts } => {
            let what = "the metadata server";
            let seen = format!("{failure}; no request has succeeded for {}", span(lasts.as_secs()));
            let verdict = if *lasts < OUTAGE { Condition::Degraded } else { Condition::Failing };
            Fact::new(Topic::MetadataServer, verdict, what, seen).advising(
                "it is the server that fails, or the way to it; do not restart the proxy, which still serves the tokens that it has",
            )
        }
        Trouble::Token { is_refused, expires_in, users, .. } => {
            let verdict = if *expires_in > 0 { Condition::Degraded } else { Condition::Failing };
            let fact = Fact::new(Topic::NodeToken, verdict, "the node's token", trouble.to_string());
            let fact = match users {
                TokenUsers::All => fact,
                TokenUsers::Only(pods) => fact.saying(format!("it is used by {} (--passthrough)", pods.join(", "))),
            };
            fact.advising(if *is_refused {
                "see whether the service account of this machine was deleted or disabled, and ask the server for its token \
                 from the node itself: it answers the node as it answers the proxy; do not restart the proxy, which asks \
                 again within a minute and serves the token that it has until it expires"
            } else {
                "ask the server for it from the node itself: it fails for tokens, or the way to it; do not restart the proxy, \
                 which asks again every few seconds and serves the token that it has until it expires"
            })
        }
        Trouble::Identity(why) => {
            let what = "which pod asks";
            let fact = match minute.unidentified {
                0 => degraded(Topic::Identity, what, why),
                refused => failing(Topic::Identity, what, format!("{why}: {refused} requests in the last minute")),
            };
            unheard(fact, watch_error)
        }
        Trouble::Cold(refused) => {
            degraded(Topic::Warmup, "common values", trouble.to_string()).advising(if refused.is_some() {
                "see whether --upstream is the metadata server of this machine, and ask it for that path from the node itself: it \
                 answers the node as it answers the proxy, or something in between refuses; the proxy asks again every 5 s"
            } else {
                "the proxy asks again; if it lasts, the server fails, or the way to it"
            })
        }
    }
}

/// A single path or account may be the reason, and a pod can ask for it as often as it likes, so the node is not degraded.
fn server_failed(seen: &Seen) -> Option<Fact> {
    let is_reported = seen.troubles.iter().any(|trouble| matches!(trouble, Trouble::Upstream { .. }));
    let count = NonZero::new(seen.minute.server_failed).filter(|_| !is_reported)?;
    let seen = format!("it answered {count} requests of the last minute with 429 or 5xx");
    Some(Fact::new(Topic::MetadataServer, Condition::Ok, "the metadata server", seen).advising(
        "the last refusals list the pods, and what they asked for; ask the server for the same from the node itself",
    ))
}

fn unidentified(count: NonZero<u64>) -> Fact {
    let seen = format!("{count} requests got 503 in the last minute, because it is not known which pod sent them");
    degraded(Topic::Unidentified, "unknown pods", seen)
        .advising("the last refusals have their addresses; ask `explain --pod NAMESPACE/NAME` about a pod")
}

fn unread_account(count: NonZero<u64>) -> Fact {
    let seen = format!(
        "{count} requests got 503 in the last minute, because the API server did not say what the pod's account is"
    );
    degraded(Topic::UnreadAccount, "unknown accounts", seen).advising(
        "the log has what it answered; see whether the API server is overloaded, and run `identity doctor` beside the proxy, \
         which says whether the proxy may get service accounts",
    )
}

fn state_dir(error: &str) -> Fact {
    let seen = "it cannot be written: a restart while the API server is away would lose which pods are known";
    degraded(Topic::StateDir, "--state-dir", seen).saying(error).advising(
        "make it a directory of the node with free space that the proxy's user may write; the proxy tries again within a minute",
    )
}

fn no_tokens(count: NonZero<u64>) -> Fact {
    let seen = format!(
        "{count} requests for pods' own tokens failed in the last minute: a step failed, or Google refused all accounts"
    );
    degraded(Topic::Tokens, "pods' own tokens", seen)
        .advising("run `identity doctor` beside the proxy, for a pod among the last refusals; it says which step fails")
}

/// A single pod can cause this, so the node is not degraded.
fn account_refused(count: NonZero<u64>) -> Fact {
    let seen = format!(
        "{count} requests of single accounts failed in the last minute: Google refused them, or a quota of the account is used up; \
         other accounts are not affected"
    );
    Fact::new(Topic::Tokens, Condition::Ok, "pods' own tokens", seen).advising(
        "the last refusals list the pods and Google's messages; if all accounts are refused, run `identity doctor` beside the proxy",
    )
}

fn audit(policy: &PolicySeen) -> Option<Fact> {
    if policy.mode == Mode::Enforce {
        return None;
    }
    let served = match policy.served {
        0 => "no such request has come since the start".to_owned(),
        count => format!("{count} requests for concealed paths were answered since the start"),
    };
    let seen = format!("secrets are served to pods: nothing is concealed; {served}");
    Some(
        degraded(Topic::PolicyMode, "audit mode", seen)
            .advising("restart the proxy without --policy-mode=audit when the log shows what you wanted to know"),
    )
}

fn rejected(policy: &PolicySeen) -> Option<Fact> {
    let (error, lasts) = policy.rejected.as_ref()?;
    let seen = format!(
        "the file was rejected {} ago; the policy before it is in force, and {A_RESTART_FAILS}",
        span(lasts.as_secs())
    );
    Some(
        degraded(Topic::PolicyFile, &format!("policy {}", policy.source), seen)
            .saying(error)
            .looking(format!("gce-metadata-proxy policy check {}", policy.source))
            .advising("correct the file, which is then applied within 10 s, before the proxy is restarted"),
    )
}

fn overload(minute: &Tally, busiest: Option<&str>) -> Option<Fact> {
    // A late turn is a wait, not a refusal, and a request may wait for many.
    let (late, sheds): (Vec<_>, Vec<_>) = minute.sheds().into_iter().partition(|(reason, _)| *reason == Shed::CpuShare);
    let total: u64 = sheds.iter().map(|(_, count)| count).sum();
    let reasons: Vec<String> = sheds.iter().map(|(reason, count)| format!("{} {count}", reason.label())).collect();
    let refused = (total > 0).then(|| format!("{total} requests or connections were shed: {}", reasons.join(", ")));
    let waited = late.first().map(|(_, turns)| {
        format!("{turns} turns of connections came late, because their client uses more than its share (cpu_share)")
    });
    let parts: Vec<String> = refused.into_iter().chain(waited).collect();
    if parts.is_empty() {
        return None;
    }
    let seen = format!("in the last minute, {}", parts.join("; "));
    let fact = degraded(Topic::Overload, "overload", seen).advising(
        "see what the client that is shed most does, and which others are refused; docs/operations.md has the causes of each reason under \"Overload\"",
    );
    Some(match busiest {
        Some(busiest) => fact.saying(busiest),
        None => fact,
    })
}

fn redirect(why: &str) -> Fact {
    failing(Topic::Redirect, "the redirect", "it is not installed; the proxy tries again every 5 s")
        .saying(why)
        .looking("gce-metadata-proxy redirect check")
}

fn credential(credential: &CredentialStatus) -> Option<Fact> {
    let seen = match credential.state {
        "missing" => "a right that the proxy needs is missing",
        "dangerous" => "it may do more than the proxy needs: a thief of it gets other pods' tokens",
        _ => return None,
    };
    let fact = degraded(Topic::Credential, "the proxy's credential for the API server", seen);
    Some(fact.saying(credential.findings.join("; ")).advising("run `identity doctor` beside the proxy"))
}

fn panics(count: NonZero<u64>) -> Fact {
    let seen = format!("{count} requests got 500 in the last minute, because the proxy has a defect");
    degraded(Topic::Panics, "panics", seen).advising("report the line of its log that has the place")
}
