//! The service that answers token requests from the store and starts keepers.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HeaderValue;
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::audit::{Asked, Audit};
use super::cached_token::Kept;
use super::entry::Entry;
use super::flight::Keeper;
use super::freshness::Freshness;
use super::known::{Found, Known};
use super::metrics::TokenOutcome;
use super::store::Store;
use crate::clock::BootTime;
use crate::error::{Error, Overload};
use crate::failure::{Failure, TokenFailure};
use crate::layers::outcome::Outcome;
use crate::metadata::Request;
use crate::metadata::token::{TokenError, TokenFormat};
use crate::reply::{self, Body};
use crate::shares::Client;
use crate::tokens::{NoToken, Refused, TokenKey, TokenKind, TokenSource};

/// The real server's types. Older versions of Python's library compare the first as text, so it has no charset.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("application/text");
const HTML: HeaderValue = HeaderValue::from_static("text/html");

/// All that is needed to have a token: where they are kept and where they come from.
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
    /// Tokens come from the source and are kept in the store.
    pub fn new(store: Arc<Store>, source: T) -> Self {
        Self { store, source: Arc::new(source) }
    }

    /// Has a token fetched if none is known, so that the first who asks finds one. It is the proxy's own from then on.
    pub async fn warm(&self, key: TokenKey) -> Result<(), NoToken> {
        let now = BootTime::now();
        let entry = self.entry(key, None, now).map_err(NoToken::Overloaded)?;
        match entry.find(now) {
            Found::Token(..) => Ok(()),
            Found::Failure(why) => Err(why),
            Found::Nothing => {
                let (known, _) = entry.join(None);
                drop(entry);
                landing(known, self.source.deadline()).await.map(drop)
            }
        }
    }

    /// Whether a request is answered from memory, or by a flight that is under way.
    pub fn knows(&self, request: &Request) -> bool {
        TokenKey::of(request).is_some_and(|(key, _)| self.store.knows(key, BootTime::now()))
    }

    /// The entry of a key, which has a keeper.
    fn entry(&self, key: TokenKey, client: Client, now: BootTime) -> Result<Arc<Entry>, Overload> {
        let (entry, is_new) = self.store.find_or_make(self.store.canonical(key), client, now)?;
        if is_new {
            let (entry, store, source) = (Arc::clone(&entry), Arc::clone(&self.store), Arc::clone(&self.source));
            tokio::spawn(Keeper { entry, store, source }.run());
        }
        Ok(entry)
    }
}

/// Answers requests for these tokens, and logs each token that it issues if the audit is on.
pub fn layer<S, T>(tokens: &Tokens<T>, audit: Audit) -> impl Layer<S, Service = TokenCache<S, T>> + Clone + use<S, T> {
    let tokens = tokens.clone();
    layer_fn(move |inner| TokenCache { inner, tokens: tokens.clone(), audit })
}

/// The service of this layer.
#[derive(Debug)]
pub struct TokenCache<S, T> {
    inner: S,
    tokens: Tokens<T>,
    audit: Audit,
}

impl<S: Clone, T> Clone for TokenCache<S, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), tokens: self.tokens.clone(), audit: self.audit }
    }
}

impl<S, T> Service<Box<Request>> for TokenCache<S, T>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error>,
    T: TokenSource,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Outcome<S::Future, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        let Some((key, form)) = TokenKey::of(&request) else {
            return Outcome::passed(self.inner.call(request));
        };
        let content_type = content_type(key.kind, form);
        let now = BootTime::now();
        let entry = match self.tokens.entry(key, request.client(), now) {
            Ok(entry) => entry,
            Err(overload) => return Outcome::decided(Err(overload.into())),
        };
        let asked = |outcome| self.audit.asked(request.peer, &entry.key, outcome);
        let count = |outcome| self.tokens.store.metrics.requests.of(outcome).inc();
        match entry.find(now) {
            Found::Token(kept, freshness) => {
                let is_stale = matches!(freshness, Freshness::Stale(_));
                let outcome = if is_stale { TokenOutcome::Stale } else { TokenOutcome::Fresh };
                count(outcome);
                let asked = asked(outcome);
                let room = mem::take(&mut request.headers);
                Outcome::decided(answer(Ok((kept, freshness)), form, content_type, asked, room))
            }
            Found::Failure(why) => {
                count(TokenOutcome::Failure);
                Outcome::decided(answer(Err(why), form, content_type, None, HeaderMap::new()))
            }
            Found::Nothing => {
                let (known, is_first) = entry.join(request.client());
                let outcome = if is_first { TokenOutcome::Miss } else { TokenOutcome::Coalesced };
                count(outcome);
                // Many may wait at once, so what they wait with is all that is kept: no request, and no entry.
                Outcome::pending(waiting(known, self.tokens.source.deadline(), form, content_type, asked(outcome)))
            }
        }
    }
}

/// The answer that a flight leads to.
pub(super) async fn waiting(
    known: watch::Receiver<Known>,
    deadline: Duration,
    form: TokenFormat,
    content_type: HeaderValue,
    asked: Option<Asked>,
) -> Result<Response<Body>, Error> {
    let landed = landing(known, deadline).await;
    answer(landed, form, content_type, asked, HeaderMap::new())
}

/// Waits until a flight has ended, or until the source's deadline. The flight is the keeper's: it goes on
/// whoever stops waiting for it.
async fn landing(mut known: watch::Receiver<Known>, deadline: Duration) -> Result<(Arc<Kept>, Freshness), NoToken> {
    let landed = async {
        let mut change = Change::None;
        loop {
            match (known.borrow_and_update().find(BootTime::now()), change) {
                (Found::Token(kept, freshness), _) => return Ok((kept, freshness)),
                (Found::Failure(why), _) => return Err(why),
                (Found::Nothing, Change::None) => {}
                // A token that was over before it could be handed out.
                (Found::Nothing, Change::Told) => return Err(TokenFailure::from(TokenError::Life).into()),
                (Found::Nothing, Change::Ended) => return Err(NoToken::Overloaded(Overload::Tokens)),
            }
            change = known.changed().await.map_or(Change::Ended, |()| Change::Told);
        }
    };
    timeout(deadline, landed).await.unwrap_or_else(|_| Err(TokenFailure::from(Failure::TimedOut(deadline)).into()))
}

/// What has happened to an entry since a caller began to wait.
#[derive(Clone, Copy)]
enum Change {
    None,
    /// Its keeper told something.
    Told,
    /// It was given up.
    Ended,
}

fn content_type(kind: TokenKind, form: TokenFormat) -> HeaderValue {
    match (kind, form) {
        (TokenKind::Access, TokenFormat::Json) => JSON,
        (TokenKind::Access, TokenFormat::Text) => TEXT,
        (TokenKind::Identity, _) => HTML,
    }
}

fn answer(
    token: Result<(Arc<Kept>, Freshness), NoToken>,
    form: TokenFormat,
    content_type: HeaderValue,
    asked: Option<Asked>,
    room: HeaderMap,
) -> Result<Response<Body>, Error> {
    match token {
        Ok((kept, freshness)) => {
            let seconds = freshness.seconds();
            if let Some(asked) = asked {
                asked.handed_out(seconds);
            }
            Ok(reply::local_in(room, StatusCode::OK, content_type, kept.body(form, seconds)))
        }
        Err(NoToken::Refused(refused)) => Ok(passed_on(&refused)),
        Err(NoToken::Failed(failure)) => Err(Error::Token(failure)),
        Err(NoToken::Overloaded(overload)) => Err(overload.into()),
    }
}

/// A refusal of the server's, as it was.
fn passed_on(refused: &Refused) -> Response<Body> {
    let mut response = Response::new(Body::Whole(refused.body.clone()));
    *response.status_mut() = refused.status;
    response.headers_mut().clone_from(&refused.headers);
    response
}
