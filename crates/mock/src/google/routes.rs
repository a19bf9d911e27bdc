//! Responses to requests, with faults applied.

use http::Response;
use http::request::Parts;
use tokio::time::sleep;

use super::answer::{Answer, Refusal, disabled, oauth, used_up};
use super::ask::Ask;
use super::fault::Fault;
use super::state::State;
use bytes::Bytes;

/// Responds to a request.
pub(super) async fn answer(state: &State, parts: &Parts, body: &[u8]) -> Response<Bytes> {
    let Some(ask) = Ask::read(parts, body) else { return Refusal::Path.answer().response() };
    let workload = ask.workload(state);
    *state.requests.lock().entry((ask.endpoint, workload)).or_default() += 1;
    with_fault(state, ask).await.response()
}

async fn with_fault(state: &State, ask: Ask) -> Answer {
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
