//! [`Server`]: limits the requests to a server on the way to a pod's token, and holds them back while it fails.
//!
//! The API server, the Security Token Service and IAM have a `Server` each, so that a stalled one takes nothing from
//! the others:
//!
//! - Each has [`MAX_REQUESTS`] places. The workload with the fewest requests is next ([`Flights`]).
//! - Requests that nobody waits for take at most [`MAX_BACKGROUND`] of them.
//! - If it fails for several workloads, a [`Breaker`] lets one request through each [`PROBE_INTERVAL`], until one does
//!   not fail. The others fail at once. A request takes 5 s at most, so a stalled server has five at a time.
//!
//! A refusal is no failure.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::halt::Halt;
use protocol::metadata::WorkloadId;
use proxy::failure::ExchangeFailure;
use proxy::flights::{Flights, Waited};
use proxy::tokens::Breaker;
use proxy::tokens::Urgency;

/// Maximum concurrent requests to one server, which bounds the memory that connections take.
pub(super) const MAX_REQUESTS: usize = 24;

/// Maximum concurrent requests to one server that nobody waits for.
pub(super) const MAX_BACKGROUND: usize = MAX_REQUESTS / 2;

/// Interval between requests to a server that fails for several workloads. Recovery is noticed within this time.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The reason while requests to a server are held back.
const RESTING: &str = "it has failed several times in a row and is asked again within a second";

/// The workload of a request, and whether a client waits for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) workload: WorkloadId,
    pub(super) urgency: Urgency,
}

/// An error of a request.
pub(super) trait Fault {
    /// Whether the server failed. A refusal is no failure.
    fn is_failure(&self) -> bool;
}

/// A server on the way to a pod's token.
pub(super) struct Server {
    /// Makes a failure of this server from its reason.
    failure: fn(String) -> ExchangeFailure,
    places: Flights<WorkloadId>,
    background: Semaphore,
    breaker: Breaker<WorkloadId>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("places", &self.places).field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

impl Server {
    /// A server whose failures are of this kind.
    pub(super) fn new(failure: fn(String) -> ExchangeFailure) -> Self {
        Self {
            failure,
            places: Flights::new(MAX_REQUESTS),
            background: Semaphore::new(MAX_BACKGROUND),
            breaker: Breaker::new(PROBE_INTERVAL),
        }
    }

    /// Sends a request when there is a place for it. Fails at once, without sending it, while the breaker holds it back.
    pub(super) async fn ask<T, E: Fault>(
        &self,
        Turn { workload, urgency }: Turn,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, Halt> {
        let _background = match urgency {
            Urgency::Background => Some(self.background.acquire().await),
            Urgency::Demanded => None,
        };
        let client = Some(workload);
        let _place = self.places.begin(client, Arc::new(Shared)).await;
        // The server may have failed meanwhile.
        if !self.breaker.lets_through(client, Instant::now()) {
            return Err(Halt::resting((self.failure)(RESTING.to_owned())));
        }
        let answer = request.await;
        match &answer {
            Err(error) if error.is_failure() => self.breaker.failed(client, Instant::now()),
            Ok(_) | Err(_) => self.breaker.succeeded(client),
        }
        Ok(answer)
    }
}

/// A request is not given up for another workload: its result is kept, and all pods of the workload use it.
#[derive(Debug)]
struct Shared;

impl Waited<WorkloadId> for Shared {
    fn no_other_client_waits(&self, _: Option<WorkloadId>) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{sleep, timeout};

    use super::*;

    #[derive(Debug)]
    struct Failed;

    impl Fault for Failed {
        fn is_failure(&self) -> bool {
            true
        }
    }

    fn turn(workload: u64, urgency: Urgency) -> Turn {
        Turn { workload: WorkloadId(workload), urgency }
    }

    async fn fails(server: &Server, workload: u64) -> Result<Result<(), Failed>, Halt> {
        server.ask(turn(workload, Urgency::Demanded), async { Err(Failed) }).await
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_nobody_waits_for_leave_half_of_the_places() {
        let server = Arc::new(Server::new(ExchangeFailure::Sts));
        let begin = |workload, urgency| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.ask(turn(workload, urgency), pending::<Result<(), Failed>>()).await });
        };
        for workload in 0..100 {
            begin(workload, Urgency::Background);
        }
        sleep(Duration::from_secs(1)).await;
        let answer =
            timeout(Duration::from_secs(1), server.ask(turn(200, Urgency::Demanded), async { Ok::<_, Failed>(7) }));
        assert!(matches!(answer.await, Ok(Ok(Ok(7)))), "there is a place");
        for workload in 0..MAX_REQUESTS - MAX_BACKGROUND {
            begin(200 + workload as u64, Urgency::Demanded);
        }
        sleep(Duration::from_secs(1)).await;
        let next = server.ask(turn(300, Urgency::Demanded), async { Ok::<_, Failed>(7) });
        assert!(timeout(Duration::from_secs(1), next).await.is_err(), "all places are taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_for_several_workloads_is_asked_once_a_second() {
        let server = Server::new(ExchangeFailure::Sts);
        for workload in 0..5 {
            assert!(matches!(fails(&server, workload).await, Ok(Err(Failed))));
        }
        let began = Instant::now();
        let mut asked = 0;
        while began.elapsed() < Duration::from_secs(10) {
            for workload in 0..50 {
                match fails(&server, workload).await {
                    Ok(_) => asked += 1,
                    Err(halt) => {
                        let why = halt.why.to_string();
                        assert!(
                            why.starts_with("Google's Security Token Service: it has failed several times"),
                            "{why}"
                        );
                    }
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        assert!((9..=11).contains(&asked), "{asked}");
        sleep(PROBE_INTERVAL).await;
        let answer = server.ask(turn(1, Urgency::Demanded), async { Ok::<_, Failed>(()) }).await;
        assert!(matches!(answer, Ok(Ok(()))));
        assert!(matches!(fails(&server, 99).await, Ok(Err(Failed))), "it works again");
    }
}
