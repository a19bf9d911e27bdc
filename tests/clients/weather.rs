//! The weather: the state of the metadata server, the proxy and other clients while a client runs.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mock::{Fault, Handle};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::{Client, Task};
use crate::fault::{Spoil, Spoiler};
use crate::gate::gate;
use crate::stage::{Counts, Stage};
use crate::support::stall::{self, Waits};
use crate::support::{Outcome, ask, eventually, upstream};
use crate::told::{Step, Told};

/// A kind of weather.
#[derive(Debug)]
pub(crate) struct Weather {
    /// Name in tests and expectations, and in the head of a column.
    pub(crate) name: &'static str,
    kind: Kind,
    /// Arguments of the proxy.
    args: &'static [&'static str],
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// No problem.
    Clear,
    /// No problem, but values that GKE's own server does not show are missing, such as the machine's name.
    Strict,
    /// This many processes start at the same time as the proxy.
    ColdStart(usize),
    /// The upstream takes this long for every response, and the caches are empty.
    Slow(Duration),
    /// The upstream has become unreachable.
    Dead,
    /// The upstream refuses every request: with 429, then 500, then 503, then 429 again.
    Refusing,
    /// This many requests at once while others have taken all the seats.
    Crowded(usize),
    /// Another process takes over.
    Handover,
}

/// The policy that is shipped for agents that report the machine's name and type.
const MONITORING: &[&str] = &["--policy=deploy/components/monitoring-policy/policy.yaml"];

/// All weathers.
pub(crate) const WEATHERS: &[Weather] = &[
    Weather { name: "clear", kind: Kind::Clear, args: &[] },
    Weather { name: "policy strict", kind: Kind::Strict, args: &["--policy=strict"] },
    Weather { name: "policy monitoring", kind: Kind::Clear, args: MONITORING },
    Weather { name: "slow by 1 s", kind: Kind::Slow(Duration::from_secs(1)), args: &[] },
    // Half a second less than the proxy waits for a response, because both share the processor with the clients.
    Weather { name: "slow by 2 s", kind: Kind::Slow(Duration::from_secs(2)), args: &[] },
    Weather { name: "upstream dead", kind: Kind::Dead, args: &[] },
    Weather { name: "429, 500, 503", kind: Kind::Refusing, args: &[] },
    Weather { name: "handover", kind: Kind::Handover, args: &["--reuse-port"] },
    Weather { name: "cold start of 50", kind: Kind::ColdStart(50), args: &[] },
    Weather { name: "250 at once, reset", kind: Kind::Crowded(50), args: &["--overload=reset"] },
    Weather { name: "250 at once, 503", kind: Kind::Crowded(50), args: &["--overload=unavailable"] },
];

/// The result of a client in a weather.
#[derive(Debug)]
pub(crate) struct Cell {
    /// The library's version, if it was reported.
    pub(crate) version: Option<String>,
    /// The error, if something went wrong.
    pub(crate) result: Result<(), String>,
    /// Counts meanwhile, without requests of the stage itself.
    pub(crate) counts: Counts,
    /// Time from the start of the client's process to its end.
    pub(crate) took: Duration,
}

/// Takes a turn. Tests that keep the processor busy take it alone, so that none fails because of the time that another took.
pub(crate) async fn turn(alone: bool) -> impl Send {
    static PROCESSOR: RwLock<()> = RwLock::const_new(());
    if alone { (Some(PROCESSOR.write().await), None) } else { (None, Some(PROCESSOR.read().await)) }
}

/// A value that the proxy does not cache, so that a request for it takes a seat.
const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";

/// Less than the proxy gives the upstream for a response.
const PATIENCE_OF_NEIGHBOURS: Duration = Duration::from_millis(1500);

/// Maximum number of different tokens that a client's processes and the proxy itself request: with scopes and without, by
/// the account's alias and by its e-mail.
const TOKENS: usize = 4;

/// Seats of the proxy: the default of `--max-in-flight`.
const SEATS: u64 = 200;

impl Weather {
    /// Runs a client in the weather; an error if that was not possible. With `spoil`, responses are spoiled on their way.
    /// With `alone`, no other client runs meanwhile.
    pub(crate) async fn meet(
        &self,
        client: &'static Client,
        spoil: Option<Spoil>,
        alone: bool,
    ) -> Result<Cell, String> {
        client.install().await?;
        let _turn = turn(alone || matches!(self.kind, Kind::ColdStart(_) | Kind::Crowded(_))).await;
        Ok(self.play(client, spoil).await)
    }

    async fn play(&self, client: &'static Client, spoil: Option<Spoil>) -> Cell {
        match self.kind {
            Kind::Clear => self.clear(client, spoil).await,
            Kind::Strict => self.strict(client).await,
            Kind::ColdStart(processes) => self.cold_start(client, processes).await,
            Kind::Slow(delay) => self.slow(client, delay).await,
            Kind::Dead => self.known(client, async |stage| stage.mock.stop().await).await,
            Kind::Refusing => self.known(client, async |stage| refuse(&stage.mock)).await,
            Kind::Crowded(requests) => self.crowded(client, requests, spoil).await,
            Kind::Handover => self.handover(client).await,
        }
    }

    async fn clear(&self, client: &'static Client, spoil: Option<Spoil>) -> Cell {
        let stage = Stage::ready(self.args).await;
        let scene = Scene::begin(&stage).await;
        let told = client.run(through(stage.pods, spoil).await, Task::Session(client.steps)).await;
        let mut cell = scene.end(&stage, told, |told| told.session(client.steps)).await;
        let made = cell.counts.connections;
        if cell.result.is_ok() && made > client.connections {
            cell.result = Err(format!("{made} connections, where it makes {} that it keeps", client.connections));
        }
        cell
    }

    async fn strict(&self, client: &'static Client) -> Cell {
        let stage = Stage::ready(self.args).await;
        let scene = Scene::begin(&stage).await;
        let steps: Vec<_> = client.steps.iter().copied().filter(|step| !matches!(step, Step::Machine)).collect();
        let told = client.run(stage.pods, Task::Session(&steps)).await;
        scene.end(&stage, told, |told| told.session(&steps)).await
    }

    async fn slow(&self, client: &'static Client, delay: Duration) -> Cell {
        let mock = upstream().await;
        mock.fault(Fault::Delay(delay));
        let stage = Stage::cold(mock, self.args).await;
        let scene = Scene::begin(&stage).await;
        let told = client.run(stage.pods, Task::Session(client.steps)).await;
        scene.end(&stage, told, |told| told.session(client.steps)).await
    }

    /// A second session, when all that it requests has been requested before.
    async fn known(&self, client: &'static Client, spoil: impl AsyncFnOnce(&Stage)) -> Cell {
        let stage = Stage::ready(self.args).await;
        let before =
            client.run(stage.pods, Task::Session(client.steps)).await.and_then(|told| told.session(client.steps));
        spoil(&stage).await;
        let scene = Scene::begin(&stage).await;
        let steps: Vec<_> = client.steps.iter().copied().filter(|step| !step.needs_the_upstream()).collect();
        let told = client.run(stage.pods, Task::Session(&steps)).await;
        let mut cell = scene.end(&stage, told, |told| told.session(&steps)).await;
        cell.result = before.and(cell.result);
        cell
    }

    async fn cold_start(&self, client: &'static Client, processes: usize) -> Cell {
        let stage = Stage::cold(upstream().await, self.args).await;
        let scene = Scene::begin(&stage).await;
        let pods = stage.pods;
        let all: JoinSet<_> = (0..processes).map(|_| client.run(pods, Task::Token)).collect();
        let judged = all.join_all().await.into_iter().map(|told| {
            let told = told?;
            told.tokens(Some(1)).map(|()| told)
        });
        // The last of them, or the first that failed.
        let told = judged.reduce(Result::and).expect("there are some");
        let fetches = stage.mock.log().iter().filter(|seen| seen.path().ends_with("/token")).count();
        scene
            .end(&stage, told, |_| match fetches {
                ..=TOKENS => Ok(()),
                _ => Err(format!("the metadata server was asked for {fetches} tokens")),
            })
            .await
    }

    /// The neighbours arrive when the client does, however long it takes to start, and keep the seats until it has its
    /// tokens.
    async fn crowded(&self, client: &'static Client, requests: usize, spoil: Option<Spoil>) -> Cell {
        let stage = Stage::ready(self.args).await;
        stage.mock.fault_at(LEAF, Fault::Hang);
        let (gate, arrival) = gate(through(stage.pods, spoil).await).await;
        let scene = Scene::begin(&stage).await;
        let mut running = pin!(client.run(gate, Task::Many(requests)));
        let open = tokio::select! {
            told = &mut running => return scene.end(&stage, told, |_| Err("it asked for nothing".to_owned())).await,
            open = arrival => open.expect("the gate waits"),
        };
        let until = Instant::now() + PATIENCE_OF_NEIGHBOURS;
        let neighbours: JoinSet<Outcome> = (0..SEATS).map(|_| ask(stage.pods, LEAF)).collect();
        eventually("the neighbours have all the seats", || stage.mock.in_flight() == SEATS).await;
        open.send(()).expect("the gate waits");
        let told = timeout_at(until, &mut running).await;
        stage.mock.heal();
        // The proxy may have given up on the upstream by then.
        stall::note_wait(until.elapsed());
        let told = match told {
            Ok(told) => told,
            Err(_) => running.await,
        };
        let are_answered = neighbours.join_all().await.iter().all(|neighbour| neighbour.is_status(200));
        let mut cell = scene.end(&stage, told, |told| told.tokens(Some(requests))).await;
        cell.counts.requests = cell.counts.requests.saturating_sub(SEATS);
        cell.counts.upstream = cell.counts.upstream.saturating_sub(SEATS);
        if !are_answered {
            cell.result = Err("a neighbour had a seat and got no answer".to_owned());
        }
        if cell.result.is_ok() && cell.counts.sheds > 0 {
            cell.result = Err(format!("{} of its requests were shed, though tokens need no seat", cell.counts.sheds));
        }
        cell
    }

    /// The client sends requests without a pause until the successor has answered it for a while.
    async fn handover(&self, client: &'static Client) -> Cell {
        let mut old = Stage::ready(self.args).await;
        let (pods, over) = (old.pods, over());
        let scene = Scene::begin(&old).await;
        let taken_over = async {
            let was_served = moved_on(&old, scene.before, 3).await;
            let new = old.successor(self.args).await;
            let by_old = old.counts().await;
            let at_first = new.counts().await;
            old.proxy.terminate();
            let status = old.proxy.ended().await;
            let is_served = moved_on(&new, at_first, 3).await;
            std::fs::write(&over, "").expect("the build directory can be written");
            (new, by_old, at_first, status, [was_served, is_served])
        };
        let (told, (new, by_old, at_first, status, served)) =
            tokio::join!(client.run(pods, Task::Stay(&over)), taken_over);
        let _ = std::fs::remove_file(&over);
        let before = scene.before;
        let mut cell = Scene { before: at_first, ..scene }.end(&new, told, |told| told.tokens(None)).await;
        let by_old = by_old.since(before);
        cell.counts.requests += by_old.requests;
        cell.counts.connections += by_old.connections;
        if cell.result.is_ok() && !(status.success() && served == [true; 2]) {
            cell.result =
                Err(format!("the old process ended with {status}; served by the old and the new: {served:?}"));
        }
        cell
    }
}

/// The period from the start of a client to its end.
struct Scene {
    before: Counts,
    began: Instant,
    /// This process, which is the upstream, and the proxy, with their waits so far.
    programs: [(u32, Waits); 2],
}

impl Scene {
    async fn begin(stage: &Stage) -> Self {
        let programs = [std::process::id(), stage.proxy.id()].map(|program| (program, Waits::of(program)));
        Self { before: stage.counts().await, began: Instant::now(), programs }
    }

    async fn so_far(&self, stage: &Stage) -> Counts {
        stage.counts().await.since(self.before)
    }

    async fn end(
        self,
        stage: &Stage,
        told: Result<Told, String>,
        judge: impl FnOnce(&Told) -> Result<(), String>,
    ) -> Cell {
        let took = self.began.elapsed();
        let counts = self.so_far(stage).await;
        // Clients get no response if the proxy or the upstream is kept from a processor.
        for (program, before) in &self.programs {
            stall::note_wait(Waits::of(*program).longest_since(before));
        }
        let (version, result) = match told {
            Ok(told) => (Some(told.version.clone()), judge(&told)),
            Err(error) => (None, Err(error)),
        };
        Cell { version, result, counts, took }
    }
}

/// Sets more refusals than any client makes requests.
fn refuse(mock: &Handle) {
    for _ in 0..100 {
        for status in [429, 500, 503] {
            mock.fault_next(1, Fault::Status(status, "Not now.\n".into()));
        }
    }
}

/// The address for a client: the proxy's, or that of the relay that spoils its responses.
async fn through(pods: SocketAddr, spoil: Option<Spoil>) -> SocketAddr {
    match spoil {
        Some(spoil) => Spoiler::start(pods, spoil).await,
        None => pods,
    }
}

/// Waits for this many more requests. Returns whether they arrived in the time that the slowest client needs to start, with a
/// tenth of the processors.
async fn moved_on(stage: &Stage, before: Counts, requests: u64) -> bool {
    let moved = async {
        while stage.counts().await.since(before).requests < requests {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), moved).await.is_ok()
}

/// A file that does not exist yet.
fn over() -> std::path::PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("over-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
