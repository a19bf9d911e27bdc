//! [`Truth`]: the state outside the proxy, its history, and the claims that a token may therefore have.

use std::time::Duration;

use super::servers::Claims;
use crate::tokens::sts::CLOUD_PLATFORM;
use crate::workloads::MAX_REPEATED_READS;
use base::clock::BootTime;

/// Namespaces and names of the Kubernetes service accounts.
pub(super) const ACCOUNTS: [(&str, &str); 3] = [("a", "app"), ("a", "other"), ("b", "app")];

/// The Google accounts that they may be linked to.
pub(super) const GOOGLE: [&str; 2] = ["x@shop.iam.gserviceaccount.com", "y@shop.iam.gserviceaccount.com"];

pub(super) const USERINFO_EMAIL: &str = "https://www.googleapis.com/auth/userinfo.email";

/// Age from which an account is read again when it is requested.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Interval of the scans for accounts that are due.
const TEND_INTERVAL: Duration = Duration::from_millis(250);

/// Timers have whole milliseconds.
const TIMER_ERROR: Duration = Duration::from_millis(5);

/// A service account as it was from a moment on.
#[derive(Debug, Clone)]
struct Version {
    since: BootTime,
    /// `None` while it does not exist.
    exists: Option<Existing>,
}

#[derive(Debug, Clone)]
pub(super) struct Existing {
    pub(super) uid: String,
    pub(super) google: Option<&'static str>,
}

/// A service account, from the beginning.
#[derive(Debug, Default)]
struct Account {
    versions: Vec<Version>,
    /// Times at which the API server read the account, and at which it answered.
    reads: Vec<(BootTime, BootTime)>,
    /// Times at which pods of it were identified with a request.
    asked: Vec<BootTime>,
}

/// A pod, while the API server knows it and after.
#[derive(Debug)]
pub(super) struct PodTruth {
    pub(super) account: usize,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) is_in_api: bool,
    /// Time at which its processes ended.
    pub(super) ended: Option<BootTime>,
}

/// The failure of one of Google's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    Unreachable,
    Refuses(u16),
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Node,
    /// The pod with this number.
    Pod(u8),
}

/// The name under which an account is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Default,
    Pool,
    /// An e-mail, of its own account or not.
    Google(usize),
}

/// The token that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// With these scopes, in the client's spelling.
    Access(&'static str),
    /// For this audience.
    Identity(&'static str),
}

/// A request that was answered with a token.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) sender: Sender,
    pub(super) name: Name,
    pub(super) what: What,
    /// Time at which its sender was identified.
    pub(super) identified: BootTime,
    /// Time of the response.
    pub(super) at: BootTime,
    pub(super) claims: Claims,
    /// The time until the token's end according to the response, if it has one.
    pub(super) expires_in: Option<u64>,
}

/// The state outside the proxy.
#[derive(Debug)]
pub(super) struct Truth {
    accounts: [Account; ACCOUNTS.len()],
    /// By number, from 1.
    pub(super) pods: Vec<PodTruth>,
    uids: u32,
    /// Time that every server takes.
    pub(super) delay: Duration,
    /// Lifetime of Google's tokens.
    pub(super) life: Duration,
    /// Failures of STS and IAM, and their ends.
    pub(super) failing: [Option<(Failing, BootTime)>; 2],
}

impl Truth {
    /// All accounts exist. Some are linked.
    pub(super) fn new(delay: Duration, life: Duration) -> Self {
        let mut truth =
            Self { accounts: Default::default(), pods: Vec::new(), uids: 0, delay, life, failing: [None; 2] };
        for (account, google) in [Some(GOOGLE[0]), Some(GOOGLE[1]), None].into_iter().enumerate() {
            truth.make(account, google);
        }
        truth
    }

    /// Creates an account, or deletes it and creates it again.
    pub(super) fn make(&mut self, account: usize, google: Option<&'static str>) {
        self.uids += 1;
        let uid = format!("u{}", self.uids);
        self.becomes(account, Some(Existing { uid, google }));
    }

    pub(super) fn delete(&mut self, account: usize) {
        self.becomes(account, None);
    }

    /// Changes the annotation of an account that exists.
    pub(super) fn annotate(&mut self, account: usize, google: Option<&'static str>) {
        if let Some(Existing { uid, .. }) = self.now(account) {
            self.becomes(account, Some(Existing { uid, google }));
        }
    }

    fn becomes(&mut self, account: usize, exists: Option<Existing>) {
        self.accounts[account].versions.push(Version { since: BootTime::now(), exists });
    }

    /// An account as it is now.
    pub(super) fn now(&self, account: usize) -> Option<Existing> {
        self.accounts[account].versions.last()?.exists.clone()
    }

    pub(super) fn was_read(&mut self, account: usize, looked: BootTime) {
        self.accounts[account].reads.push((looked, BootTime::now()));
    }

    pub(super) fn was_asked(&mut self, account: usize) {
        self.accounts[account].asked.push(BootTime::now());
    }

    pub(super) fn failure(&self, server: usize) -> Option<Failing> {
        self.failing[server].filter(|(_, until)| BootTime::now() < *until).map(|(failing, _)| failing)
    }

    pub(super) fn pod(&self, number: u8) -> &PodTruth {
        &self.pods[usize::from(number) - 1]
    }

    /// The reason why a request must not have got its token.
    pub(super) fn judge(&self, answered: &Answered) -> Result<(), String> {
        let claims = &answered.claims;
        ensure(claims.ends() > answered.at, "it has expired")?;
        let said = Duration::from_secs(answered.expires_in.unwrap_or(0));
        ensure(answered.at + said <= claims.ends(), "its life is overstated")?;
        match answered.sender {
            Sender::Node => judge_nodes(answered),
            Sender::Pod(number) => self.judge_pods(answered, self.pod(number).account),
        }
    }

    fn judge_pods(&self, answered: &Answered, account: usize) -> Result<(), String> {
        let claims = &answered.claims;
        ensure(claims.step != "node", "it is the node's")?;
        let (namespace, name) = ACCOUNTS[account];
        ensure((&*claims.namespace, &*claims.name) == (namespace, name), "it is another account's")?;
        let is_members = |pod: &PodTruth| pod.uid == claims.pod_uid && pod.account == account;
        ensure(self.pods.iter().any(is_members), "it is bound to a pod of another account")?;

        let since = self.oldest(account, answered.identified);
        let was = |is: &dyn Fn(&Existing) -> bool| self.was(account, since, is);
        ensure(was(&|known| known.uid == claims.uid), "it is of an account that was deleted")?;
        ensure(was(&|known| known.google == claims.google.as_deref()), "it is not of the Google account of its link")?;
        if let Name::Google(google) = answered.name {
            ensure(claims.google.as_deref() == Some(GOOGLE[google]), "it is not of the Google account in the path")?;
        }
        let (step, wanted) = match (answered.what, &claims.google) {
            (What::Access(""), Some(_)) => ("google", format!("{CLOUD_PLATFORM},{USERINFO_EMAIL}")),
            (What::Access(""), None) => ("federated", CLOUD_PLATFORM.to_owned()),
            (What::Access(scopes), Some(_)) => ("google", canonical(scopes)),
            (What::Access(scopes), None) => ("federated", canonical(scopes)),
            (What::Identity(audience), _) => ("identity", audience.to_owned()),
        };
        ensure(claims.step == step, "it is of another kind")?;
        ensure(claims.what == wanted, "it has other scopes, or another audience")
    }

    /// The oldest state of an account that a request may get: the last one read, unless it should have been read again.
    fn oldest(&self, account: usize, asked: BootTime) -> BootTime {
        let Account { reads, asked: all, .. } = &self.accounts[account];
        let delay = self.delay + TIMER_ERROR;
        // At the same moment, either may be first.
        let Some((looked, read)) = reads.iter().rev().find(|(_, answered)| *answered < asked) else {
            return BootTime::from_nanos(0);
        };
        let first = all.iter().find(|other| **other > *read).map_or(asked, |first| (*first).min(asked));
        // When all accounts are due at once, some wait for the reads of others.
        let rounds = u32::try_from(ACCOUNTS.len().div_ceil(MAX_REPEATED_READS)).expect("few accounts");
        let due = first.max(*read + MAX_AGE) + TEND_INTERVAL + delay * rounds;
        if asked <= due { *looked } else { asked - delay }
    }

    /// Whether an account was in this state at any time since then.
    fn was(&self, account: usize, since: BootTime, is: &dyn Fn(&Existing) -> bool) -> bool {
        let versions = &self.accounts[account].versions;
        let ends = versions.iter().skip(1).map(|next| Some(next.since)).chain([None]);
        let mut lived = versions.iter().zip(ends).filter(|(_, end)| end.is_none_or(|end| end >= since));
        lived.any(|(version, _)| version.exists.as_ref().is_some_and(is))
    }
}

fn judge_nodes(answered: &Answered) -> Result<(), String> {
    let wanted = match answered.what {
        What::Access(scopes) => canonical(scopes),
        What::Identity(audience) => audience.to_owned(),
    };
    ensure(answered.claims.step == "node", "it is not the node's")?;
    ensure(answered.claims.what == wanted, "it is for something else")
}

/// Scopes are a set.
fn canonical(scopes: &str) -> String {
    let mut scopes: Vec<_> = scopes.split(',').filter(|scope| !scope.is_empty()).collect();
    scopes.sort_unstable();
    scopes.join(",")
}

fn ensure(is_so: bool, otherwise: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise.to_owned()) }
}
