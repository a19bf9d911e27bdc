//! The service that enforces the policy's decision.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Response;
use http::header::{self, HeaderValue};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::audit::{AuditLog, Mode};
use super::metrics::{PolicyMetrics, Verdict};
use super::redact;
use super::redaction::{self, Redaction};
use crate::error::Error;
use crate::failure::Failure;
use crate::layers::filter::Later;
use crate::outcome::Outcome;
use crate::policy::{Concealed, Decision, LivePolicy, Policy};
use crate::reply::{self, Body};
use crate::room::Room;
use base::hook::Hook;
use protocol::metadata::query::Param;
use protocol::metadata::{CommonPath, Method, Principal, Query, Request, WorkloadId};

/// Enforces a policy.
pub fn layer<S>(concealment: &Arc<Concealment>) -> impl Layer<S, Service = Conceal<S>> + Clone + use<S> {
    let concealment = Arc::clone(concealment);
    layer_fn(move |inner| Conceal { inner, concealment: Arc::clone(&concealment) })
}

/// The e-mail of a workload's Google service account. `None` if the account cannot be used or is unknown.
pub type OwnEmail = Hook<dyn Fn(WorkloadId) -> Later<Option<String>> + Send + Sync>;

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Conceal<S> {
    inner: S,
    concealment: Arc<Concealment>,
}

/// The policy and its enforcement.
#[derive(Debug)]
pub struct Concealment {
    policy: Arc<LivePolicy>,
    mode: Mode,
    audit: AuditLog,
    room: Arc<Room>,
    metrics: Arc<PolicyMetrics>,
    /// `None` if pods have no accounts.
    emails: Option<OwnEmail>,
}

impl Concealment {
    /// Applies the policy in force at the time of each request. Redacted responses are charged to this room.
    pub fn new(policy: Arc<LivePolicy>, mode: Mode, room: Arc<Room>, metrics: Arc<PolicyMetrics>) -> Self {
        Self { policy, mode, audit: AuditLog::default(), room, metrics, emails: None }
    }

    /// Inserts the pods' own accounts, with these e-mails, into the trees that they read.
    #[must_use]
    pub fn with_accounts(self, emails: Option<OwnEmail>) -> Self {
        Self { emails, ..self }
    }

    /// The response to the proxy's own request for a tree, without concealed values, for the cache. [`Error::TooLarge`]
    /// if it cannot be cached, or if no request would get it.
    pub async fn kept_tree(
        &self,
        request: &Request,
        answer: impl Future<Output = Result<Response<Body>, Failure>>,
    ) -> Result<Response<Body>, Error> {
        let policy = self.policy.hold();
        // A `recursive` that the policy does not accept is dropped.
        let is_redacted = policy.passes(Param::Recursive) && matches!(policy.judge(request), Decision::Redact);
        if self.mode == Mode::Audit || !is_redacted {
            return Err(redaction::NOT_KEPT);
        }
        Redaction::new(self.room.account(None), Some(policy), request, None).kept(answer.await?).await
    }

    /// Whether a request will wait for a change of its value. It will not wait if the policy drops `wait_for_change`.
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
        self.metrics.verdicts.of(verdict, self.mode).inc();
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

    fn call(&mut self, request: Box<Request>) -> Self::Future {
        let policy = self.concealment.policy.current();
        if !request.hangs() || self.concealment.mode == Mode::Audit {
            return self.apply(&policy, request);
        }
        let answer = self.apply(&policy, request);
        // A new policy is in force before it ends all watches, once. This request may have joined one after that.
        let is_replaced = !Arc::ptr_eq(&policy, &self.concealment.policy.current());
        if is_replaced { Outcome::decided(Err(Error::Draining)) } else { answer }
    }
}

impl<S> Conceal<S>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error, Future: Send + 'static>,
{
    /// Answers a request as this policy decides.
    fn apply(
        &mut self,
        policy: &Arc<Policy>,
        mut request: Box<Request>,
    ) -> Outcome<S::Future, Result<Response<Body>, Error>> {
        let decision = policy.judge(&request);
        self.concealment.count(decision);
        if self.concealment.mode == Mode::Audit {
            self.concealment.audit.note(policy, &request, decision);
            // The policy cannot show the node's accounts.
            return if request.principal != Principal::Node && includes_accounts(&request) {
                self.redact(None, request)
            } else {
                Outcome::passed(self.inner.call(request))
            };
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
                self.redact(Some(Arc::clone(policy)), request)
            }
            Decision::Redirect => Outcome::decided(Ok(reply::directory_redirect(&request))),
            Decision::Conceal(cause) => {
                Outcome::decided(Err(Concealed::new(policy, &request.path, &request.query, cause).into()))
            }
        }
    }

    /// Passes a request on, and redacts its response.
    fn redact(
        &mut self,
        policy: Option<Arc<Policy>>,
        mut request: Box<Request>,
    ) -> Outcome<S::Future, Result<Response<Body>, Error>> {
        let Concealment { room, emails, .. } = &*self.concealment;
        let redaction = Redaction::new(room.account(request.peer), policy, &request, emails.clone());
        request.query = redact::upstream_query(request.query);
        // A HEAD request needs the body too, because redaction changes the length.
        request.method = Method::Get;
        let answer = self.inner.call(request);
        Outcome::pending(redaction.answer(answer))
    }
}

/// Whether the response is a tree that includes service accounts.
fn includes_accounts(request: &Request) -> bool {
    request.query.is_recursive() && matches!(request.path.common(), Some(CommonPath::Version | CommonPath::Instance))
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
