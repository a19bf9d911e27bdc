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
use super::redact::{self, Uncut};
use crate::error::Error;
use crate::layers::outcome::Outcome;
use crate::metadata::query::Param;
use crate::metadata::{MetadataPath, Method, Query, Request};
use crate::policy::{Cause, Concealed, Decision, LivePolicy, Policy, Subject};
use crate::reply::{self, Body};
use crate::room::{Account, Amount, Charge, Room, SMALL, SMALL_WITHOUT_SEAT, Whole};

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
    /// Enforces the policy in force at the time of each request. Trees that are redacted take this room.
    pub fn new(policy: Arc<LivePolicy>, mode: Mode, room: Arc<Room>, metrics: Arc<PolicyMetrics>) -> Self {
        Self { policy, mode, audit: AuditLog::default(), room, metrics }
    }

    /// Whether a request will wait for a change of the value. It will not if the policy drops its `wait_for_change`.
    pub fn lets_hang(&self, request: &Request) -> bool {
        request.hangs() && (self.mode == Mode::Audit || self.policy.current().passes(Param::WaitForChange))
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
                let asked = policy.trim(request.query);
                request.query = asked.clone().without(Param::Recursive);
                let answer = self.inner.call(request);
                Outcome::pending(async move { Ok(with_query(answer.await?, &asked)) })
            }
            Decision::Redact => {
                request.query = policy.trim(request.query);
                let cut = Cut::new(&self.concealment, &request);
                request.query = redact::asked(request.query);
                // HEAD is answered from what GET would be, since the length changes.
                request.method = Method::Get;
                let answer = self.inner.call(request);
                Outcome::pending(async move { cut.answer(answer.await?).await })
            }
            Decision::Redirect => Outcome::decided(Ok(reply::directory_redirect(&request))),
            Decision::Conceal(cause) => Outcome::decided(Err(Concealed::new(&policy, &request.path, cause).into())),
        }
    }
}

/// The redirect of a directory without its slash, with the query that the client sent.
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

/// What is needed to redact an answer once it is here.
struct Cut {
    account: Account,
    policy: Arc<Policy>,
    path: MetadataPath,
    form: Form,
    /// Up to so many bytes the answer needs no room.
    small: usize,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Listing,
    Json,
    Text,
}

impl Form {
    /// Most bytes that can be made from a tree of so many. A tree as text has each value's path in front of the value.
    fn at_most(self, bytes: usize, largest: usize) -> usize {
        match self {
            Self::Listing => bytes + "\n".len(),
            Self::Json => bytes,
            Self::Text => bytes.saturating_mul(4).min(largest),
        }
    }
}

impl Cut {
    /// For a request as the policy has trimmed it. It may wait for long, so nothing of the connection's read buffer is kept.
    fn new(concealment: &Concealment, request: &Request) -> Self {
        let form = match request.query.value(Param::Alt) {
            _ if !request.query.is_recursive() => Form::Listing,
            Some("text") => Form::Text,
            _ => Form::Json,
        };
        Self {
            account: concealment.room.account(request.peer),
            policy: concealment.policy.hold(),
            path: request.path.detached(),
            form,
            small: if request.hangs() { SMALL_WITHOUT_SEAT } else { SMALL },
        }
    }

    async fn answer(self, answer: Response<Body>) -> Result<Response<Body>, Error> {
        // Whatever carries a value is cut: 200, but also what some server may send in its place (203, 206).
        if !answer.status().is_success() {
            return Ok(without_body(&answer));
        }
        let (mut head, body) = answer.into_parts();
        let at_most = |bytes| self.form.at_most(bytes, self.account.largest());
        let Whole { bytes, charge } = self.account.read(body, self.small, at_most).await?;
        let left = self.redact(&bytes, at_most(bytes.len())).map_err(|uncut| self.refusal(uncut))?;
        drop(bytes);
        head.headers.insert(header::CONTENT_LENGTH, left.len().into());
        if self.form == Form::Text {
            head.headers.insert(header::CONTENT_TYPE, reply::APPLICATION_TEXT);
        }
        Ok(Response::from_parts(head, Body::Whole(held(left, charge))))
    }

    fn redact(&self, bytes: &[u8], at_most: usize) -> Result<Vec<u8>, Uncut> {
        let subject = Subject::new(&self.path);
        let directory = subject.as_str();
        match self.form {
            Form::Listing => {
                let entries = std::str::from_utf8(bytes).map_err(|_| Uncut::Unreadable)?;
                Ok(redact::listing(&self.policy, directory, entries).into_bytes())
            }
            Form::Json => redact::json(&self.policy, directory, bytes),
            Form::Text => redact::text(&self.policy, directory, bytes, at_most),
        }
    }

    fn refusal(&self, uncut: Uncut) -> Error {
        match uncut {
            Uncut::Unreadable => Concealed::new(&self.policy, &self.path, Cause::Unreadable).into(),
            Uncut::TooLarge => Error::TooLarge(self.account.largest()),
        }
    }
}

/// What is left of an answer, on its way to the client. The room for what was cut is given back.
fn held(mut left: Vec<u8>, charge: Option<Charge>) -> Bytes {
    let Some(mut charge) = charge else { return left.into() };
    left.shrink_to_fit();
    charge.reduce_to(Amount { sent: 0, made: left.len() });
    charge.hold(left)
}

/// An answer that is no success, with its status and a sentence in place of its body. Such a body is not read as a tree, so a
/// value in it would not be found; and no client needs it, since the status says all that the server's own pages say.
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

/// A number of seconds, which cannot be a value in disguise.
fn is_number(value: &HeaderValue) -> bool {
    value.len() <= 6 && value.as_bytes().iter().all(u8::is_ascii_digit)
}
