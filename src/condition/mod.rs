//! [`Condition`]: whether this proxy is well, and the [`Fact`]s that say why not.
//!
//! The only place that decides it. [`facts`] is a pure function of what was [`Seen`]; `/readyz?verbose`, `/statusz` and the
//! command `status` show what it returns.

mod judge;

use serde::{Deserialize, Serialize};

use crate::finding::{self, Finding};

pub use judge::{PolicySeen, Seen, facts};

/// Whether the proxy is well. A greater one is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Condition {
    /// Pods get what they should, and nothing else.
    #[default]
    Ok,
    /// Some pods may not, or will not after a restart; or secrets are served.
    Degraded,
    /// Pods get errors now.
    Failing,
}

/// What a fact is about: a name for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// The process is starting, unable to serve, or ending.
    Readiness,
    /// The proxy's own door.
    Door,
    /// The metadata server.
    MetadataServer,
    /// Whether pods can be identified.
    Identity,
    /// Requests of which it is not known which pod sent them.
    Unidentified,
    /// Pods' own tokens.
    Tokens,
    /// Whether the policy conceals.
    PolicyMode,
    /// The policy file.
    PolicyFile,
    /// What is refused or closed under overload.
    Overload,
    /// The rules that bring pods' requests here.
    Redirect,
    /// The rights of the proxy's own credential for the API server.
    Credential,
    /// Defects of the proxy.
    Panics,
    /// Values that pods ask for first.
    Warmup,
}

/// Something that is not as it should be: what, how bad, one line, and what to do.
pub type Fact = Finding<Topic, Condition>;

impl Condition {
    /// The worst of these facts.
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

impl Fact {
    /// Without what names clients or quotes a file: pods may read it.
    #[must_use]
    pub fn for_anybody(self) -> Self {
        Self { said: None, ..self }
    }
}

/// A fact as JSON.
#[derive(Serialize, Deserialize)]
struct Fields {
    fact: Topic,
    condition: Condition,
    tried: String,
    seen: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    look: Vec<String>,
    r#do: Vec<String>,
}

impl Serialize for Fact {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { topic: fact, verdict: condition, tried, seen, said, advice, looks: look, commands: r#do, .. } =
            self.clone();
        Fields { fact, condition, tried, seen, said, advice, look, r#do }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fact {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { fact, condition, tried, seen, said, advice, look, r#do } = Fields::deserialize(deserializer)?;
        Ok(Self { said, advice, looks: look, commands: r#do, ..Self::new(fact, condition, tried, seen) })
    }
}

#[cfg(test)]
mod tests;
