//! [`Overview`]: how this proxy is doing, in a screenful: the head of `/statusz`, and all that the command `status` prints.

use std::fmt::{self, Display};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::condition::{Condition, Fact};
use crate::finding::{Verdict, clean};
use crate::readiness;
use crate::telemetry::talkers::Talker;
use crate::units::span;

/// How this proxy is doing.
#[derive(Debug, Serialize, Deserialize)]
pub struct Overview {
    /// Whether it is well.
    pub condition: Condition,
    /// Why not, the worst first.
    pub facts: Vec<Fact>,
    /// Of the running binary.
    pub version: String,
    /// The node's name, or the host's.
    pub node: String,
    /// When this was seen, in UTC.
    pub time: String,
    /// Since the process began.
    pub uptime_seconds: u64,
    /// Whether pods should be sent here, and what is amiss.
    pub readiness: readiness::State,
    /// By which rules secrets are concealed.
    pub policy: Policy,
    /// What the proxy works with, in words.
    pub surroundings: Surroundings,
    /// The last minute.
    pub last_minute: LastMinute,
    /// The last refusals by client and reason, the last one first.
    pub last_refusals: Vec<RefusalStatus>,
    /// Other refusals since the start, of clients for which there was no place.
    pub refusals_not_shown: u64,
    /// The clients with most requests in the last minute.
    pub talkers: Vec<TalkerStatus>,
}

/// The rules in force.
#[derive(Debug, Serialize, Deserialize)]
pub struct Policy {
    /// What it calls itself.
    pub name: String,
    /// The version that it gives itself.
    pub version: String,
    /// The beginning of its file's SHA-256.
    pub hash: String,
    /// Where it comes from: built in, or a path.
    pub source: String,
    /// Whether it is carried out (enforce) or only logged (audit).
    pub mode: String,
    /// What becomes of recursive reads.
    pub recursive: String,
    /// Why the file's present content is not in force. Absent if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
}

/// A policy file that is not in force.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rejected {
    /// The mistake, with its place.
    pub error: String,
    /// Since it was found.
    pub seconds: u64,
    /// What a restart would do.
    pub a_restart: String,
}

/// What the proxy works with, in words.
#[derive(Debug, Serialize, Deserialize)]
pub struct Surroundings {
    /// The metadata server.
    pub metadata_server: String,
    /// Who pods are.
    pub identity: String,
    /// The rules that bring pods' requests here.
    pub redirect: String,
    /// The check from a pod's place.
    pub canary: String,
}

/// What happened in the last minute.
#[derive(Debug, Serialize, Deserialize)]
pub struct LastMinute {
    /// How long that is: less than a minute after the start.
    pub seconds: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Those of them that were refused, or failed here.
    pub refused: u64,
    /// Requests and connections that were shed, by reason.
    pub sheds: Vec<Count>,
}

/// How often something happened.
#[derive(Debug, Serialize, Deserialize)]
pub struct Count {
    /// What.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// Refusals of one client for one reason.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// Its address.
    pub client: IpAddr,
    /// Its pod at that time, as NAMESPACE/NAME.
    pub pod: Option<String>,
    /// Why.
    pub reason: String,
    /// The status of the last response.
    pub status: u16,
    /// The path of the last one without its query, or what kind of path it was.
    pub path: String,
    /// How many there were since the first.
    pub count: u64,
    /// Since the first.
    pub first_seconds_ago: u64,
    /// Since the last.
    pub last_seconds_ago: u64,
}

/// A client and its requests in the last minute.
#[derive(Debug, Serialize, Deserialize)]
pub struct TalkerStatus {
    /// The pod that has its address now, as NAMESPACE/NAME.
    pub pod: Option<String>,
    /// Its requests.
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
        let shed: u64 = sheds.iter().map(|shed| shed.count).sum();
        write!(f, "{requests} requests, {refused} of them refused or failed, {shed} shed, in {seconds} s")
    }
}

/// The client, by its pod if that is known.
fn named(address: IpAddr, pod: Option<&str>) -> String {
    pod.map_or_else(|| address.to_string(), |pod| format!("{pod} ({address})"))
}

impl RefusalStatus {
    /// Who was refused.
    pub fn who(&self) -> String {
        named(self.client, self.pod.as_deref())
    }
}

impl TalkerStatus {
    /// Who asks.
    pub fn who(&self) -> String {
        named(self.talker.address, self.pod.as_deref())
    }
}

impl Overview {
    /// Its name, where it runs, and when this was seen.
    pub fn title(&self) -> String {
        let Self { version, node, time, uptime_seconds, .. } = self;
        format!("gce-metadata-proxy {version} on {node}, up {}, at {time}", span(*uptime_seconds))
    }

    /// 0 if all is well, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.condition != Condition::Ok)
    }

    /// The lines below the facts, each with its label.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let Surroundings { metadata_server, identity, redirect, canary } = &self.surroundings;
        let mut lines = vec![
            ("readiness", self.readiness.to_string()),
            ("policy", self.policy.to_string()),
            ("server", metadata_server.clone()),
            ("identity", identity.clone()),
            ("redirect", redirect.clone()),
            ("canary", canary.clone()),
            ("last minute", self.last_minute.to_string()),
        ];
        lines.extend(
            self.last_minute.sheds.iter().map(|Count { reason, count }| ("shed", format!("{reason}: {count}"))),
        );
        lines.extend(self.talkers.iter().map(|asks| {
            let Talker { requests, sheds, refusals, .. } = &asks.talker;
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
        let Self { reason, status, path, count, last_seconds_ago, .. } = self;
        write!(f, "{}: {count} x {status} {reason}, last {} ago: {path}", self.who(), span(*last_seconds_ago))
    }
}

/// For a terminal. Texts that pods and servers chose cannot move its cursor.
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

    /// An overview in which every text is this.
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
