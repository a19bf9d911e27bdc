//! The layer that carries the decision out.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Response;
use http::header::{self, HeaderValue};
use tower::{Layer, Service};

use super::audit::{AuditLog, Mode};
use super::redact::{self, Unreadable};
use super::refusal::Concealed;
use super::room::Room;
use crate::error::Error;
use crate::layers::discovery;
use crate::layers::outcome::Outcome;
use crate::metadata::query::Param;
use crate::metadata::{MetadataPath, Method, Query, Request};
use crate::policy::{Cause, Decision, LivePolicy, Policy, Subject};
use crate::reply::Body;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{JudgeMode, Judgement};

/// Makes [`Conceal`].
#[derive(Debug, Clone)]
pub struct ConcealLayer {
    shared: Arc<Shared>,
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Conceal<S> {
    inner: S,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    policy: Arc<LivePolicy>,
    mode: Mode,
    audit: AuditLog,
    room: Room,
    metrics: &'static Metrics,
}

impl Shared {
    fn count(&self, decision: Decision<'_>) {
        let judgement = match decision {
            Decision::Allow | Decision::Flat | Decision::Redirect => Judgement::Allowed,
            Decision::Redact => Judgement::Redacted,
            Decision::Conceal(_) => Judgement::Concealed,
        };
        let mode = match self.mode {
            Mode::Enforce => JudgeMode::Enforce,
            Mode::Audit => JudgeMode::Audit,
        };
        self.metrics.judged(judgement, mode);
    }
}

impl ConcealLayer {
    /// Judges by the policy that is in force when a request comes.
    pub fn new(policy: Arc<LivePolicy>, mode: Mode, metrics: &'static Metrics) -> Self {
        let (audit, room) = (AuditLog::default(), Room::default());
        Self { shared: Arc::new(Shared { policy, mode, audit, room, metrics }) }
    }
}

impl<S> Layer<S> for ConcealLayer {
    type Service = Conceal<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Conceal { inner, shared: Arc::clone(&self.shared) }
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
        let policy = self.shared.policy.current();
        let decision = policy.judge(&request);
        self.shared.count(decision);
        if self.shared.mode == Mode::Audit {
            self.shared.audit.note(&policy, &request, decision);
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
                let query = policy.trim(request.query);
                let cut = Cut::new(&self.shared, &request.path, &query);
                request.query = redact::asked(query);
                // HEAD is answered from what GET would be, since the length changes.
                request.method = Method::Get;
                let answer = self.inner.call(request);
                Outcome::pending(async move { cut.answer(answer.await?).await })
            }
            Decision::Redirect => Outcome::decided(Ok(discovery::redirect(&request))),
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
    shared: Arc<Shared>,
    policy: Arc<Policy>,
    path: MetadataPath,
    form: Form,
}

/// What is asked for.
#[derive(PartialEq, Eq)]
enum Form {
    Listing,
    Json,
    Text,
}

impl Cut {
    fn new(shared: &Arc<Shared>, path: &MetadataPath, query: &Query) -> Self {
        let form = match query.value(Param::Alt) {
            _ if !query.is_recursive() => Form::Listing,
            Some("text") => Form::Text,
            _ => Form::Json,
        };
        Self { shared: Arc::clone(shared), policy: shared.policy.hold(), path: path.clone(), form }
    }

    async fn answer(self, answer: Response<Body>) -> Result<Response<Body>, Error> {
        // Whatever carries a value is cut: 200, but also what some server may send in its place (203, 206).
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let (mut head, body) = answer.into_parts();
        let whole = self.shared.room.read(body).await?.ok_or_else(|| self.refusal())?;
        let left = self.redact(&whole.bytes).map_err(|Unreadable| self.refusal())?;
        head.headers.insert(header::CONTENT_LENGTH, left.len().into());
        if self.form == Form::Text {
            head.headers.insert(header::CONTENT_TYPE, discovery::APPLICATION_TEXT);
        }
        Ok(Response::from_parts(head, Body::Whole(whole.left(left))))
    }

    fn redact(&self, bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let subject = Subject::of(&self.path);
        let directory = subject.as_str();
        match self.form {
            Form::Listing => {
                let entries = std::str::from_utf8(bytes).map_err(|_| Unreadable)?;
                Ok(redact::listing(&self.policy, directory, entries).into_bytes())
            }
            Form::Json => redact::json(&self.policy, directory, bytes),
            Form::Text => redact::text(&self.policy, directory, bytes),
        }
    }

    fn refusal(&self) -> Error {
        Concealed::new(&self.policy, &self.path, Cause::Unreadable).into()
    }
}
