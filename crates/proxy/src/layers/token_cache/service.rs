//! The filter that answers token requests from the store and starts keepers.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;

use super::audit::{Audit, AuditLine};
use super::cached_token::CachedToken;
use super::entry::Entry;
use super::flight::{Keeper, Next};
use super::freshness::Freshness;
use super::known::{Known, Lookup};
use super::metrics::TokenOutcome;
use super::store::Store;
use crate::error::{Error, Overload};
use crate::failure::{ExchangeFailure, Failure, TokenFailure};
use crate::layers::filter::{Decide, Decision};
use crate::reply::{self, Body};
use crate::shares::Client;
use crate::tokens::{NoToken, TokenKey, TokenKind, TokenSource};
use base::clock::BootTime;
use protocol::metadata::token::TokenFormat;
use protocol::metadata::{Principal, Request};

/// Content types of the real server. Older versions of Python's library compare the first one literally, so it has no
/// charset.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("application/text");
const HTML: HeaderValue = HeaderValue::from_static("text/html");

/// The token store and the source of tokens.
#[derive(Debug)]
pub struct Tokens<T> {
    store: Arc<Store>,
    source: Arc<T>,
}

impl<T> Clone for Tokens<T> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), source: Arc::clone(&self.source) }
    }
}

impl<T: TokenSource> Tokens<T> {
    /// Fetches tokens from the source and caches them in the store.
    pub fn new(store: Arc<Store>, source: T) -> Self {
        Self { store, source: Arc::new(source) }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub fn source(&self) -> &T {
        &self.source
    }

    /// Fetches a token if none is cached, so that the first request finds one. The entry then becomes the proxy's own.
    pub async fn warm(&self, key: TokenKey) -> Result<(), NoToken> {
        let principal = key.principal;
        let now = BootTime::now();
        let entry = self.entry(key, None, now).map_err(NoToken::Overloaded)?;
        match entry.find(now) {
            Lookup::Token(..) => Ok(()),
            Lookup::Failure(why) => Err(why),
            Lookup::Nothing => {
                let (known, _) = entry.join(None);
                drop(entry);
                landing(known, late(principal, self.source.deadline())).await.map(drop)
            }
        }
    }

    /// The entry of a key. Starts a keeper if the entry is new.
    fn entry(&self, key: TokenKey, client: Client, now: BootTime) -> Result<Arc<Entry>, Overload> {
        let (entry, is_new) = self.store.find_or_make(self.store.canonical(key), client, now)?;
        if is_new {
            self.keep(&entry, Next::Wait);
        }
        Ok(entry)
    }

    /// Starts the keeper of a new entry.
    pub(super) fn keep(&self, entry: &Arc<Entry>, next: Next) {
        let (entry, store, source) = (Arc::clone(entry), Arc::clone(&self.store), Arc::clone(&self.source));
        tokio::spawn(Keeper { entry, store, source }.run(next));
    }
}

/// Answers requests for these tokens. Logs each issued token if the audit is on.
#[derive(Debug)]
pub struct TokenCache<T> {
    tokens: Tokens<T>,
    audit: Audit,
}

impl<T> TokenCache<T> {
    /// Creates a filter that answers from these tokens.
    pub fn new(tokens: &Tokens<T>, audit: Audit) -> Self {
        Self { tokens: tokens.clone(), audit }
    }
}

impl<T> Clone for TokenCache<T> {
    fn clone(&self) -> Self {
        Self::new(&self.tokens, self.audit.clone())
    }
}

impl<T: TokenSource> Decide for TokenCache<T> {
    fn decide(&self, mut request: Box<Request>) -> Decision {
        let Some((key, form)) = TokenKey::from_request(&request) else { return Decision::Pass(request) };
        let content_type = content_type(key.kind, form);
        let now = BootTime::now();
        let entry = match self.tokens.entry(key, request.client(), now) {
            Ok(entry) => entry,
            Err(overload) => return Decision::Answer(Err(overload.into())),
        };
        let audit_line = |outcome| self.audit.line(&request, &entry.key, outcome);
        let count = |outcome| self.tokens.store.metrics.requests.of(outcome).inc();
        match entry.find(now) {
            Lookup::Token(token, freshness) => {
                let is_stale = matches!(freshness, Freshness::Stale(_));
                let outcome = if is_stale { TokenOutcome::Stale } else { TokenOutcome::Fresh };
                count(outcome);
                let line = audit_line(outcome);
                let headers = mem::take(&mut request.headers);
                Decision::Answer(answer(Ok((token, freshness)), form, content_type, line, headers))
            }
            Lookup::Failure(why) => {
                count(TokenOutcome::Failure);
                Decision::Answer(answer(Err(why), form, content_type, None, HeaderMap::new()))
            }
            Lookup::Nothing => {
                let (known, is_first) = entry.join(request.client());
                let outcome = if is_first { TokenOutcome::Miss } else { TokenOutcome::Coalesced };
                count(outcome);
                // Many requests may wait at once, so the future holds neither the request nor the entry.
                let (late, line) = (late(entry.key.principal, self.tokens.source.deadline()), audit_line(outcome));
                Decision::wait(waiting(known, late, form, content_type, line))
            }
        }
    }
    /// Flights, and the entries that requests may wait for, are limited and shared between clients by the cache itself.
    fn answers_from_memory(&self, request: &Request) -> bool {
        TokenKey::from_request(request).is_some()
    }
}

/// Waits for a flight, and answers with its result.
pub(super) async fn waiting(
    known: watch::Receiver<Known>,
    late: Late,
    form: TokenFormat,
    content_type: HeaderValue,
    line: Option<Box<AuditLine>>,
) -> Result<Response<Body>, Error> {
    let landed = landing(known, late).await;
    answer(landed, form, content_type, line, HeaderMap::new())
}

/// Waits until a flight has ended, at most until the source's deadline; then a token that is still valid is the answer. The flight
/// belongs to the keeper and continues if this future is dropped.
async fn landing(
    known: watch::Receiver<Known>,
    (deadline, failure): Late,
) -> Result<(Arc<CachedToken>, Freshness), NoToken> {
    match timeout(deadline, landed(known.clone())).await {
        Ok(landed) => landed,
        Err(_) => known.borrow().valid(BootTime::now()).ok_or_else(|| failure(deadline).into()),
    }
}

/// Waits until a flight has ended.
async fn landed(mut known: watch::Receiver<Known>) -> Result<(Arc<CachedToken>, Freshness), NoToken> {
    // What happened to the entry since this request began to wait.
    let mut change = None;
    loop {
        let (found, failure) = {
            let known = known.borrow_and_update();
            (known.find(BootTime::now()), known.last_failure())
        };
        match (found, change) {
            (Lookup::Token(token, freshness), _) => return Ok((token, freshness)),
            (Lookup::Failure(why), _) => return Err(why),
            (Lookup::Nothing, None) => {}
            // This task ran so late that the token has expired, or that the failure is no longer the answer to
            // others.
            (Lookup::Nothing, Some(Ok(()))) => {
                return Err(failure.unwrap_or_else(|| TokenFailure::Expired.into()));
            }
            // The keeper has ended.
            (Lookup::Nothing, Some(Err(_))) => return Err(NoToken::Overloaded(Overload::TokenRoom)),
        }
        change = Some(known.changed().await);
    }
}

/// Maximum time that a request waits for a token, and the failure after that time.
pub(super) type Late = (Duration, fn(Duration) -> TokenFailure);

/// The metadata server issues the node's tokens, so a late one is its failure. It does not issue a workload's. The
/// source of these names the server that it waits for in time, unless the fetch itself had to wait.
pub(super) fn late(principal: Principal, deadline: Duration) -> Late {
    match principal {
        Principal::Node | Principal::Unknown => (deadline, |time| Failure::TimedOut(time).into()),
        Principal::Workload(_) => (deadline, |time| ExchangeFailure::Slow(None, time).into()),
    }
}

fn content_type(kind: TokenKind, form: TokenFormat) -> HeaderValue {
    match (kind, form) {
        (TokenKind::Access, TokenFormat::Json) => JSON,
        (TokenKind::Access, TokenFormat::Text) => TEXT,
        (TokenKind::Identity, _) => HTML,
    }
}

fn answer(
    token: Result<(Arc<CachedToken>, Freshness), NoToken>,
    form: TokenFormat,
    content_type: HeaderValue,
    line: Option<Box<AuditLine>>,
    headers: HeaderMap,
) -> Result<Response<Body>, Error> {
    match token {
        Ok((token, freshness)) => {
            let seconds = freshness.seconds();
            if let Some(line) = line {
                line.issued(seconds);
            }
            Ok(reply::local_in(headers, StatusCode::OK, content_type, token.body(form, seconds)))
        }
        Err(NoToken::Refused(refused)) => match refused.withheld {
            None => Ok(refused.response()),
            Some(why) => Err(Error::Withheld(why, refused)),
        },
        Err(NoToken::Failed(failure)) => Err(Error::Token(failure)),
        Err(NoToken::Overloaded(overload)) => Err(overload.into()),
    }
}
