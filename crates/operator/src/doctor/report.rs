//! [`Report`]: all findings, as text or JSON.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::finding;

/// The steps, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Whether the API server accepts the credential.
    ApiServer,
    /// Unneeded rights of the credential.
    Rights,
    /// Whether this node's pods can be listed, and which pod's token is tried.
    Pods,
    /// Whether the service account can be read.
    Account,
    /// The node's processes.
    Proc,
    /// The Kubernetes token of a pod.
    Token,
    /// The claims of that token.
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
    /// The running proxy's identification of the pod.
    Proxy,
}

/// Meaning of a finding, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As intended.
    Ok,
    /// Depends on something that failed, or cannot be seen from here.
    NotTried,
    /// May cause other failures, or fail later.
    Warning,
    /// Pods get no tokens, or soon will not.
    Trouble,
    /// A stolen credential has more rights than the proxy needs.
    Exposed,
}

/// The finding of one step.
pub type Finding = finding::Finding<Step, Verdict>;

/// All findings, and their meaning for the pods of an account.
#[derive(Debug, Serialize)]
pub struct Report {
    verdict: Verdict,
    /// Whether pods get tokens.
    #[serde(skip)]
    has_identity: bool,
    conclusion: String,
    findings: Vec<Finding>,
}

/// A step, and the action that is tried in it, for the finding to come.
#[derive(Debug)]
pub(super) struct Tried(pub(super) Step, pub(super) Cow<'static, str>);

impl Step {
    pub(super) fn trying(self, what: impl Into<Cow<'static, str>>) -> Tried {
        Tried(self, what.into())
    }
}

impl Tried {
    pub(super) fn ok(&self, seen: impl AsRef<str>) -> Finding {
        self.found(Verdict::Ok, seen)
    }

    pub(super) fn warning(&self, seen: impl AsRef<str>) -> Finding {
        self.found(Verdict::Warning, seen)
    }

    pub(super) fn trouble(&self, seen: impl AsRef<str>) -> Finding {
        self.found(Verdict::Trouble, seen)
    }

    /// A finding for a step that was left out, with the reason.
    pub(super) fn not_tried(&self, because: impl AsRef<str>) -> Finding {
        self.found(Verdict::NotTried, format!("not tried: {}", because.as_ref()))
    }

    pub(super) fn found(&self, verdict: Verdict, seen: impl AsRef<str>) -> Finding {
        let Self(step, what) = self;
        Finding::new(*step, verdict, what, seen)
    }
}

impl Finding {
    /// Whether the proxy's identification of the pod could not be checked.
    fn is_unseen_proxy(&self) -> bool {
        self.topic == Step::Proxy && self.verdict != Verdict::Ok
    }
}

impl finding::Verdict for Verdict {
    fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok      ",
            Self::NotTried => "skipped ",
            Self::Warning => "WARNING ",
            Self::Trouble => "TROUBLE ",
            Self::Exposed => "OPEN    ",
        }
    }
}

impl finding::Written for Verdict {
    const KEYS: [&str; 2] = ["step", "verdict"];
}

impl Report {
    /// `whose` describes the pods, and `identity` is what they get tokens for, if they get any.
    pub(super) fn new(mut findings: Vec<Finding>, whose: &str, identity: Option<&str>) -> Self {
        findings.sort_by_key(|finding| finding.topic);
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

    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The report's last line, one sentence.
    pub fn conclusion(&self) -> &str {
        &self.conclusion
    }

    /// 2 if pods get no tokens or there is a trouble, else 1 if the credential has unneeded rights, else 0.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            _ if !self.has_identity => 2,
            Verdict::Exposed => 1,
            _ => 0,
        }
    }
}

/// Maximum bytes of a command for it to be repeated in the conclusion.
const MAX_COMMAND: usize = 250;

/// A finding's sentence and its fix, on one line.
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

/// The findings, and the conclusion.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| write!(f, "{finding}"))?;
        writeln!(f, "{}", self.conclusion)
    }
}
