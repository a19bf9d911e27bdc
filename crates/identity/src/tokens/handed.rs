//! [`WorkloadRecord`]: the state kept for a workload, as it is handed over to the next process.
//!
//! A record has no number, because each process numbers workloads by itself. It is accepted if the API server lists a pod of this
//! node with its account, and if this process knows nothing else about the account. All values are parsed like those in responses of
//! the API server and of Google. Times are those of `CLOCK_BOOTTIME`, which all processes of a node share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::WorkloadSource;
use super::kept::Ask;
use super::secret::Secret;
use super::stage::{Failed, Stage};
use crate::AccountName;
use crate::cluster::Annotations;
use crate::workloads::{Link, Workload};
use base::clock::BootTime;
use protocol::metadata::WorkloadId;
use protocol::metadata::token::{MAX_LIFE_SECONDS, is_token};
use proxy::failure::Withheld;
use proxy::single_flight::Remembered;
use proxy::tokens::{NoToken, Refused, TokenKind};

/// Maximum length of a token of any step, in bytes. Google documents 12 KiB.
const MAX_TOKEN: usize = 16 << 10;

/// Maximum length of an account's UID, in bytes.
const MAX_UID: usize = 64;

/// Maximum Google tokens of a workload that are not collected yet.
const MAX_ASKS: usize = 64;

/// Maximum length of scopes or an audience, in bytes.
const MAX_WHAT: usize = 8 << 10;

/// Maximum bytes of a workload's Google tokens and refusals, beside its default token. Its pods may cause many, and tokens of others
/// need the room.
const MAX_GOOGLE: usize = 12 << 10;

/// Maximum remaining time of a refusal, and maximum number of its headers.
const MAX_REFUSAL: Duration = Duration::from_secs(120);
const MAX_HEADERS: usize = 32;

/// Time after a hand-over in which no token is renewed: the other process does that now. If it dies, this one goes on.
const HANDED_OVER: Duration = Duration::from_secs(120);

/// Maximum time to wait for tokens that are being fetched.
const MAX_SETTLING: Duration = Duration::from_millis(500);

/// A workload, and the state of each of its steps.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadRecord {
    namespace: String,
    name: String,
    uid: String,
    link: LinkRecord,
    /// Time at which the account is due to be read again.
    due: u64,
    /// Time of the last request for one of its tokens. 0 if there was none.
    asked: u64,
    /// Whether its tokens are fetched in advance although it has no link.
    is_asker: bool,
    subject: StageRecord,
    federated: StageRecord,
    google: Vec<(AskRecord, StageRecord)>,
}

/// Annotations.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkRecord {
    google_account: Option<String>,
    delegates: Vec<String>,
    quota_project: Option<String>,
    principal_as_email: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskRecord {
    is_identity: bool,
    what: Box<str>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageRecord {
    token: Option<SecretRecord>,
    refusal: Option<RefusalRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretRecord {
    text: Zeroizing<String>,
    asked: u64,
    expires: u64,
    /// Time from which it should be renewed. If it were drawn again, many would be due at once.
    due: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusalRecord {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    until: u64,
    failures: u32,
}

/// Reason for rejecting a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// A value is not one of any account or token.
    Invalid,
    /// No pod of this node has the account.
    NoPod,
    /// The account has changed.
    Changed,
}

impl fmt::Debug for SecretRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretRecord").finish_non_exhaustive()
    }
}

/// An error response may still contain a token, so its body is not shown.
impl fmt::Debug for RefusalRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalRecord").field("status", &self.status).finish_non_exhaustive()
    }
}

/// A workload that can be handed over.
#[derive(Debug, Clone)]
pub struct ExportedWorkload {
    /// Its number in this process.
    pub number: WorkloadId,
    workload: Arc<Workload>,
    link: Link,
}

impl WorkloadSource {
    /// Prepares a hand-over: waits a moment for tokens that are being fetched, and renews none for a while. The other process would
    /// have to fetch them again.
    pub async fn settle(&self) {
        let renewals = &self.means.renewals;
        renewals.rest(HANDED_OVER, BootTime::now());
        let settled = async {
            let _renewing = self.renewing.lock().await;
            for stages in self.kept.all() {
                stages.federated.settled().await;
                stages.subject.settled().await;
            }
        };
        let _ = timeout(MAX_SETTLING, settled).await;
    }

    /// The workloads that can be handed over.
    pub fn exported(&self) -> Vec<ExportedWorkload> {
        let all = self.means.workloads.all().into_iter();
        all.filter_map(|(number, workload)| {
            let link = workload.link.clone().ok()?;
            Some(ExportedWorkload { number, workload, link })
        })
        .collect()
    }

    /// The record of a workload as of now.
    pub fn record(&self, exported: &ExportedWorkload, now: BootTime) -> WorkloadRecord {
        let ExportedWorkload { number, workload, link } = exported;
        let stages = self.kept.find(*number);
        let google = stages.iter().flat_map(|stages| stages.google_stages()).filter_map(|(ask, stage)| {
            let record = StageRecord::of(&stage, now);
            // A record does not name a certificate.
            (ask.bound_to.is_none() && !record.is_empty())
                .then(|| (AskRecord { is_identity: ask.kind == TokenKind::Identity, what: ask.what }, record))
        });
        let mut google: Vec<_> = google.collect();
        google.sort_by_key(|(ask, record)| (!ask.what.is_empty(), record.token.is_none()));
        let mut bytes = 0;
        google.retain(|(ask, record)| {
            let with = bytes + ask.what.len() + record.bytes();
            let is_kept = ask.what.is_empty() || with <= MAX_GOOGLE;
            if is_kept && !ask.what.is_empty() {
                bytes = with;
            }
            is_kept
        });
        WorkloadRecord {
            namespace: workload.namespace.to_string(),
            name: workload.name.to_string(),
            uid: workload.uid.to_string(),
            link: LinkRecord::of(link),
            due: self.means.workloads.due(*number).unwrap_or(now).as_nanos(),
            asked: stages.as_ref().map_or(0, |stages| stages.last_asked()),
            is_asker: self.askers.has(workload),
            subject: stages.as_ref().map(|stages| StageRecord::of(&stages.subject, now)).unwrap_or_default(),
            federated: stages.as_ref().map(|stages| StageRecord::of(&stages.federated, now)).unwrap_or_default(),
            google,
        }
    }

    /// Takes over a workload. Returns its number in this process, and the number of tokens.
    pub fn take_over(&self, record: WorkloadRecord, now: BootTime) -> Result<(WorkloadId, usize), NotTaken> {
        let WorkloadRecord { namespace, name, uid, link, due, asked, is_asker, subject, federated, google } = record;
        let account = AccountName::parse(&format!("{namespace}/{name}")).ok_or(NotTaken::Invalid)?;
        let is_uid = (1..=MAX_UID).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_uid || google.len() > MAX_ASKS {
            return Err(NotTaken::Invalid);
        }
        let workload = Workload {
            namespace: account.namespace().into(),
            name: account.name().into(),
            uid: uid.into(),
            link: Ok(link.parse().ok_or(NotTaken::Invalid)?),
        };
        // Everything is checked before anything takes effect.
        let [subject, federated] = [subject, federated].map(|stage| stage.checked(now));
        let (subject, federated) = (subject?, federated?);
        let google: Vec<_> = google
            .into_iter()
            .map(|(ask, stage)| Ok((ask.parse().ok_or(NotTaken::Invalid)?, stage.checked(now)?)))
            .collect::<Result<_, NotTaken>>()?;

        let pods = self.means.pods.sponsors(account.namespace(), account.name());
        let pod = pods.first().ok_or(NotTaken::NoPod)?;
        let due = BootTime::from_nanos(due).min(now + crate::workloads::MAX_AGE);
        let number = self.means.workloads.take_over(pod, &workload, due).ok_or(NotTaken::Changed)?;
        let stages = self.kept.of(number, now);
        let mut tokens = 0;
        let mut put = |stage: &Stage, (token, refusal): Checked| {
            let has_token = token.is_some();
            tokens += usize::from(stage.take_over(token, refusal) && has_token);
        };
        put(&stages.subject, subject);
        put(&stages.federated, federated);
        for (ask, checked) in google {
            if let Ok(stage) = stages.google_token(&ask, now) {
                put(&stage, checked);
            }
        }
        if asked > 0 {
            stages.asked(BootTime::from_nanos(asked).min(now));
        }
        if is_asker {
            self.askers.saw(&workload);
        }
        Ok((number, tokens))
    }
}

impl LinkRecord {
    fn of(link: &Link) -> Self {
        Self {
            google_account: link.google_account.as_ref().map(ToString::to_string),
            delegates: link.delegates.iter().map(ToString::to_string).collect(),
            quota_project: link.quota_project.as_ref().map(ToString::to_string),
            principal_as_email: link.principal_as_email,
        }
    }

    fn parse(self) -> Option<Link> {
        let annotations = Annotations {
            google_account: self.google_account,
            delegates: Some(serde_json::to_string(&self.delegates).ok()?),
            quota_project: self.quota_project,
            principal_as_email: self.principal_as_email.then(|| "true".to_owned()),
        };
        Link::parse(&annotations).ok()
    }
}

impl AskRecord {
    fn parse(self) -> Option<Ask> {
        let kind = if self.is_identity { TokenKind::Identity } else { TokenKind::Access };
        (self.what.len() <= MAX_WHAT).then_some(Ask { kind, what: self.what, bound_to: None })
    }
}

/// A token and a refusal that were checked.
type Checked = (Option<Secret>, Option<Failed>);

impl StageRecord {
    /// Its approximate length.
    fn bytes(&self) -> usize {
        self.token.as_ref().map_or(0, |token| token.text.len()) + self.refusal.as_ref().map_or(0, RefusalRecord::bytes)
    }

    fn of(stage: &Stage, now: BootTime) -> Self {
        let (token, refusal) = stage.known(now);
        Self {
            token: token.map(|secret| SecretRecord {
                text: secret.text.clone(),
                asked: secret.asked.as_nanos(),
                expires: secret.expires.as_nanos(),
                due: secret.due.as_nanos(),
            }),
            refusal: refusal.and_then(|(refusal, failures)| RefusalRecord::of(&refusal, failures)),
        }
    }

    fn is_empty(&self) -> bool {
        self.token.is_none() && self.refusal.is_none()
    }

    fn checked(self, now: BootTime) -> Result<Checked, NotTaken> {
        let token = self.token.map(SecretRecord::checked).transpose()?.filter(|secret| secret.is_valid(now));
        if token.as_ref().is_some_and(|secret| secret.asked > now) {
            return Err(NotTaken::Invalid);
        }
        Ok((token, self.refusal.map(|refusal| refusal.checked(now)).transpose()?.flatten()))
    }
}

impl SecretRecord {
    fn checked(self) -> Result<Secret, NotTaken> {
        let is_text = self.text.len() <= MAX_TOKEN && is_token(self.text.as_bytes());
        let [asked, expires, due] = [self.asked, self.expires, self.due].map(BootTime::from_nanos);
        let life = expires.since(asked);
        if !is_text || expires <= asked || life > Duration::from_secs(MAX_LIFE_SECONDS.into()) {
            return Err(NotTaken::Invalid);
        }
        Ok(Secret { due: due.clamp(asked, expires), ..Secret::new(self.text, asked, life) })
    }
}

impl RefusalRecord {
    /// `None` for a failure, because the other process may succeed.
    fn of(refusal: &Remembered<NoToken>, failures: u32) -> Option<Self> {
        let NoToken::Refused(refused) = &refusal.what else { return None };
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        Some(Self {
            status: refused.status.as_u16(),
            headers: refused.headers.iter().filter_map(header).take(MAX_HEADERS).collect(),
            body: String::from_utf8_lossy(&refused.body).into_owned(),
            until: refusal.until.as_nanos(),
            failures,
        })
    }

    /// Its approximate length.
    fn bytes(&self) -> usize {
        self.body.len() + self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    /// `None` if it has expired.
    fn checked(self, now: BootTime) -> Result<Option<Failed>, NotTaken> {
        let status = StatusCode::from_u16(self.status).map_err(|_| NotTaken::Invalid)?;
        let until = BootTime::from_nanos(self.until);
        let is_refusal = status.is_client_error() || status.is_server_error();
        if !is_refusal || self.headers.len() > MAX_HEADERS || until > now + MAX_REFUSAL {
            return Err(NotTaken::Invalid);
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| NotTaken::Invalid)?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| NotTaken::Invalid)?);
        }
        // Whether it affects all pods is not handed over; the server's next response shows it.
        let why = if status.is_server_error() { Withheld::Project } else { Withheld::Account };
        let refused = Refused::copied(status, &headers, self.body.as_bytes()).withholding(why);
        let holds = until > now;
        Ok(holds.then(|| (Remembered::until(NoToken::Refused(Arc::new(refused)), until), self.failures)))
    }
}

#[cfg(test)]
mod tests;
