//! Attacks on the concealment through the assembled proxy, in front of a mock that reveals more than the real
//! server.

mod explained;
mod operator;
mod redaction;
mod spellings;
mod verdicts;

use mock::{Handle, RecordedRequest};
use protocol::metadata::{MetadataPath, Query, Request};
use proxy::policy::{Choice, Decision, Policy, Source};

/// Secrets of the mock that `compat` does not name: custom secrets of users and partners.
const UNNAMED: [&str; 6] = [
    "instance/attributes/created-by",
    "instance/attributes/instance-template",
    "instance/attributes/kube-labels",
    "instance/attributes/my-app-password",
    "instance/partner-attributes/partner-key",
    "instance/platform-security/auto-mtls-configuration",
];

fn built_in(name: &str) -> Choice {
    Choice { source: Source::parse(name), recursive: None }
}

/// The upstream requests that were not normalised, should have been refused, or were sent in another form than decided.
fn misread(mock: &Handle, policy: &Policy) -> Vec<String> {
    mock.log().iter().filter(|seen| !is_as_judged(seen, policy)).map(|seen| seen.target.clone()).collect()
}

fn is_as_judged(seen: &RecordedRequest, policy: &Policy) -> bool {
    let Ok(target) = seen.target.parse() else { return false };
    let (Ok(path), Ok(query)) = (MetadataPath::parse(&target), Query::parse(target.query())) else { return false };
    format!("{path}{query}") == seen.target
        && ["GET", "HEAD"].contains(&seen.method.as_str())
        && matches!(policy.judge(&Request::get(path, query)), Decision::Allow | Decision::Redact)
}
