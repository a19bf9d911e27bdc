//! [`Ask`]: a request to one of the two services, read once.

use http::Method;
use http::request::Parts;

use super::Workload;
use super::answer::{Answer, Refusal};
use super::endpoint::Endpoint;
use super::iam::Impersonation;
use super::state::State;
use super::sts::Exchange;

/// A request to one of the two services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) endpoint: Endpoint,
    work: Result<Work, Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    Exchange(Exchange),
    Impersonation(Impersonation),
}

impl Ask {
    /// Reads a request. `None` if the services have no such path or method.
    pub(super) fn read(parts: &Parts, body: &[u8]) -> Option<Self> {
        let (endpoint, account) = Endpoint::of(parts.uri.path()).filter(|_| parts.method == Method::POST)?;
        let work = match account {
            None => Exchange::read(parts, body).map(Work::Exchange),
            Some(email) => Ok(Work::Impersonation(Impersonation::read(endpoint, email, parts, body))),
        };
        Some(Self { endpoint, work })
    }

    /// The caller, according to the request. The token is not verified.
    pub(super) fn workload(&self, state: &State) -> Option<Workload> {
        match self.work.as_ref().ok()? {
            Work::Exchange(exchange) => exchange.workload(),
            Work::Impersonation(impersonation) => impersonation.workload(state),
        }
    }

    /// The response without faults.
    pub(super) fn answer(self, state: &State) -> Answer {
        let answer = self.work.and_then(|work| match work {
            Work::Exchange(exchange) => exchange.answer(state),
            Work::Impersonation(impersonation) => impersonation.answer(state),
        });
        answer.unwrap_or_else(Refusal::answer)
    }
}
