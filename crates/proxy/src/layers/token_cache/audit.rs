//! [`Audit`]: logs which tokens are issued to whom, but never the tokens themselves.
//!
//! A pod that asks for one token all the time has one line a minute, with a count. A pod that asks for many different ones may
//! fill `POD_BYTES` of log in a minute; the rest of them has a line for each account, without scopes and audiences.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::metrics::TokenOutcome;
use crate::tokens::TokenKey;
use protocol::metadata::query::Param;
use protocol::metadata::{CallingPod, Request};
use telemetry::labels::Label;
use telemetry::logging::AUDIT_TARGET;
use telemetry::sampled::{Brief, Full, Sampled, SampledBy};

/// Interval between lines for one pod and token.
const INTERVAL: Duration = Duration::from_secs(60);

/// Bytes of the lines about single tokens of one pod in an interval.
const POD_BYTES: usize = 6 << 10;

/// Bytes of a line without the texts that are counted: field names, addresses, numbers.
const LINE_BYTES: usize = 420;

/// Bytes of a text that a pod chose, at most.
const TEXT_BYTES: usize = 243;

/// Maximum number of accounts and kinds of token that have lines of their own once a pod has filled its bytes. A pod has one or
/// two.
const POD_ACCOUNTS: usize = 2;

/// Maximum number of pods with lines of their own. A node has 110, or 256.
const MAX_PODS: usize = 256;

/// Whether issued tokens are logged.
#[derive(Debug, Clone, Default)]
pub enum Audit {
    On(Arc<AuditLog>),
    /// No lines.
    #[default]
    Off,
}

impl From<bool> for Audit {
    fn from(is_on: bool) -> Self {
        if is_on { Self::On(Arc::default()) } else { Self::Off }
    }
}

/// The audit line of a token request. Written if the request is answered with a token.
#[derive(Debug)]
pub struct AuditLine {
    log: Arc<AuditLog>,
    client: Option<SocketAddr>,
    pod: Option<Arc<CallingPod>>,
    key: Arc<TokenKey>,
    outcome: TokenOutcome,
}

impl Audit {
    /// The line for a request, or `None` if the audit is off.
    pub fn line(&self, request: &Request, key: &Arc<TokenKey>, outcome: TokenOutcome) -> Option<Box<AuditLine>> {
        let Self::On(log) = self else { return None };
        let (client, pod) = (request.peer, request.pod.clone());
        // In a box, because many requests may wait at once without an audit.
        Some(Box::new(AuditLine { log: Arc::clone(log), client, pod, key: Arc::clone(key), outcome }))
    }
}

impl AuditLine {
    /// Logs that the token was issued, with this many seconds until it expires, if a line is due.
    pub fn issued(&self, expires_in: u32) {
        let Some(due) = self.log.due(self, Instant::now()) else { return };
        let (count, what) = match due {
            Due::Token(count) => (count, "token handed out"),
            Due::Account(count) => (count, "tokens with many different scopes or audiences handed out"),
            Due::Pod(count) => (count, "tokens of many accounts handed out"),
            Due::Crowd(count) => {
                tracing::info!(target: AUDIT_TARGET, count, "tokens handed out to more pods than have lines of their own");
                return;
            }
        };
        let has_account = !matches!(due, Due::Pod(_));
        let text = |param| self.key.param(param).filter(|_| matches!(due, Due::Token(_))).map(brief);
        let (scopes, audience) = (text(Param::Scopes), text(Param::Audience));
        let bound_to = self.key.bound_to.as_deref().filter(|_| matches!(due, Due::Token(_)));
        let pod = self.pod.as_deref();
        tracing::info!(
            target: AUDIT_TARGET,
            client = self.client.map(tracing::field::display),
            namespace = pod.map(|pod| &*pod.namespace),
            service_account = pod.map(|pod| &*pod.service_account),
            pod = pod.map(|pod| &*pod.name),
            pod_uid = pod.map(|pod| &*pod.uid),
            principal = %self.key.principal,
            kind = self.key.kind.label(),
            account = has_account.then(|| tracing::field::display(Brief(&self.key.account))),
            scopes = scopes.as_deref(),
            audience = audience.as_deref(),
            bound_to = bound_to.map(tracing::field::display),
            cache = self.outcome.label(),
            expires_in,
            count,
            "{what}"
        );
    }

    /// Length of the line about this token, approximately.
    fn len(&self) -> usize {
        let names = self.pod.as_deref().map_or(0, |pod| {
            [&*pod.namespace, &*pod.service_account, &*pod.name, &*pod.uid].map(str::len).into_iter().sum()
        });
        let texts = [Param::Scopes, Param::Audience].into_iter().filter_map(|param| self.key.param(param));
        LINE_BYTES + names + texts.map(|text| text.len().min(TEXT_BYTES)).sum::<usize>()
    }
}

/// The beginning of a text that a pod chose. Escaped, because a character may take ten bytes in the log.
fn brief(text: &str) -> String {
    Brief(text.escape_default()).to_string()
}

/// What a line is about, and the number of tokens since the last line about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// One token of one pod.
    Token(u64),
    /// Tokens of one account and one kind, of one pod that has filled its lines.
    Account(u64),
    /// Tokens of one pod that has filled these lines, too.
    Pod(u64),
    /// Tokens of all pods that have no place.
    Crowd(u64),
}

/// Decides which lines are due.
#[derive(Debug)]
pub struct AuditLog {
    /// Names of pods and tokens are compared by their hashes, because texts that pods chose would take memory.
    hashes: RandomState,
    pods: Mutex<HashMap<u64, PodLines>>,
    crowd: Sampled,
}

/// The lines of one pod.
#[derive(Debug)]
struct PodLines {
    tokens: SampledBy<u64>,
    accounts: SampledBy<u64>,
    others: Sampled,
    /// Bytes of lines about single tokens since then.
    bytes: (Instant, usize),
    last_token: Instant,
}

impl Default for AuditLog {
    fn default() -> Self {
        Self { hashes: RandomState::new(), pods: Mutex::default(), crowd: Sampled::new(INTERVAL) }
    }
}

impl AuditLog {
    /// Counts a token.
    fn due(&self, line: &AuditLine, now: Instant) -> Option<Due> {
        let pod = match &line.pod {
            Some(pod) => self.hashes.hash_one(&pod.uid),
            None => self.hashes.hash_one(line.client.map(|client| client.ip().to_canonical())),
        };
        let mut pods = self.pods.lock();
        if pods.len() >= MAX_PODS && !pods.contains_key(&pod) {
            pods.retain(|_, lines| now < lines.last_token + INTERVAL);
            if pods.len() >= MAX_PODS {
                return self.crowd.due(now).map(Due::Crowd);
            }
        }
        pods.entry(pod).or_insert_with(|| PodLines::new(now)).due(line, &self.hashes, now)
    }
}

impl PodLines {
    fn new(now: Instant) -> Self {
        let (tokens, accounts) =
            (SampledBy::new(INTERVAL, POD_BYTES / LINE_BYTES), SampledBy::new(INTERVAL, POD_ACCOUNTS));
        Self { tokens, accounts, others: Sampled::new(INTERVAL), bytes: (now, 0), last_token: now }
    }

    fn due(&mut self, line: &AuditLine, hashes: &RandomState, now: Instant) -> Option<Due> {
        self.last_token = now;
        if now >= self.bytes.0 + INTERVAL {
            self.bytes = (now, 0);
        }
        let key = &*line.key;
        let token = hashes.hash_one(key);
        // What has its line already takes no more bytes.
        let may_have_line = self.bytes.1 + line.len() <= POD_BYTES || self.tokens.has_logged(&token, now);
        if may_have_line && let Ok(due) = self.tokens.due_by_itself(token, now) {
            self.bytes.1 += due.map_or(0, |_| line.len());
            return due.map(Due::Token);
        }
        match self.accounts.due_by_itself(hashes.hash_one((key.principal, &key.account, key.kind)), now) {
            Ok(due) => due.map(Due::Account),
            Err(Full) => self.others.due(now).map(Due::Pod),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::metadata::{Endpoint, Principal, Query, ServiceAccount};

    fn line(log: &Arc<AuditLog>, pod: u16, account: &str, scopes: &str) -> AuditLine {
        let (account, query) = (ServiceAccount::from_name(account), [(Param::Scopes, scopes.into())]);
        let request = Request::own(Endpoint::Token(account), "/", Query::from_params(query), Principal::Node);
        let [high, low] = pod.to_be_bytes();
        let request = Request { peer: Some(([10, 0, high, low], 1).into()), ..request };
        let key = Arc::new(TokenKey::from_request(&request).expect("a token").0);
        *Audit::On(Arc::clone(log)).line(&request, &key, TokenOutcome::Fresh).expect("it is on")
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_pod_account_and_scopes_has_a_line_a_minute_with_a_count() {
        let (log, now) = (Arc::default(), Instant::now());
        let due = |pod, account, scopes, at| AuditLog::due(&log, &line(&log, pod, account, scopes), at);
        for (pod, account, scopes) in [(1, "default", "a"), (2, "default", "a"), (1, "a@b", "a"), (1, "default", "b")] {
            assert_eq!(due(pod, account, scopes, now), Some(Due::Token(1)), "{pod} {account} {scopes}");
        }
        for _ in 0..1000 {
            assert_eq!(due(1, "default", "a", now + SECOND * 59), None);
        }
        assert_eq!(due(1, "default", "a", now + INTERVAL), Some(Due::Token(1001)));
    }

    #[test]
    fn a_pod_that_asks_for_many_different_tokens_fills_no_log_and_takes_no_others_lines() {
        let (log, now) = (Arc::default(), Instant::now());
        let due = |pod, account: &str, scopes: &str, at| AuditLog::due(&log, &line(&log, pod, account, scopes), at);
        for minute in 0..3 {
            let now = now + INTERVAL * minute;
            let scopes = "s".repeat(1000);
            let lines: Vec<Due> =
                (0..1000).filter_map(|number| due(1, "default", &format!("{number}{scopes}"), now)).collect();
            let own = lines.iter().filter(|due| **due == Due::Token(1)).count();
            assert!((5..=POD_BYTES / (LINE_BYTES + TEXT_BYTES)).contains(&own), "{lines:?}");
            assert!(matches!(lines[own..], [Due::Account(_)]), "{lines:?}");
            assert_eq!(due(2, "default", "a", now), Some(Due::Token(1)));
            assert_eq!(due(1, "default", &format!("0{scopes}"), now + SECOND * 59), None, "it is counted by itself");
        }
        let accounts: Vec<Due> =
            (0..100).filter_map(|number| due(1, &number.to_string(), "", now + INTERVAL * 2)).collect();
        assert_eq!(accounts, [Due::Account(1), Due::Pod(1)]);
    }

    #[test]
    fn any_number_of_pods_takes_bounded_memory_and_lines() {
        let (log, now) = (Arc::default(), Instant::now());
        let due = |pod, at| AuditLog::due(&log, &line(&log, pod, "default", ""), at);
        let lines: Vec<Due> = (0..1000).filter_map(|pod| due(pod, now)).collect();
        assert_eq!(lines[MAX_PODS..], [Due::Crowd(1)]);
        assert_eq!(log.pods.lock().len(), MAX_PODS);
        assert_eq!(due(2000, now + INTERVAL), Some(Due::Token(1)), "what asks no more gives way");
    }

    #[test]
    fn a_text_that_a_pod_chose_takes_few_bytes() {
        assert_eq!(brief("https://a.example/b,c"), "https://a.example/b,c");
        for text in ["\u{10ffff}", "\n", "\"", "\u{1}", "é"] {
            assert!(brief(&text.repeat(1000)).len() <= TEXT_BYTES, "{text:?}");
        }
    }
}
