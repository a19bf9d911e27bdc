//! The service that enforces the policy's decision.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{self, HeaderValue};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::audit::{AuditLog, Mode};
use super::metrics::{PolicyMetrics, Verdict, VerdictMode};
use super::redact::{self, RedactError};
use crate::error::Error;
use crate::layers::outcome::Outcome;
use crate::metadata::query::Param;
use crate::metadata::{MetadataPath, Method, Query, Request};
use crate::policy::{Cause, Concealed, Decision, LivePolicy, Policy, Subject};
use crate::reply::{self, Body};
use crate::room::{Account, Amount, Charge, Room, SMALL_BYTES, SMALL_BYTES_WITHOUT_SEAT, Whole};

/// Enforces a policy.
pub fn layer<S>(concealment: &Arc<Concealment>) -> impl Layer<S, Service = Conceal<S>> + Clone + use<S> {
    let concealment = Arc::clone(concealment);
    layer_fn(move |inner| Conceal { inner, concealment: Arc::clone(&concealment) })
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Conceal<S> {
    inner: S,
    concealment: Arc<Concealment>,
}

/// The policy, and how it is enforced.
#[derive(Debug)]
pub struct Concealment {
    policy: Arc<LivePolicy>,
    mode: Mode,
    audit: AuditLog,
    room: Arc<Room>,
    metrics: Arc<PolicyMetrics>,
}

impl Concealment {
    /// Applies the policy in force at the time of each request. Redacted responses are charged to this room.
    pub fn new(policy: Arc<LivePolicy>, mode: Mode, room: Arc<Room>, metrics: Arc<PolicyMetrics>) -> Self {
        Self { policy, mode, audit: AuditLog::default(), room, metrics }
    }

    /// Whether a request will wait for a change of its value. It will not if the policy drops `wait_for_change`.
    pub fn lets_hang(&self, request: &Request) -> bool {
        request.hangs() && (self.mode == Mode::Audit || self.policy.current().passes(Param::WaitForChange))
    }

    /// The policy, which is reloaded when its file changes.
    pub fn policy(&self) -> &LivePolicy {
        &self.policy
    }

    /// Counts verdicts and reloads of the policy.
    pub fn metrics(&self) -> &PolicyMetrics {
        &self.metrics
    }

    fn count(&self, decision: Decision<'_>) {
        let verdict = match decision {
            Decision::Allow | Decision::Flat | Decision::Redirect => Verdict::Allowed,
            Decision::Redact => Verdict::Redacted,
            Decision::Conceal(_) => Verdict::Concealed,
        };
        let mode = match self.mode {
            Mode::Enforce => VerdictMode::Enforce,
            Mode::Audit => VerdictMode::Audit,
        };
        self.metrics.verdicts.of(verdict, mode).inc();
    }
}

impl<S> Service<Box<Request>> for Conceal<S>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Outcome<S::Future, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        let policy = self.concealment.policy.current();
        let decision = policy.judge(&request);
        self.concealment.count(decision);
        if self.concealment.mode == Mode::Audit {
            self.concealment.audit.note(&policy, &request, decision);
            return Outcome::passed(self.inner.call(request));
        }
        match decision {
            Decision::Allow => {
                request.query = policy.trim(request.query);
                Outcome::passed(self.inner.call(request))
            }
            Decision::Flat => {
                let query = policy.trim(request.query);
                request.query = query.clone().without(Param::Recursive);
                let answer = self.inner.call(request);
                Outcome::pending(async move { Ok(with_query(answer.await?, &query)) })
            }
            Decision::Redact => {
                request.query = policy.trim(request.query);
                let redaction = Redaction::new(&self.concealment, &request);
                request.query = redact::upstream_query(request.query);
                // A HEAD request needs the body too, because redaction changes the length.
                request.method = Method::Get;
                let answer = self.inner.call(request);
                Outcome::pending(async move { redaction.answer(answer.await?).await })
            }
            Decision::Redirect => Outcome::decided(Ok(reply::directory_redirect(&request))),
            Decision::Conceal(cause) => {
                Outcome::decided(Err(Concealed::new(&policy, &request.path, &request.query, cause).into()))
            }
        }
    }
}

/// Restores the client's query in the redirect of a directory without its slash.
fn with_query(mut answer: Response<Body>, query: &Query) -> Response<Body> {
    let location = answer.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
    if let Some(location) = location {
        let target = location.split('?').next().unwrap_or_default();
        if let Ok(location) = HeaderValue::from_str(&format!("{target}{query}")) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
    }
    answer
}

/// Redacts the response to one request.
struct Redaction {
    account: Account,
    policy: Arc<Policy>,
    path: MetadataPath,
    format: Format,
    /// Maximum response that needs no room, in bytes.
    small: usize,
}

/// The format that the client requested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Listing,
    Json,
    Text,
}

impl Format {
    /// Maximum size of the redacted response, in bytes, for a response of `bytes`. Text repeats the path before each
    /// value. `largest` is the maximum size of any response.
    fn max_bytes(self, bytes: usize, largest: usize) -> usize {
        match self {
            Self::Listing => bytes + "\n".len(),
            Self::Json => bytes,
            Self::Text => bytes.saturating_mul(4).min(largest),
        }
    }
}

impl Redaction {
    /// `request` has the query as trimmed by the policy. Nothing of the connection's read buffer is kept, because the
    /// request may wait for a long time.
    fn new(concealment: &Concealment, request: &Request) -> Self {
        let format = match request.query.value(Param::Alt) {
            _ if !request.query.is_recursive() => Format::Listing,
            Some("text") => Format::Text,
            _ => Format::Json,
        };
        Self {
            account: concealment.room.account(request.peer),
            policy: concealment.policy.hold(),
            path: request.path.detached(),
            format,
            small: if request.hangs() { SMALL_BYTES_WITHOUT_SEAT } else { SMALL_BYTES },
        }
    }

    async fn answer(self, answer: Response<Body>) -> Result<Response<Body>, Error> {
        // Every success may contain values: 200, and also 203 and 206, which some server may send instead.
        if !answer.status().is_success() {
            return Ok(without_body(&answer));
        }
        let (mut head, body) = answer.into_parts();
        let max_bytes = |bytes| self.format.max_bytes(bytes, self.account.largest());
        let Whole { bytes, charge } = self.account.read(body, self.small, max_bytes).await?;
        let redacted = self.redact(&bytes, max_bytes(bytes.len())).map_err(|error| self.refusal(error))?;
        drop(bytes);
        head.headers.insert(header::CONTENT_LENGTH, redacted.len().into());
        if self.format == Format::Text {
            head.headers.insert(header::CONTENT_TYPE, reply::APPLICATION_TEXT);
        }
        Ok(Response::from_parts(head, Body::Whole(charged(redacted, charge))))
    }

    fn redact(&self, bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, RedactError> {
        let subject = Subject::new(&self.path);
        let directory = subject.as_str();
        match self.format {
            Format::Listing => {
                let entries = std::str::from_utf8(bytes).map_err(|_| RedactError::Unreadable)?;
                Ok(redact::listing(&self.policy, directory, entries).into_bytes())
            }
            Format::Json => redact::json(&self.policy, directory, bytes),
            Format::Text => redact::text(&self.policy, directory, bytes, max_bytes),
        }
    }

    fn refusal(&self, error: RedactError) -> Error {
        match error {
            RedactError::Unreadable => {
                Concealed::new(&self.policy, &self.path, &Query::default(), Cause::Unreadable).into()
            }
            RedactError::TooLarge => Error::TooLarge(self.account.largest()),
        }
    }
}

/// Attaches the charge to a redacted response, reduced to its size.
fn charged(mut redacted: Vec<u8>, charge: Option<Charge>) -> Bytes {
    let Some(mut charge) = charge else { return redacted.into() };
    redacted.shrink_to_fit();
    charge.reduce_to(Amount { sent: 0, made: redacted.len() });
    charge.hold(redacted)
}

/// Replaces the body of an unsuccessful response by a sentence. It is not a tree, so values in it would not be found.
/// Clients do not need it: the status contains all that the server's error pages say.
fn without_body(answer: &Response<Body>) -> Response<Body> {
    let status = answer.status();
    let sentence = format!(
        "The metadata server answered {}. Its text is left out, because the policy redacts this directory.\n",
        status.as_u16()
    );
    let mut without = reply::sentence(status, sentence);
    let retry_after = answer.headers().get(header::RETRY_AFTER).filter(|seconds| is_number(seconds));
    if let Some(seconds) = retry_after {
        without.headers_mut().insert(header::RETRY_AFTER, seconds.clone());
    }
    without
}

/// Whether a header is a number of seconds, which cannot contain a concealed value.
fn is_number(value: &HeaderValue) -> bool {
    value.len() <= 6 && value.as_bytes().iter().all(u8::is_ascii_digit)
}
