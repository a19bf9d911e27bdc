//! Parses the output of a client's program: one JSON line on standard output.

use std::collections::BTreeMap;

use mock::DEFAULT_ACCOUNT;
use serde::Deserialize;
use serde_json::Value;

/// The output line.
#[derive(Debug, Deserialize)]
pub(crate) struct Told {
    /// The installed version of the library.
    pub(crate) version: String,
    /// The outcome of each step of a session.
    #[serde(default)]
    steps: BTreeMap<String, Outcome>,
    /// Tokens received, if tokens were requested repeatedly.
    #[serde(default)]
    tokens: Vec<Value>,
    /// Errors of the other token requests.
    #[serde(default)]
    errors: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok(#[serde(default)] Value),
    Error(String),
}

/// A step of an application.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Detects whether there is a metadata server.
    Detect,
    /// Requests the project.
    Project,
    /// Gets a token.
    Token,
    /// Requests the account of that token.
    Account,
    /// Gets a token with a scope.
    Scoped,
    /// Gets a token with that scope once more.
    Refresh,
    /// Requests an identity token, which is concealed: the response says so, or that there is none.
    Identity,
    /// Requests the universe's domain.
    Universe,
    /// Watches a value that does not change, by its `ETag`, and has to wait.
    Watch,
    /// Reads all data about the machine, and ends with its ID.
    Crawl,
    /// Reports the platform: GKE, with the cluster's name and location.
    Platform,
    /// Reports the machine where there is no Kubernetes: its number, name and zone.
    Machine,
    /// Requests a token that is bound to a certificate, and is told how to do without one.
    Bound,
}

/// The ID of the mock's instance.
pub(crate) const INSTANCE_ID: &str = "4520031799277581759";

/// The variable that makes a client with a certificate do without bound tokens.
const OPT_OUT: &str = "GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false";

/// How clients report 404 for an identity token: gcloud and libraries for Go, Java and Rust with their own text, others
/// with the proxy's.
const NO_IDENTITY: [&str; 5] = [
    " not defined",
    "404 Not Found",
    "Error code 404",
    "No identity token can be obtained",
    "is concealed from pods by the policy",
];

impl Step {
    /// The name in the arguments and output of the clients' programs.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether the step needs the upstream, because no value in the proxy can replace it.
    pub(crate) fn needs_the_upstream(self) -> bool {
        matches!(self, Self::Watch)
    }

    /// The error in the outcome, if any.
    fn fault(self, outcome: Option<&Outcome>) -> Option<String> {
        let Some(outcome) = outcome else { return Some(format!("{self:?}: not done")) };
        let is_right = match (self, outcome) {
            (Self::Identity, Outcome::Error(told)) => NO_IDENTITY.iter().any(|words| told.contains(words)),
            (Self::Bound, Outcome::Error(told)) => told.contains(OPT_OUT),
            (_, Outcome::Error(_)) | (Self::Identity | Self::Bound, Outcome::Ok(_)) => false,
            (Self::Detect | Self::Watch, Outcome::Ok(value)) => *value != Value::Bool(false) && !value.is_null(),
            (Self::Project, Outcome::Ok(value)) => value == "mock-project",
            (Self::Account, Outcome::Ok(value)) => value == DEFAULT_ACCOUNT,
            (Self::Universe, Outcome::Ok(value)) => value == "googleapis.com",
            (Self::Crawl, Outcome::Ok(value)) => value == INSTANCE_ID,
            (Self::Platform, Outcome::Ok(value)) => value.as_str().is_some_and(is_gke),
            (Self::Machine, Outcome::Ok(value)) => value.as_str().is_some_and(is_machine),
            (Self::Token | Self::Scoped | Self::Refresh, Outcome::Ok(value)) => is_token(value),
        };
        (!is_right).then(|| match outcome {
            Outcome::Ok(value) => format!("{self:?}: {value}"),
            Outcome::Error(error) => format!("{self:?}: {error}"),
        })
    }
}

impl Told {
    /// Parses the line.
    pub(crate) fn read(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("{error} in what it printed: {line:?}"))
    }

    /// Whether every step of a session had the expected outcome.
    pub(crate) fn session(&self, steps: &[Step]) -> Result<(), String> {
        let outcome = |step: Step| self.steps.get(&step.name());
        let faults: Vec<String> = steps.iter().filter_map(|step| step.fault(outcome(*step))).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }

    /// Whether it received this number of tokens, or any number but none, and no errors.
    pub(crate) fn tokens(&self, wanted: Option<usize>) -> Result<(), String> {
        let got = self.tokens.iter().filter(|token| is_token(token) || *token == INSTANCE_ID).count();
        if self.errors.is_empty() && got == self.tokens.len() && wanted.map_or(got > 0, |wanted| got == wanted) {
            return Ok(());
        }
        let first = self.errors.first().map_or("no error", String::as_str);
        Err(format!("{got} of {} got a token; {first}", self.tokens.len() + self.errors.len()))
    }
}

/// OpenTelemetry's or Cloud Logging's name for GKE, and the mock's cluster.
fn is_gke(platform: &str) -> bool {
    let kind = platform.strip_suffix(" mock-cluster us-central1");
    kind.is_some_and(|kind| ["gcp_kubernetes_engine", "k8s_container"].contains(&kind))
}

/// Whether this is the mock's machine.
fn is_machine(machine: &str) -> bool {
    machine == format!("{INSTANCE_ID} gke-mock-cluster-default-pool-0a1b2c3d-x1y2 us-central1-a")
}

fn is_token(value: &Value) -> bool {
    value.as_str().is_some_and(|token| token.starts_with("ya29.") && token.len() > 100)
}
