//! Requests to the two services, and their responses, with faults applied.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};
use tokio::time::sleep;

use super::answer::{Refusal, disabled, oauth, used_up};
use super::fault::Fault;
use super::iam::Impersonation;
use super::state::State;
use super::sts::Exchange;
use super::{Endpoint, Workload};

/// Responds to a request.
pub(super) async fn answer(state: &State, parts: &Parts, body: &[u8]) -> Response<Bytes> {
    let Some(ask) = Ask::read(parts, body) else { return Refusal::Path.answer() };
    let workload = ask.workload(state);
    *state.requests.lock().entry((ask.endpoint, workload)).or_default() += 1;
    let fault = state.faults.lock().get(&ask.endpoint).cloned();
    match fault {
        Some(Fault::Quota(retry_after)) => return used_up(ask.endpoint, retry_after),
        Some(Fault::Oauth { error, description }) => return oauth(&error, &description),
        Some(Fault::Disabled(project)) => return disabled(ask.endpoint, project),
        Some(Fault::Slow(latency)) => sleep(latency).await,
        Some(Fault::Hang) => std::future::pending().await,
        None => {}
    }
    ask.answer(state)
}

/// A request to one of the two services.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ask {
    endpoint: Endpoint,
    work: Result<Work, Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    Exchange(Exchange),
    Impersonation(Impersonation),
}

impl Ask {
    /// Reads a request. `None` if the services have no such path or method.
    fn read(parts: &Parts, body: &[u8]) -> Option<Self> {
        let (endpoint, account) = Endpoint::of(parts.uri.path()).filter(|_| parts.method == Method::POST)?;
        let work = match account {
            None => Exchange::read(parts, body).map(Work::Exchange),
            Some(email) => Ok(Work::Impersonation(Impersonation::read(endpoint, email, parts, body))),
        };
        Some(Self { endpoint, work })
    }

    /// The caller, according to the request. The token is not verified.
    fn workload(&self, state: &State) -> Option<Workload> {
        match self.work.as_ref().ok()? {
            Work::Exchange(exchange) => exchange.workload(),
            Work::Impersonation(impersonation) => impersonation.workload(state),
        }
    }

    /// The response without faults.
    fn answer(self, state: &State) -> Response<Bytes> {
        let answer = self.work.and_then(|work| match work {
            Work::Exchange(exchange) => exchange.answer(state),
            Work::Impersonation(impersonation) => impersonation.answer(state),
        });
        answer.unwrap_or_else(Refusal::answer)
    }
}
