//! One connection, which answers requests one by one.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::net::TcpStream;
use tokio::time::sleep;

use super::answer::{Length, Response};
use super::delivery::{Next, deliver};
use super::fault::{Fault, GARBAGE};
use super::head::{MAX_BODY_BYTES, Request};
use super::refusal::Refusal;
use super::routes;
use super::state::State;
use super::wire::Wire;

/// Serves a connection until either side closes it. It counts as open from this call on.
pub(super) fn serve(stream: TcpStream, state: Arc<State>) -> impl Future<Output = ()> {
    state.journal.connections.fetch_add(1, Relaxed);
    let open = state.journal.open.guard();
    async move {
        let _open = open;
        if let Err(error) = run(stream, &state).await {
            tracing::debug!(%error, "mock connection failed");
        }
    }
}

async fn run(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wire = Wire::new(stream);
    while let Some(request) = wire.request(&state.journal).await? {
        let next = match request {
            Ok(request) => exchange(&mut wire, state, request).await?,
            Err(refusal) => refuse(&mut wire, refusal, "").await?,
        };
        match next {
            Next::Keep => {}
            Next::Close => return wire.finish().await,
            Next::Reset => return wire.reset(),
            Next::Gone => break,
        }
    }
    Ok(())
}

/// Handles one request. Unless it is invalid, it is in flight until the last piece of its response is handed to the
/// socket or the client has disconnected.
async fn exchange(wire: &mut Wire, state: &State, mut request: Request) -> io::Result<Next> {
    if let Some(reason) = request.malformed {
        return refuse(wire, Refusal::Malformed(reason), request.path()).await;
    }
    if request.body_length > MAX_BODY_BYTES {
        return refuse(wire, Refusal::BodyTooLarge, request.path()).await;
    }
    let in_flight = state.journal.in_flight.guard();
    if request.body_length > 0 {
        request.body = wire.body(request.body_length).await?;
    }
    let fault = state.script.take(request.path());
    match fault {
        Some((Fault::Reset, _)) => return Ok(Next::Reset),
        Some((Fault::Close, _)) => return Ok(Next::Close),
        Some((Fault::Garbage, _)) => {
            wire.out.extend_from_slice(GARBAGE);
            drop(in_flight);
            wire.send().await?;
            return Ok(Next::Close);
        }
        _ => {}
    }
    let Some(answer) = wire.unless_gone(answer(state, &request, fault.as_ref())).await else { return Ok(Next::Gone) };
    deliver(wire, &request, &answer, fault.as_ref().map(|(fault, _)| fault), in_flight).await
}

/// The response, with faults that affect its content or timing.
async fn answer(state: &State, request: &Request, fault: Option<&(Fault, u64)>) -> Response {
    let Some((fault, since)) = fault else { return routes::answer(state, request).await };
    match fault {
        Fault::Delay(delay) => sleep(*delay).await,
        Fault::Hang => state.script.healed(*since).await,
        _ => {}
    }
    if let Some(answer) = fault.instead() {
        return answer;
    }
    let mut answer = routes::answer(state, request).await;
    fault.alter(&mut answer);
    answer
}

async fn refuse(wire: &mut Wire, refusal: Refusal, path: &str) -> io::Result<Next> {
    let answer = refusal.answer(path);
    answer.write_head(Length::Known(answer.body.len()), false, &mut wire.out);
    wire.out.extend_from_slice(answer.body.as_bytes());
    wire.send().await?;
    Ok(Next::Close)
}
