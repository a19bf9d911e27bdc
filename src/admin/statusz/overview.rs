//! [`Overview`]: the state of this proxy in a screenful: the head of `/statusz`, and the whole output of the command
//! `status`.

use std::fmt::{self, Display};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::condition::{Condition, Fact};
use crate::readiness;
use crate::units::span;
use operator::finding::{Verdict, clean};
use telemetry::labels::Label;
use telemetry::shedding::Shed;
use telemetry::talkers::Talker;

/// The state of this proxy.
#[derive(Debug, Serialize, Deserialize)]
pub struct Overview {
    pub condition: Condition,
    /// The problems, the worst first.
    pub facts: Vec<Fact>,
    /// Version of the running binary.
    pub version: String,
    /// The node's name, or the host's.
    pub node: String,
    /// Time of this overview, in UTC.
    pub time: String,
    /// Time since the process began.
    pub uptime_seconds: u64,
    /// Whether the proxy is ready for pods, and the reason if it is not, or is degraded.
    pub readiness: readiness::State,
    /// The policy that conceals secrets.
    pub policy: Policy,
    /// The proxy's surroundings, in words.
    pub surroundings: Surroundings,
    pub last_minute: LastMinute,
    /// The last refusals by client, reason and rule of the policy, the most recent first.
    pub last_refusals: Vec<RefusalStatus>,
    /// Refusals since the start of clients that found no place in the list.
    pub refusals_not_shown: u64,
    /// The clients with the most requests in the last minute.
    pub talkers: Vec<TalkerStatus>,
}

/// The policy in force.
#[derive(Debug, Serialize, Deserialize)]
pub struct Policy {
    /// The policy's own name.
    pub name: String,
    /// The policy's own version.
    pub version: String,
    /// The first digits of the file's SHA-256.
    pub hash: String,
    /// The policy's origin: built in, or a path.
    pub source: String,
    /// Whether the policy is enforced (enforce) or only logged (audit).
    pub mode: String,
    /// The handling of recursive reads.
    pub recursive: String,
    /// Why the file's current content is not in force. Absent if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
}

/// A policy file that is not in force.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rejected {
    /// The error, with its position.
    pub error: String,
    /// Time since the file was rejected.
    pub seconds: u64,
    /// The result of a restart.
    pub a_restart: String,
}

/// The proxy's surroundings, in words.
#[derive(Debug, Serialize, Deserialize)]
pub struct Surroundings {
    pub metadata_server: String,
    /// The identification of pods.
    pub identity: String,
    /// The rules that redirect pods' requests to the proxy.
    pub redirect: String,
    /// The check from a pod's network.
    pub canary: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct LastMinute {
    /// Length of the period: less than a minute just after the start.
    pub seconds: u64,
    /// Requests that were answered, with any status.
    pub requests: u64,
    /// Those of them that the proxy refused or failed.
    pub refused: u64,
    /// Requests and connections that were shed, by reason.
    pub sheds: Vec<Count>,
}

/// A number of events.
#[derive(Debug, Serialize, Deserialize)]
pub struct Count {
    pub reason: String,
    pub count: u64,
}

/// Refusals of one client for one reason.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusalStatus {
    pub client: IpAddr,
    /// The client's pod at that time, as NAMESPACE/NAME.
    pub pod: Option<String>,
    pub reason: String,
    /// Status of the last response.
    pub status: u16,
    /// The last path without its query, or the kind of path.
    pub path: String,
    /// What another server said, if the answer was its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
    /// Number of refusals since the first.
    pub count: u64,
    /// Time since the first refusal.
    pub first_seconds_ago: u64,
    /// Time since the last refusal.
    pub last_seconds_ago: u64,
}

/// A client and its requests in the last minute.
#[derive(Debug, Serialize, Deserialize)]
pub struct TalkerStatus {
    /// The pod that has the client's address now, as NAMESPACE/NAME.
    pub pod: Option<String>,
    /// The client's requests.
    #[serde(flatten)]
    pub talker: Talker,
}

impl Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, hash, source, mode, recursive, rejected } = self;
        write!(f, "{name}, version {version} ({hash}, from {source}), mode {mode}, recursive reads: {recursive}")?;
        rejected.iter().try_for_each(|_| f.write_str("; NOT what the file contains now"))
    }
}

impl Display for LastMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, requests, refused, sheds } = self;
        // Late turns are no requests.
        let shed: u64 = sheds.iter().filter(|shed| shed.reason != Shed::CpuShare.label()).map(|shed| shed.count).sum();
        write!(f, "{requests} requests, {refused} of them refused or failed, {shed} shed, in {seconds} s")
    }
}

/// Names the client, by its pod if known.
fn named(address: IpAddr, pod: Option<&str>) -> String {
    pod.map_or_else(|| address.to_string(), |pod| format!("{pod} ({address})"))
}

impl RefusalStatus {
    /// Names the refused client.
    pub fn who(&self) -> String {
        named(self.client, self.pod.as_deref())
    }
}

impl TalkerStatus {
    /// Names the client.
    pub fn who(&self) -> String {
        named(self.talker.address, self.pod.as_deref())
    }
}

impl Overview {
    /// The proxy's name, its node, and the time of the overview.
    pub fn title(&self) -> String {
        let Self { version, node, time, uptime_seconds, .. } = self;
        format!("gce-metadata-proxy {version} on {node}, up {}, at {time}", span(*uptime_seconds))
    }

    /// 0 if the condition is ok, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.condition != Condition::Ok)
    }

    /// The proxy's surroundings, and the last minute, each with its label.
    pub(super) fn states(&self) -> [(&'static str, String); 7] {
        let Surroundings { metadata_server, identity, redirect, canary } = &self.surroundings;
        [
            ("readiness", self.readiness.to_string()),
            ("policy", self.policy.to_string()),
            ("server", metadata_server.clone()),
            ("identity", identity.clone()),
            ("redirect", redirect.clone()),
            ("canary", canary.clone()),
            ("last minute", self.last_minute.to_string()),
        ]
    }

    /// The lines below the facts, each with its label.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::from(self.states());
        lines.extend(
            self.last_minute.sheds.iter().map(|Count { reason, count }| ("shed", format!("{reason}: {count}"))),
        );
        lines.extend(self.talkers.iter().map(|asks| {
            let Talker { sheds, refusals, .. } = &asks.talker;
            let requests = asks.talker.number();
            ("client", format!("{}: {requests} requests, {sheds} shed, {refusals} refused", asks.who()))
        }));
        lines.extend(self.last_refusals.iter().map(|refusal| ("refused", refusal.to_string())));
        if self.refusals_not_shown > 0 {
            lines.push(("refused", format!("other clients: {} since the start", self.refusals_not_shown)));
        }
        lines
    }
}

impl Display for RefusalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, status, path, said, count, last_seconds_ago, .. } = self;
        write!(f, "{}: {count} x {status} {reason}, last {} ago: {path}", self.who(), span(*last_seconds_ago))?;
        if said.is_empty() { Ok(()) } else { write!(f, "; {said}") }
    }
}

/// For a terminal. Texts from pods and servers cannot move its cursor.
impl Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}", self.condition.mark(), clean(&self.title()))?;
        self.facts.iter().try_for_each(|fact| write!(f, "{fact}"))?;
        self.lines().into_iter().try_for_each(|(label, line)| writeln!(f, "{label:12} {}", clean(&line)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::condition::Topic;
    use crate::readiness::State;

    /// An overview in which every text is this one.
    pub(in crate::admin::statusz) fn overview(text: &str) -> Overview {
        let text = || text.to_owned();
        let fact = Fact::new(Topic::Overload, Condition::Degraded, text(), text());
        Overview {
            condition: Condition::Degraded,
            facts: vec![fact.saying(text()).advising(text()).looking(text()).running(text())],
            version: text(),
            node: text(),
            time: text(),
            uptime_seconds: 1,
            readiness: State::Degraded(text()),
            policy: Policy {
                name: text(),
                version: text(),
                hash: text(),
                source: text(),
                mode: text(),
                recursive: text(),
                rejected: None,
            },
            surroundings: Surroundings { metadata_server: text(), identity: text(), redirect: text(), canary: text() },
            last_minute: LastMinute {
                seconds: 1,
                requests: 1,
                refused: 1,
                sheds: vec![Count { reason: text(), count: 1 }],
            },
            last_refusals: vec![RefusalStatus {
                client: [10, 8, 0, 5].into(),
                pod: Some(text()),
                reason: text(),
                status: 403,
                path: text(),
                said: text(),
                count: 1,
                first_seconds_ago: 1,
                last_seconds_ago: 1,
            }],
            refusals_not_shown: 1,
            talkers: Vec::new(),
        }
    }

    #[test]
    fn the_terminal_shows_what_is_wrong_first_and_hostile_texts_stay_text() {
        let text = overview("a\u{1b}[2K\u{202e}b\n").to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("DEGRADED gce-metadata-proxy ") && lines[1].starts_with("DEGRADED a"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        let refused = "refused      a\u{fffd}[2K\u{fffd}b\u{fffd} (10.8.0.5): 1 x 403 a";
        assert!(lines.iter().any(|line| line.starts_with(refused)), "{text}");
        assert!(lines.contains(&"refused      other clients: 1 since the start"), "{text}");
    }

    #[test]
    fn it_is_read_back_as_it_was_written_and_its_exit_code_is_that_of_the_condition() {
        let written = serde_json::to_string(&overview("a")).expect("JSON");
        let read: Overview = serde_json::from_str(&written).expect("its own JSON");
        assert_eq!((read.to_string(), read.exit_code()), (overview("a").to_string(), 1));
        assert_eq!(Overview { condition: Condition::Ok, ..read }.exit_code(), 0);
    }
}
