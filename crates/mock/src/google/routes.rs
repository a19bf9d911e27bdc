//! Maps a request to its response, including faults.

use http::Response;
use http::request::Parts;
use tokio::time::{Instant, sleep};

use super::answer::{Answer, Refusal, disabled, failure, oauth};
use super::ask::Ask;
use super::body::{Body, Cut};
use super::fault::Fault;
use super::journal::Call;
use super::state::State;

/// Responds to a request, or cuts the connection.
pub(super) async fn answer(state: &State, parts: &Parts, body: &[u8]) -> Result<Response<Body>, Cut> {
    let Some(ask) = Ask::read(parts, body) else { return Ok(Refusal::Path.answer().response(false)) };
    let (workload, pod_uid) = ask.caller(state).map(|caller| (caller.workload, caller.pod_uid)).unzip();
    let fault = state.script.take((ask.endpoint, workload.as_ref()));
    let underway = state.journal.begin(Call {
        endpoint: ask.endpoint,
        at: Instant::now(),
        workload,
        pod_uid,
        account: ask.account.clone(),
        user_project: ask.user_project.clone(),
        status: None,
    });
    let is_cut = matches!(fault, Some((Fault::CutBody, _)));
    let answer = with_fault(state, ask, fault).await?;
    underway.answered(answer.status);
    Ok(answer.response(is_cut))
}

async fn with_fault(state: &State, ask: Ask, fault: Option<(Fault, u64)>) -> Result<Answer, Cut> {
    let Some((fault, since)) = fault else { return Ok(ask.answer(state)) };
    match fault {
        Fault::Status { status, retry_after } => return Ok(failure(ask.endpoint, status, retry_after)),
        Fault::Oauth { error, description } => return Ok(oauth(&error, &description)),
        Fault::Disabled(project) => return Ok(disabled(ask.endpoint, project)),
        Fault::Body(text) => return Ok(Answer::raw(text)),
        Fault::Cut => return Err(Cut),
        Fault::Slow(latency) => sleep(latency).await,
        Fault::Hang => state.script.healed(since).await,
        Fault::CutBody => {}
    }
    Ok(ask.answer(state))
}
