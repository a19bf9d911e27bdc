//! rescue: turns every [`Error`] into a response, and counts and logs it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use strum::{Display, EnumString, VariantNames};
use tokio::time::Instant;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::latency::Timeline;
use crate::error::{AccountError, Error, Overload};
use crate::failure;
use crate::outcome::Outcome;
use crate::policy::Concealed;
use crate::reply::{self, Body};
use crate::server::Reset;
use telemetry::labels::Label;
use telemetry::latency::RequestOutcome;
use telemetry::refusals::{Cause, Refusals};
use telemetry::requests::Requests;
use telemetry::sampled::Brief;
use telemetry::shedding::{Shed, Shedding};

/// Why the proxy is not to blame for a failure that it passes on.
const SERVER_S_OWN: &str = "this is the metadata server's own answer";

/// How requests are refused during an overload. The values of the flag are the variants' names in lowercase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum OnOverload {
    /// Reset the connection.
    #[default]
    Reset,
    /// Answer 503 and close the connection.
    Unavailable,
}

/// Destinations of records of errors.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Counts all errors.
    pub requests: Arc<Requests>,
    /// Counts errors due to overload.
    pub shedding: Arc<Shedding>,
    /// Lists recent errors.
    pub refusals: Arc<Refusals>,
}

/// Turns errors of a connection's requests into responses, and counts and logs them.
pub fn layer<S>(
    notes: &Notes,
    on_overload: OnOverload,
    timeline: &Arc<Timeline>,
) -> impl Layer<S, Service = Rescue<S>> + Clone + use<S> {
    let rescuer = Arc::new(Rescuer { notes: notes.clone(), on_overload, timeline: Arc::clone(timeline) });
    layer_fn(move |inner| Rescue { inner, rescuer: Arc::clone(&rescuer), unready: None })
}

/// The service of this layer. Its only error is [`Reset`], which resets the connection.
#[derive(Debug)]
pub struct Rescue<S> {
    inner: S,
    rescuer: Arc<Rescuer>,
    /// The error of the inner service's `poll_ready`. It is the answer to the next request.
    unready: Option<Box<Error>>,
}

impl<S: Clone> Clone for Rescue<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rescuer: Arc::clone(&self.rescuer), unready: None }
    }
}

/// Counts and answers errors.
#[derive(Debug)]
struct Rescuer {
    notes: Notes,
    on_overload: OnOverload,
    timeline: Arc<Timeline>,
}

impl<S, B, A> Service<Request<B>> for Rescue<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error>,
    A: From<Body>,
{
    type Response = Response<A>;
    type Error = Reset;
    type Future = ResponseFuture<S::Future, S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reset>> {
        let ready = ready!(self.inner.poll_ready(cx));
        self.unready = ready.err().map(Box::new);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rescuer = Arc::clone(&self.rescuer);
        let inner = match self.unready.take() {
            None => Outcome::passed(self.inner.call(request)),
            Some(error) => Outcome::decided(Err(*error)),
        };
        ResponseFuture { inner, rescuer }
    }
}

pin_project! {
    /// The response future of [`Rescue`].
    pub struct ResponseFuture<F, A> {
        #[pin]
        inner: Outcome<F, Result<A, Error>>,
        rescuer: Arc<Rescuer>,
    }
}

impl<F, A> Future for ResponseFuture<F, Response<A>>
where
    F: Future<Output = Result<Response<A>, Error>>,
    A: From<Body>,
{
    type Output = Result<Response<A>, Reset>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let outcome = match &answer {
            Ok(answer) if answer.headers().get(header::SERVER) == Some(&reply::SERVER) => RequestOutcome::Answered,
            Ok(answer) if failure::is_failure(answer.status()) => {
                this.rescuer.note_passed(answer.status());
                RequestOutcome::Failed
            }
            Ok(_) => RequestOutcome::Passed,
            Err(error) => error.outcome(),
        };
        this.rescuer.timeline.ends_as(outcome);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => this.rescuer.rescue(&error)?.map(A::from),
        };
        this.rescuer.notes.requests.answered(outcome, answer.status());
        Poll::Ready(Ok(answer))
    }
}

impl Rescuer {
    fn rescue(&self, error: &Error) -> Result<Response<Body>, Reset> {
        self.note(error);
        let is_shed = matches!(error, Error::Overloaded(Overload::InFlight)) && self.on_overload == OnOverload::Reset;
        if is_shed || matches!(error, Error::Outdated) { Err(Reset) } else { Ok(answer(error)) }
    }

    /// Counts and lists a failure of the metadata server that is passed on.
    fn note_passed(&self, status: StatusCode) {
        self.notes.requests.passed_failure();
        let path = self.timeline.endpoint().label();
        let cause = Cause { reason: "upstream_status", rule: 0, status, path, said: Some(SERVER_S_OWN) };
        self.notes.refusals.note(self.timeline.peer().ip(), cause, Instant::now());
    }

    /// Counts a refusal or failure, and logs it once a minute per client, reason and rule of the policy.
    fn note(&self, error: &Error) {
        let Notes { requests, shedding, refusals } = &self.notes;
        let (reason, peer) = (error.reason(), self.timeline.peer());
        requests.refused(reason);
        tracing::debug!(%peer, reason, "{error}");
        if let Error::Overloaded(overload) = error {
            shedding.shed((*overload).into(), Some(peer));
            // Only a client that is itself to blame is among the refused.
            if error.outcome() == RequestOutcome::Shed {
                return;
            }
        }
        let concealed = error.concealed();
        let path = concealed.map_or_else(|| self.timeline.endpoint().label(), |concealed| concealed.path().as_str());
        let said = error.said();
        let rule = concealed.map_or(0, Concealed::rule);
        let cause = Cause { reason, rule, status: error.status(), path, said: said.as_deref() };
        refusals.note(peer.ip(), cause, Instant::now());
        // These are logged elsewhere: overloads, changes of the metadata server's health, failed token fetches, caught panics, and
        // the end of the process or of a policy.
        if matches!(
            error,
            Error::Overloaded(_)
                | Error::Upstream(_)
                | Error::Token(_)
                | Error::Withheld(..)
                | Error::Panicked
                | Error::Draining
        ) {
            return;
        }
        let Some(count) = requests.refusal_line_due((reason, rule), peer.ip(), Instant::now()) else { return };
        // A rule of the policy has its number in the order of `policy show`.
        let rule = (rule > 0).then_some(rule);
        let (error, is_trouble) = (Brief(error), is_trouble(error));
        if is_trouble {
            tracing::warn!(%peer, reason, rule, count, "refused requests; the last error: {error}");
        } else {
            tracing::info!(%peer, reason, rule, count, "refused requests; the last error: {error}");
        }
    }
}

/// Whether a refusal is a problem of the proxy or of the cluster, not the client's behaviour or its account's: what `status` calls
/// degraded.
fn is_trouble(error: &Error) -> bool {
    matches!(error, Error::Unidentified(_) | Error::Account(AccountError::Unknown(_)))
}

impl From<Overload> for Shed {
    fn from(overload: Overload) -> Self {
        match overload {
            Overload::InFlight => Self::InFlight,
            Overload::Hanging | Overload::HangingGaveWay => Self::Hanging,
            Overload::LargeAnswers => Self::LargeAnswers,
            Overload::Tokens | Overload::TokenRoom | Overload::Certificates => Self::Tokens,
        }
    }
}

/// The answer to an error: a status, and the error's message as the body; or another server's own answer.
fn answer(error: &Error) -> Response<Body> {
    if let Error::Withheld(_, refused) = error {
        return refused.response();
    }
    let status = error.status();
    let mut response = reply::sentence(status, format!("{error}\n"));
    match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            let rests = match error {
                Error::Token(failure) => failure.rests(),
                _ => Duration::ZERO,
            };
            response.headers_mut().insert(header::RETRY_AFTER, reply::retry_after(rests));
        }
        _ => {}
    }
    if let Error::Overloaded(_) | Error::Draining = error {
        // Closing the connection releases its memory. A retry opens a new one.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests;
