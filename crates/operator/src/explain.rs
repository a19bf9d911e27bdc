//! [`Question`]: the commands `explain` and `policy`, which answer questions about policies.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use http::Uri;
use http::header::HOST;
use http::uri::Authority;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ask::{self, AskError};
use crate::finding::clean;
use identity::{AccountName, Whois};
use protocol::metadata::headers::{GOOGLE, METADATA_FLAVOR};
use protocol::metadata::host::AllowedHosts;
use protocol::metadata::query::Param;
use protocol::metadata::{Malformed, Query, Request, RequestError};
use proxy::error::Error;
use proxy::layers::conceal::redact;
use proxy::policy::pattern::Pattern;
use proxy::policy::{
    self, Cause, Choice, Concealed, Decision, Difference, LoadError, Overruled, Policy, Source, Subject,
};

/// The prefix that policies omit from paths.
const V1: &str = "/computeMetadata/v1/";

/// A question about policies. Its answer is text.
#[derive(Debug)]
pub enum Question {
    /// What does the policy decide about a URL, and why? Is it what was expected?
    Explain(Choice, String, Option<Expected>),
    /// What is the text of a policy?
    Show(Source),
    /// Which requests does the second policy decide differently from the first?
    Compare([Choice; 2]),
    /// Is a policy valid?
    Check(Source),
    /// What is the format of a policy file?
    Schema,
}

/// A policy's expected decision about a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Expected {
    /// Pods get an answer, perhaps with values removed.
    Allow,
    /// Nothing is sent upstream.
    Conceal,
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer {
    /// The text to print.
    pub text: String,
    /// Whether it is what was expected, if anything was.
    pub is_as_expected: bool,
}

impl Question {
    /// Answers the question. Fails if the policy cannot be loaded.
    pub fn answer(&self) -> Result<Answer, LoadError> {
        let mut is_as_expected = true;
        let text = match self {
            Self::Explain(choice, url, expected) => {
                let policy = choice.load()?;
                is_as_expected = expected.is_none_or(|expected| decides(&policy, url) == Some(expected));
                explain(&policy, url)
            }
            Self::Show(source) => {
                source.texts()?.join("\n# The policy it extends, whose rules come after its own:\n\n")
            }
            Self::Compare([from, to]) => compare([&from.load()?, &to.load()?]),
            Self::Check(source) => {
                let policy = Choice { source: source.clone(), recursive: None }.load()?;
                let (name, version, hash) = (policy.name(), policy.version(), policy.hash());
                let valid = format!(
                    "The policy {name}, version {version} ({hash}), is valid: {} rules.\n",
                    policy.rule_count()
                );
                let warning = |Overruled { rule, path, by }: Overruled<'_>| {
                    format!(
                        "Warning: rule {rule} does not decide about {path}: rule {by} comes first and matches it.\n"
                    )
                };
                valid + &policy.overruled().map(warning).collect::<String>()
            }
            Self::Schema => policy::SCHEMA.to_owned(),
        };
        Ok(Answer { text, is_as_expected })
    }
}

/// The policy's decision about a GET of a URL. `None` if the URL is invalid, so that a misspelt one meets no expectation.
fn decides(policy: &Policy, url: &str) -> Option<Expected> {
    let request = parse(url).ok()?;
    let is_concealed = matches!(policy.judge(&request), Decision::Conceal(_));
    Some(if is_concealed { Expected::Conceal } else { Expected::Allow })
}

/// Explains the policy's decision about a GET of a URL, or of a path and query. The answer has several
/// lines, each with a label.
pub fn explain(policy: &Policy, url: &str) -> String {
    let mut explanation = Explanation(String::new());
    explanation.line("asked for", url);
    let request = match parse(url) {
        Ok(request) => request,
        Err(error) => {
            explanation.line("read as", "invalid: it is refused before the policy applies");
            explanation.line("upstream", "nothing is sent");
            let error = Error::from(error);
            explanation.line("client", format_args!("{}: {error}", error.status()));
            if let Some(meant) = meant(url) {
                explanation.line("perhaps", format_args!("you mean {meant}; only policies omit the prefix"));
            }
            return explanation.0;
        }
    };
    explanation.line("read as", format_args!("{}{}", request.path, request.query));
    let subject = Subject::new(&request.path);
    explanation.line("judged as", format_args!("{:?}", subject.as_str()));
    explanation
        .line("policy", format_args!("{}, version {}, {} rules", policy.name(), policy.version(), policy.rule_count()));
    let decision = policy.judge(&request);
    explain_rule(&mut explanation, policy, decision, subject.as_str());
    explain_verdict(&mut explanation, policy, &request, decision);
    explanation.0
}

/// The part of a proxy's status that tells its policy.
#[derive(Debug, Deserialize)]
struct Status {
    policy: Running,
}

/// The policy by which a proxy judges.
#[derive(Debug, Deserialize)]
struct Running {
    name: String,
    version: String,
    hash: String,
    /// Its file, or the name of a built-in policy.
    source: String,
    mode: String,
    recursive: String,
    /// Present if the file's content is not in force.
    rejected: Option<IgnoredAny>,
}

impl Question {
    /// A line that says whether the proxy at this address for operators judges by the policy of this question. `None` if
    /// no policy judged, or no proxy answers.
    pub async fn beside(&self, admin: SocketAddr) -> Option<String> {
        let Self::Explain(choice, ..) = self else { return None };
        let policy = choice.load().ok()?;
        let what = match ask::get(admin, "/statusz?format=json").await {
            Ok(status) => match serde_json::from_str(&status) {
                Ok(Status { policy: running }) => running.compared(&policy),
                Err(_) => format!("does not tell its policy: {}", AskError::Unclear),
            },
            // Nothing runs here, or nothing that is a proxy: every proxy has this page.
            Err(AskError::Unreachable(..) | AskError::NoIdentity(_) | AskError::Canary(_) | AskError::Another(..)) => {
                return None;
            }
            Err(error) => format!("does not tell its policy: {error}"),
        };
        let mut line = Explanation(String::new());
        line.line("running", clean(&format!("the proxy at {admin} {what}")));
        Some(line.0)
    }
}

impl Running {
    /// Continues "the proxy".
    fn compared(&self, judged: &Policy) -> String {
        let Self { name, version, hash, source, mode, recursive, rejected } = self;
        let of_proxy = [hash, recursive];
        let audit = if mode == "audit" { "; it is in audit mode, so pods get what the policy conceals" } else { "" };
        if of_proxy == [judged.hash(), &judged.recursive().to_string()] {
            return format!("judges by this policy{audit}");
        }
        let how = match rejected {
            Some(_) => format!("{source} has another content by now, which was rejected"),
            None => format!("for its verdict, add --policy {source} --recursive {recursive}"),
        };
        format!("judges by ANOTHER POLICY: {name}, version {version} ({hash}), recursive {recursive}; {how}{audit}")
    }
}

/// Asks the proxy at this address for operators how it identifies a pod.
pub async fn pod(admin: SocketAddr, pod: &AccountName) -> Result<String, AskError> {
    ask(admin, &[("pod", &pod.to_string())]).await
}

/// Like [`pod`], with a machine-readable answer.
pub async fn whois(admin: SocketAddr, pod: &str) -> Result<Whois, AskError> {
    let answer = ask(admin, &[("pod", pod), ("format", "json")]).await?;
    serde_json::from_str(&answer).map_err(|_| AskError::Unclear)
}

async fn ask(admin: SocketAddr, query: &[(&str, &str)]) -> Result<String, AskError> {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    ask::get(admin, &format!("/whois?{query}")).await
}

/// A table of requests and each policy's decision.
fn compare(policies: [&Policy; 2]) -> String {
    let names = policies.map(Policy::name);
    let differences = policy::differences(policies);
    if differences.is_empty() {
        return format!("{} and {} decide all requests derived from their rules alike.\n", names[0], names[1]);
    }
    let width = differences.iter().map(|difference| difference.target.len()).max().unwrap_or_default();
    let column = names[0].len().max("conceal, 403".len());
    let mut table = format!("{:width$}  {:column$}  {}\n", "GET", names[0], names[1]);
    for Difference { target, verdicts: [from, to] } in &differences {
        // Writing to a String cannot fail.
        let _ = writeln!(table, "{target:width$}  {from:column$}  {to}");
    }
    table
}

struct Explanation(String);

impl Explanation {
    fn line(&mut self, name: &str, what: impl fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:10} {what}");
    }
}

fn explain_rule(explanation: &mut Explanation, policy: &Policy, decision: Decision<'_>, subject: &str) {
    let rule = match decision {
        Decision::Conceal(Cause::Rule(rule)) => Some(rule),
        Decision::Conceal(_) => None,
        _ => policy.rule_for(subject),
    };
    match rule {
        Some(rule) => {
            let paths: Vec<&str> = rule.paths.iter().map(Pattern::as_str).collect();
            explanation.line("rule", format_args!("{}: {}", policy.place_of(Cause::Rule(rule)), paths.join(", ")));
            if let Some(source) = &rule.source {
                explanation.line("source", source);
            }
        }
        None => explanation.line("rule", "none; the policy's general settings apply"),
    }
}

fn explain_verdict(explanation: &mut Explanation, policy: &Policy, request: &Request, decision: Decision<'_>) {
    let sent = |query: Query| format!("GET {}{}", request.path, policy.trim(query));
    let query = request.query.clone();
    let (verdict, upstream) = match decision {
        Decision::Allow => ("allow", sent(query)),
        Decision::Flat => {
            ("allow, without `recursive`, which has no effect here", sent(query.without(Param::Recursive)))
        }
        Decision::Redact => {
            ("allow, with concealed values removed from the response", sent(redact::upstream_query(query)))
        }
        Decision::Redirect => ("redirect to the directory", "nothing is sent".to_owned()),
        Decision::Conceal(_) => ("conceal", "nothing is sent".to_owned()),
    };
    explanation.line("verdict", verdict);
    explanation.line("upstream", upstream);
    if let Decision::Conceal(cause) = decision {
        let refusal = Concealed::new(policy, &request.path, &request.query, cause);
        explanation.line("client", format_args!("{}: {refusal}", refusal.status()));
    }
}

/// Parses a URL as the proxy would parse a GET request for it with the headers that a client library sends.
fn parse(url: &str) -> Result<Box<Request>, RequestError> {
    let uri: Uri = url.parse().map_err(|_| Malformed::Target)?;
    let host = uri.authority().map_or("metadata.google.internal", Authority::as_str);
    let request = http::Request::get(&uri).header(HOST, host).header(METADATA_FLAVOR, GOOGLE).body(());
    let (head, ()) = request.map_err(|_| Malformed::Target)?.into_parts();
    Request::parse(head, false, None, &AllowedHosts::default())
}

/// The intended path, if the given one was copied from a policy or lacks its first slash.
fn meant(url: &str) -> Option<String> {
    let path = url.split_once('?').map_or(url, |(path, _)| path);
    let is_as_in_a_policy = path.parse::<Pattern>().is_ok();
    let meant = if is_as_in_a_policy { format!("{V1}{url}") } else { format!("/{url}") };
    (meant.starts_with(V1) && parse(&meant).is_ok()).then_some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(policy: &str, url: &str) -> String {
        let choice = Choice { source: Source::parse(policy), recursive: None };
        Question::Explain(choice, url.to_owned(), None).answer().expect("a built-in policy").text
    }

    #[test]
    fn an_expectation_is_met_only_by_that_verdict_and_never_by_an_invalid_url() {
        let (secret, open) = ("/computeMetadata/v1/instance/attributes/kube-env", "/computeMetadata/v1/instance/zone");
        for (url, allow, conceal) in [(secret, false, true), (open, true, false), (&secret[1..], false, false)] {
            let meets = |expected| {
                let question = Question::Explain(Choice::default(), url.to_owned(), Some(expected));
                question.answer().expect("a built-in policy").is_as_expected
            };
            assert_eq!((meets(Expected::Allow), meets(Expected::Conceal)), (allow, conceal), "{url}");
        }
    }

    #[test]
    fn a_refusal_is_explained_with_rule_and_source() {
        let text = explained("compat", "http://metadata/computeMetadata/v1/instance/attributes//kube-env");
        for line in [
            "read as    /computeMetadata/v1/instance/attributes/kube-env\n",
            "rule       1: */attributes/kube-env\n",
            "source     k8s-metadata-proxy, ",
            "verdict    conceal\n",
            "upstream   nothing is sent\n",
            "client     403 Forbidden: Refused: /computeMetadata/v1/instance/attributes/kube-env is concealed",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_upstream_request_is_shown() {
        let text = explained("strict", "/computeMetadata/v1/instance/?recursive=true&alt=text&unknown=1");
        assert!(text.contains("upstream   GET /computeMetadata/v1/instance/?recursive=true\n"), "{text}");
        let text = explained("compat", "/computeMetadata/v1/instance/id?recursive=true");
        assert!(text.contains("upstream   GET /computeMetadata/v1/instance/id\n"), "{text}");
    }

    #[test]
    fn policies_are_compared() {
        let choice = |name: &str| Choice { source: Source::parse(name), recursive: None };
        let compared =
            |from: &str, to: &str| Question::Compare([choice(from), choice(to)]).answer().expect("built in").text;
        let text = compared("k8s-metadata-proxy", "compat");
        let row = |target: &str| text.lines().find(|line| line.starts_with(&format!("/computeMetadata/v1/{target} ")));
        assert!(
            row("instance/?recursive=true").is_some_and(|row| row.ends_with("  conceal, 403        redact")),
            "{text}"
        );
        assert!(row("oslogin").is_some_and(|row| row.ends_with("  allow               conceal, 403")), "{text}");
        assert_eq!(compared("strict", "strict").lines().count(), 1);
    }

    #[test]
    fn invalid_requests_are_explained() {
        let text = explained("compat", "/computeMetadata/v1/instance%2Fid");
        assert!(text.contains("client     403 Forbidden: Refused: invalid path: it hides a `/`"), "{text}");
        let text = explained("compat", "not a url");
        assert!(text.contains("client     400 Bad Request: Bad request: the request target must be a path"), "{text}");
    }

    #[test]
    fn a_path_as_in_a_policy_is_completed() {
        for (url, meant) in [
            ("instance/tags", "/computeMetadata/v1/instance/tags"),
            ("instance", "/computeMetadata/v1/instance"),
            ("project/project-id?alt=json", "/computeMetadata/v1/project/project-id?alt=json"),
            ("computeMetadata/v1/instance/id", "/computeMetadata/v1/instance/id"),
        ] {
            let text = explained("compat", url);
            let line = format!("\nperhaps    you mean {meant}; only policies omit the prefix\n");
            assert!(text.contains("\nclient     400 ") && text.ends_with(&line), "{text}");
        }
        for url in
            ["not a url", "kube-env", "metadata/instance/id", "http://instance/tags", "//instance/id", "", "/%2F"]
        {
            let text = explained("compat", url);
            assert!(!text.contains("\nperhaps "), "{text}");
        }
    }
}
