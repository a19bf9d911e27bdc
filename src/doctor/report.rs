//! [`Report`]: what was found, as text or JSON.

use std::fmt;

use serde::Serialize;

use crate::check::Format;

/// What is looked at, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Whether the API server accepts the credential.
    ApiServer,
    /// What else the credential may do.
    Rights,
    /// Whether this node's pods can be listed, and whose token is tried.
    Pods,
    /// Whether the service account can be read.
    Account,
    /// The node's processes.
    Proc,
    /// The Kubernetes token of a pod.
    Token,
    /// What that token says.
    Claims,
    /// The clocks of this machine, the API server and Google.
    Clock,
    /// The issuer and the keys that the API server publishes.
    Keys,
    /// The issuer's public URL.
    Issuer,
    /// Whether the flags agree with each other and with the token.
    Settings,
    /// Whether the Security Token Service can be reached.
    Sts,
    /// Whether the IAM Service Account Credentials API can be reached.
    Iam,
    /// The exchange of the Kubernetes token.
    Exchange,
    /// The service account's annotations.
    Link,
    /// The token of the Google service account.
    Impersonation,
    /// Whom the running proxy takes the pod for.
    Proxy,
}

/// Meaning of a finding, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It depends on something that failed, or cannot be seen from here.
    NotTried,
    /// It may be a cause if something else fails, or fail later.
    Warning,
    /// Pods get no tokens, or soon will not.
    Trouble,
    /// Whoever steals the credential gets more rights than the proxy needs.
    Exposed,
}

/// What was found in one step. Texts have no control characters, which could come from an annotation or a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The step.
    pub step: Step,
    /// What it means.
    pub verdict: Verdict,
    /// What was looked at.
    pub tried: String,
    /// What was seen, in plain words.
    pub seen: String,
    /// The words of the server that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// What to do, if it needs an explanation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The commands that show more. They change nothing in the cluster, on the node and at Google.
    #[serde(rename = "look")]
    pub looks: Vec<String>,
    /// The commands that mend it, in order.
    #[serde(rename = "do")]
    pub commands: Vec<String>,
}

/// All findings, and what they mean for the pods of an account.
#[derive(Debug, Serialize)]
pub struct Report {
    verdict: Verdict,
    /// Whether pods get tokens.
    #[serde(skip)]
    has_identity: bool,
    /// One sentence.
    conclusion: String,
    findings: Vec<Finding>,
}

impl Finding {
    /// A finding without advice.
    pub(super) fn new(step: Step, verdict: Verdict, tried: impl AsRef<str>, seen: impl AsRef<str>) -> Self {
        let (tried, seen) = (clean(tried.as_ref()), clean(seen.as_ref()));
        Self { step, verdict, tried, seen, said: None, advice: None, looks: Vec::new(), commands: Vec::new() }
    }

    pub(super) fn ok(step: Step, tried: impl AsRef<str>, seen: impl AsRef<str>) -> Self {
        Self::new(step, Verdict::Ok, tried, seen)
    }

    pub(super) fn warning(step: Step, tried: impl AsRef<str>, seen: impl AsRef<str>) -> Self {
        Self::new(step, Verdict::Warning, tried, seen)
    }

    pub(super) fn trouble(step: Step, tried: impl AsRef<str>, seen: impl AsRef<str>) -> Self {
        Self::new(step, Verdict::Trouble, tried, seen)
    }

    /// A step that was left out, and why.
    pub(super) fn not_tried(step: Step, tried: impl AsRef<str>, because: impl AsRef<str>) -> Self {
        Self::new(step, Verdict::NotTried, tried, format!("not tried: {}", because.as_ref()))
    }

    /// Whether it was not seen whom the proxy takes the pod for.
    fn is_unseen_proxy(&self) -> bool {
        self.step == Step::Proxy && self.verdict != Verdict::Ok
    }

    /// With a server's words.
    pub(super) fn saying(self, said: impl AsRef<str>) -> Self {
        Self { said: Some(clean(said.as_ref())), ..self }
    }

    /// With an explanation of what to do.
    pub(super) fn advising(self, advice: impl AsRef<str>) -> Self {
        Self { advice: Some(clean(advice.as_ref())), ..self }
    }

    /// With one more command that shows what is wrong, and changes nothing.
    pub(super) fn looking(mut self, command: impl AsRef<str>) -> Self {
        self.looks.push(clean(command.as_ref()));
        self
    }

    /// With one more command that mends it.
    pub(super) fn running(mut self, command: impl AsRef<str>) -> Self {
        self.commands.push(clean(command.as_ref()));
        self
    }
}

/// Maximum characters of a text: a server's words, or what it publishes, can be long.
const MAX_TEXT: usize = 4000;

/// What could move a terminal's cursor, or change the order of what it shows, becomes visible.
fn clean(text: &str) -> String {
    let is_hidden = |char: char| {
        char.is_control() || matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
    };
    let visible = |char: char| if is_hidden(char) { '\u{fffd}' } else { char };
    text.trim_end().chars().take(MAX_TEXT).map(visible).collect()
}

impl Report {
    /// `whose` are the pods, and `identity` is what they get tokens of, if they do.
    pub(super) fn new(mut findings: Vec<Finding>, whose: &str, identity: Option<&str>) -> Self {
        findings.sort_by_key(|finding| finding.step);
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Trouble);
        let trouble = findings.iter().find(|finding| finding.verdict == Verdict::Trouble);
        let conclusion = match (trouble, identity) {
            (None, Some(identity)) => match findings.iter().find(|finding| finding.is_unseen_proxy()) {
                None => format!("Pods of {whose} get tokens of {identity}."),
                Some(proxy) => {
                    format!(
                        "Pods of {whose} get tokens of {identity} if the proxy knows them, which was {}.",
                        proxy.seen
                    )
                }
            },
            (None, None) => format!("Pods of {whose} do not get tokens."),
            (Some(trouble), Some(identity)) => {
                format!("Pods of {whose} could get tokens of {identity}, but {}", because(trouble))
            }
            (Some(trouble), None) => format!("Pods of {whose} do not get tokens, because {}", because(trouble)),
        };
        Self { verdict, has_identity: identity.is_some() && trouble.is_none(), conclusion, findings }
    }

    /// All findings.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The last line, one sentence.
    pub fn conclusion(&self) -> &str {
        &self.conclusion
    }

    /// 2 if pods get no tokens or something is in trouble, else 1 if the credential is too powerful, else 0.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            _ if !self.has_identity => 2,
            Verdict::Exposed => 1,
            _ => 0,
        }
    }

    /// Renders the report, with a trailing newline.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.to_string(),
            Format::Json => serde_json::to_string_pretty(self).expect("texts and names are always JSON") + "\n",
        }
    }
}

/// Maximum bytes of a command that is repeated in the conclusion.
const MAX_COMMAND: usize = 250;

/// A finding's sentence and what to do, in one line.
fn because(finding: &Finding) -> String {
    let todo = match (&*finding.commands, &finding.advice, &*finding.looks) {
        ([command], ..) if command.len() <= MAX_COMMAND => format!("do: {command}"),
        ([_], ..) => "do the command above".to_owned(),
        ([], Some(advice), _) => format!("do: {advice}"),
        ([], None, [look]) if look.len() <= MAX_COMMAND => format!("look: {look}"),
        ([], None, _) => "see above".to_owned(),
        (commands, ..) => format!("do the {} commands above", commands.len()),
    };
    format!("{}; {todo}", finding.seen)
}

/// A line per finding, others for words and fixes, and the conclusion.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { verdict, tried, seen, said, advice, looks, commands, .. } in &self.findings {
            let mark = match verdict {
                Verdict::Ok => "ok      ",
                Verdict::NotTried => "skipped ",
                Verdict::Warning => "WARNING ",
                Verdict::Trouble => "TROUBLE ",
                Verdict::Exposed => "OPEN    ",
            };
            writeln!(f, "{mark}{tried}: {seen}")?;
            if let Some(said) = said {
                writeln!(f, "        it said: {said}")?;
            }
            for command in looks {
                writeln!(f, "        look: {command}")?;
            }
            for command in commands {
                writeln!(f, "        fix: {command}")?;
            }
            if let Some(advice) = advice {
                let label = if commands.is_empty() { "fix" } else { "note" };
                writeln!(f, "        {label}: {advice}")?;
            }
        }
        writeln!(f, "{}", self.conclusion)
    }
}
