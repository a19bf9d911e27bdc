//! [`Server`]: limits the requests to a server on the way to a pod's token, and holds them back while it fails.
//!
//! The API server, the Security Token Service and IAM have a `Server` each, so that a stalled one takes nothing from
//! the others:
//!
//! - Each has [`MAX_REQUESTS`] places. The workload with the fewest requests is next ([`Flights`]).
//! - Requests that nobody waits for take at most [`MAX_BACKGROUND`] of them. One that waits for such a place goes on at once when a
//!   client joins it.
//! - If it fails for several workloads, a [`Breaker`] lets one request through each [`PROBE_INTERVAL`], until one does
//!   not fail. The others fail at once. A request to Google takes 5 s at most, so a stalled server has five at a time; one to the API
//!   server takes 10 s until its answer begins and 10 s until that ends, so it has twenty.
//! - After a 429 of Google's a [`Quota`] holds requests back: those that nobody waits for longest. Each project that is charged has
//!   its own: it says nothing about the others'.
//!
//! [`Quota`]: super::quota::Quota
//!
//! A refusal is no failure.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::halt::Halt;
use super::haste::Haste;
use super::metrics::Spent;
use super::quotas::{Payer, Quotas};
use super::rest::Rest;
use protocol::metadata::WorkloadId;
use proxy::failure::{ExchangeFailure, Withheld};
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

/// The reason while a quota is used up.
const USED_UP: &str = "it returned 429 Too Many Requests, and is asked less often until it does not";

/// The workload of a request, and whether a client waits for it.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub(super) workload: WorkloadId,
    pub(super) haste: Haste,
    pub(super) payer: Payer,
}

/// An error of a request.
pub(super) trait Fault {
    /// Whether the server failed. A refusal is no failure.
    fn is_failure(&self) -> bool;

    /// The time that the server names, if its quota is used up.
    fn used_up(&self) -> Option<Duration> {
        None
    }
}

/// A server on the way to a pod's token.
pub(super) struct Server {
    /// Makes a failure of this server from its reason.
    failure: fn(String) -> ExchangeFailure,
    places: Flights<WorkloadId>,
    background: Semaphore,
    breaker: Breaker<WorkloadId>,
    quotas: Quotas,
    spent: Spent,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("places", &self.places).field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

impl Server {
    /// A server whose failures are of this kind.
    pub(super) fn new(failure: fn(String) -> ExchangeFailure, spent: Spent) -> Self {
        Self {
            failure,
            quotas: Quotas::default(),
            spent,
            places: Flights::new(MAX_REQUESTS),
            background: Semaphore::new(MAX_BACKGROUND),
            breaker: Breaker::new(PROBE_INTERVAL),
        }
    }

    /// Sends a request when there is a place for it. Fails at once, without sending it, while the breaker holds it back.
    pub(super) async fn ask<T, E: Fault>(
        &self,
        Turn { workload, haste, payer }: Turn,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, Halt> {
        let _background = match haste.now() {
            Urgency::Demanded | Urgency::Soon => None,
            Urgency::Background => tokio::select! {
                biased;
                () = haste.demanded() => None,
                place = self.background.acquire() => Some(place),
            },
        };
        let client = Some(workload);
        let _place = self.places.begin(client, Arc::new(Shared)).await;
        // A client may have joined while it waited.
        let urgency = haste.now();
        let began = Instant::now();
        let quota = self.quotas.of(&payer, began);
        let held_back = |left| self.held_back(payer.withheld(), left);
        // What is not sent takes neither a turn of the quota nor a probe from others.
        quota.may_begin((workload, urgency), began).map_err(held_back)?;
        // The server may have failed meanwhile.
        if !self.breaker.lets_through(client, began) {
            return Err(Halt::resting((self.failure)(RESTING.to_owned())));
        }
        quota.begin((workload, urgency), began, fastrand::f64()).map_err(held_back)?;
        self.spent.count(urgency);
        let answer = request.await;
        match &answer {
            Err(error) if error.is_failure() => self.breaker.failed(client, Instant::now()),
            Ok(_) | Err(_) => self.breaker.succeeded(client),
        }
        let (now, random) = (Instant::now(), fastrand::f64());
        match &answer {
            Ok(_) => quota.allowed(urgency, began, now, random),
            Err(error) => match error.used_up() {
                Some(named) => quota.used_up(urgency, began, named, now, random),
                // A server may refuse a request before it checks the quota, and a workload chooses its payer.
                None if error.is_failure() || !payer.is_common() => {}
                None => quota.allowed(urgency, began, now, random),
            },
        }
        Ok(answer)
    }

    /// The rest after a 429. What pods wait for is asked for again when the quota allows it. A 429 that no pod waited for holds back
    /// only what no pod waits for: no pod waits behind it.
    pub(super) fn rest_after_429(&self, Turn { haste, payer, .. }: &Turn) -> Rest {
        let now = Instant::now();
        match haste.now() {
            urgency @ (Urgency::Demanded | Urgency::Soon) => Rest::Held(self.quotas.of(payer, now).left(urgency, now)),
            Urgency::Background => Rest::Unasked,
        }
    }

    /// The answer while the quota is used up.
    fn held_back(&self, why: Withheld, left: Duration) -> Halt {
        let text = format!("{}\n", (self.failure)(USED_UP.to_owned()));
        Halt { rest: Rest::Unasked, ..Halt::throttled(why, text, left) }
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

    use super::super::metrics::{ExchangeMetrics, Step};
    use super::*;
    use crate::cluster::Annotations;
    use crate::workloads::Link;
    use telemetry::Registry;

    fn sts() -> Server {
        let metrics = ExchangeMetrics::new(&Registry::default());
        Server::new(ExchangeFailure::Sts, metrics.spent(Step::Sts))
    }

    #[derive(Debug)]
    struct UsedUp;

    impl Fault for UsedUp {
        fn is_failure(&self) -> bool {
            false
        }

        fn used_up(&self) -> Option<Duration> {
            Some(Duration::ZERO)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_429_a_renewal_waits_for_minutes_and_a_pod_for_seconds() {
        let server = sts();
        let answer = server.ask(turn(1, Urgency::Background), async { Err::<(), _>(UsedUp) }).await;
        assert!(matches!(answer, Ok(Err(UsedUp))));
        for (urgency, is_held) in [(Urgency::Demanded, false), (Urgency::Background, true)] {
            let answer = server.ask(turn(2, urgency), async { Ok::<_, UsedUp>(()) }).await;
            assert_eq!(answer.is_err(), is_held, "{urgency:?}");
        }
        let answer = server.ask(turn(2, Urgency::Demanded), async { Err::<(), _>(UsedUp) }).await;
        assert!(matches!(answer, Ok(Err(UsedUp))));
        let held = server.ask(turn(3, Urgency::Demanded), async { Ok::<_, UsedUp>(()) }).await.expect_err("held back");
        assert_eq!((held.rest, held.status().map(|it| it.as_u16())), (Rest::Unasked, Some(503)));
        assert!(held.line().contains("429"), "{}", held.line());
        sleep(Duration::from_secs(2)).await;
        for workload in 3..20 {
            let answer = server.ask(turn(workload, Urgency::Demanded), async { Ok::<_, UsedUp>(()) }).await;
            assert!(answer.is_ok(), "it allows requests again");
        }
        let answer = server.ask(turn(2, Urgency::Background), async { Ok::<_, UsedUp>(()) }).await;
        assert!(answer.is_err(), "what pods got says nothing about the rest");
        sleep(Duration::from_secs(180)).await;
        let answer = server.ask(turn(2, Urgency::Background), async { Ok::<_, UsedUp>(()) }).await;
        assert!(answer.is_ok());
    }

    fn payer(google_account: &str) -> Payer {
        let google_account = Some(google_account.to_owned());
        let link = Link::parse(&Annotations { google_account, ..Annotations::default() }).expect("a link");
        Payer::at_iam(&link)
    }

    #[tokio::test(start_paused = true)]
    async fn a_projects_quota_says_nothing_about_the_others() {
        let shop = payer("app@shop.iam.gserviceaccount.com");
        let bank = payer("app@bank.iam.gserviceaccount.com");
        let server = sts();
        for urgency in [Urgency::Demanded, Urgency::Background] {
            let at = |payer: &Payer, workload| Turn { payer: payer.clone(), ..turn(workload, urgency) };
            let answer = server.ask(at(&shop, 1), async { Err::<(), _>(UsedUp) }).await;
            assert!(matches!(answer, Ok(Err(UsedUp))));
            let answer = server.ask(at(&bank, 2), async { Ok::<_, UsedUp>(()) }).await;
            assert!(answer.is_ok(), "{urgency:?}");
            let answer = server.ask(at(&shop, 3), async { Ok::<_, UsedUp>(()) }).await;
            assert!(answer.is_err(), "{urgency:?}: one project's accounts share it");
            sleep(Duration::from_secs(1000)).await;
        }
    }

    #[derive(Debug)]
    struct Refused;

    impl Fault for Refused {
        fn is_failure(&self) -> bool {
            false
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_whoever_names_a_payer_do_not_open_its_quota() {
        let victim = payer("app@shop.iam.gserviceaccount.com");
        for (payer, is_open) in [(victim, false), (Payer::default(), true)] {
            let server = sts();
            let at = |workload| Turn { payer: payer.clone(), ..turn(workload, Urgency::Demanded) };
            for _ in 0..3 {
                let answer = server.ask(at(1), async { Err::<(), _>(UsedUp) }).await;
                assert!(matches!(answer, Ok(Err(UsedUp))));
                sleep(Duration::from_secs(60)).await;
            }
            for _ in 0..3 {
                let answer = server.ask(at(2), async { Err::<(), _>(Refused) }).await;
                assert!(matches!(answer, Ok(Err(Refused))));
                sleep(Duration::from_secs(60)).await;
            }
            let answers =
                [server.ask(at(2), async { Ok::<_, Refused>(()) }).await, server.ask(at(2), async { Ok(()) }).await];
            assert_eq!(answers.map(|answer| answer.is_ok()), [true, is_open]);
        }
    }

    #[derive(Debug)]
    struct Failed;

    impl Fault for Failed {
        fn is_failure(&self) -> bool {
            true
        }
    }

    fn turn(workload: u64, urgency: Urgency) -> Turn {
        Turn { workload: WorkloadId(workload), haste: urgency.into(), payer: Payer::default() }
    }

    async fn fails(server: &Server, workload: u64) -> Result<Result<(), Failed>, Halt> {
        server.ask(turn(workload, Urgency::Demanded), async { Err(Failed) }).await
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_nobody_waits_for_leave_half_of_the_places() {
        let server = Arc::new(sts());
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
    async fn what_a_quota_holds_back_takes_no_probe_of_a_server_that_fails() {
        let server = sts();
        let shop = payer("app@shop.iam.gserviceaccount.com");
        let held = || Turn { payer: shop.clone(), ..turn(9, Urgency::Background) };
        assert!(matches!(server.ask(held(), async { Err::<(), _>(UsedUp) }).await, Ok(Err(UsedUp))));
        for workload in 0..5 {
            assert!(matches!(fails(&server, workload).await, Ok(Err(Failed))));
        }
        let mut probes = 0;
        for _ in 0..100 {
            // The pod that is held back asks first each time.
            assert!(server.ask(held(), async { Ok::<_, Failed>(()) }).await.is_err());
            probes += usize::from(fails(&server, 1).await.is_ok());
            sleep(Duration::from_millis(100)).await;
        }
        assert!((9..=11).contains(&probes), "{probes} in 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_for_several_workloads_is_asked_once_a_second() {
        let server = sts();
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
