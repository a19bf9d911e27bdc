//! [`Condition`]: whether this proxy is healthy, and the [`Fact`]s that say why not.
//!
//! Only this module decides it. [`facts`] is a pure function of the observations in [`Seen`]; `/readyz?verbose`,
//! `/statusz` and the command `status` show its result.

mod judge;

use serde::{Deserialize, Serialize};

use operator::finding::{self, Finding};

pub use judge::{PolicySeen, Seen, facts};

/// Whether the proxy is healthy. A greater value is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Condition {
    /// Pods get what they should, and nothing else.
    #[default]
    Ok,
    /// Some pods may not get it, or will not after a restart; or secrets are served.
    Degraded,
    /// Pods get errors now.
    Failing,
}

/// The subject of a fact: a name for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// The process is starting, unable to serve, or ending.
    Readiness,
    /// The proxy's own door.
    Door,
    /// The metadata server.
    MetadataServer,
    /// The token of the node's default account.
    NodeToken,
    /// Whether pods can be identified.
    Identity,
    /// Requests whose pod is not known.
    Unidentified,
    /// Requests whose pod's account is not known.
    UnreadAccount,
    /// The directory that outlives the process (`--state-dir`).
    StateDir,
    /// Pods' own tokens.
    Tokens,
    /// Whether the policy conceals.
    PolicyMode,
    /// The policy file.
    PolicyFile,
    /// Requests and connections that are shed.
    Overload,
    /// The rules that redirect pods' requests to the proxy.
    Redirect,
    /// The rights of the proxy's own credential for the API server.
    Credential,
    /// Bugs in the proxy.
    Panics,
    /// The values that pods request first.
    Warmup,
}

/// A problem: its topic, severity, description and fix.
pub type Fact = Finding<Topic, Condition>;

impl Condition {
    /// The worst condition of these facts.
    pub fn of(facts: &[Fact]) -> Self {
        facts.iter().map(|fact| fact.verdict).max().unwrap_or_default()
    }
}

impl finding::Verdict for Condition {
    fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok       ",
            Self::Degraded => "DEGRADED ",
            Self::Failing => "FAILING  ",
        }
    }
}

impl finding::Written for Condition {
    const KEYS: [&str; 2] = ["fact", "condition"];
}

/// A fact without texts that name clients or quote a file, because pods may read it.
pub fn for_anybody(fact: Fact) -> Fact {
    Fact { said: None, ..fact }
}

#[cfg(test)]
mod tests;
