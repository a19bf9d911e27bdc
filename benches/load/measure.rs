//! One run of one contender: a new process in a new control group, the load, and its cost.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mock::Handle;
use tokio::time::{Instant, sleep};

use super::cgroup::Cgroup;
use super::clients;
use super::figures::{Figure, Run};
use super::peers::{Contender, Server, StartError, World};
use super::process::{self, Missing};
use super::scenarios::{LONG, Load, Size, Step, TOKEN};
use super::tools::{Outcome, Unreadable, ab, hey, oha, wrk};

/// Delay after the last connection was opened, in milliseconds. Resources of idle connections are freed after a
/// second.
const SETTLE_MILLIS: Size = Size { full: 3000, quick: 1500 };

/// Shared by all runs.
#[derive(Debug)]
pub struct Lab {
    pub binary: PathBuf,
    pub mock: Handle,
    pub dir: PathBuf,
    pub quick: bool,
    /// Whether control groups can be created.
    pub has_groups: bool,
}

/// Why there are no figures for a contender.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("limits need a control group, and none can be made here; run as root")]
    NoGroup,
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Missing(missing) => Self::Missing(missing),
            StartError::Io(error) => Self::Io(error),
        }
    }
}

impl Lab {
    /// Starts the contender, runs the load, and stops it.
    pub async fn run(&self, step: &Step, contender: Contender) -> Result<Run, Failed> {
        if step.bounds.are_any() && !self.has_groups {
            return Err(Failed::NoGroup);
        }
        let long = LONG.trim_start_matches("/computeMetadata/v1/");
        if step.value > 0 {
            self.mock.set(long, &"x".repeat(step.value));
        } else {
            // Otherwise it would be part of every tree.
            self.mock.remove(long);
        }
        // The upstream's current response, for peers that respond themselves.
        let answer = clients::answers(self.mock.addr(), step.target).await?;
        let world = World {
            binary: &self.binary,
            upstream: self.mock.addr(),
            target: step.target,
            answer: &answer,
            proxy_args: &step.proxy_args,
            dir: &self.dir,
        };
        self.mock.reset_counters();
        let group = self.has_groups.then(|| Cgroup::new(step.bounds)).transpose()?;
        // Declared before the group, so that the process ends first.
        let run = self.run_in(step, contender, &world, group.as_ref()).await;
        drop(group);
        run
    }

    async fn run_in(
        &self,
        step: &Step,
        contender: Contender,
        world: &World<'_>,
        group: Option<&Cgroup>,
    ) -> Result<Run, Failed> {
        if let Load::Start = step.load {
            return started(contender, world).await;
        }
        let mut server = Server::start(contender, world, group)?;
        let mut body = world.answer.len();
        if step.cold {
            // Only wait until it listens.
            let began = Instant::now();
            while tokio::net::TcpStream::connect(server.addr).await.is_err()
                && began.elapsed() < Duration::from_secs(10)
            {
                sleep(Duration::from_millis(1)).await;
            }
        } else {
            body = server.ready(world).await?.len();
        }
        let targets = targets(step.load);
        for target in &targets {
            clients::get(server.addr, target).await?;
        }
        let cpu = || group.and_then(Cgroup::cpu).filter(|_| server.process.is_some());
        let (before, warmed) = (cpu(), self.mock.requests());
        let mut run = Run::default();
        if let Load::Stay { connections } = step.load {
            let staying = clients::stay(server.addr, step.target, connections).await?;
            sleep(Duration::from_millis(SETTLE_MILLIS.get(self.quick))).await;
            let resident = server.process.as_ref().and_then(process::Process::resident);
            note(&mut run, Figure::Resident, resident.map(mebibytes));
            drop(staying);
        } else {
            let url = format!("http://{}{}", server.addr, step.target);
            let (outcome, report) = drive(step.load, &url, body as u64, &targets, self.quick, &self.dir).await?;
            if let (Some(before), Some(after)) = (before, cpu()) {
                let used = after.since(before);
                let all = used.all.as_secs_f64() * 1e6 / count(outcome.requests.max(1));
                note(&mut run, Figure::Cpu, Some(all));
                // With a small load there are too few ticks to divide.
                if !matches!(step.load, Load::Oha { .. }) {
                    let in_user = all * used.user.as_secs_f64() / (used.user + used.system).as_secs_f64();
                    note(&mut run, Figure::CpuUser, Some(in_user));
                    note(&mut run, Figure::CpuSystem, Some(all - in_user));
                }
            }
            // In a cold start, the requests of the start itself count too.
            let began = if step.cold { 0 } else { warmed };
            note(&mut run, Figure::Upstream, Some(count(self.mock.requests() - began)));
            if step.cold {
                note(&mut run, Figure::UpstreamTokens, Some(count(self.mock.requests_to(TOKEN))));
            }
            take(&mut run, outcome, report);
        }
        if server.process.is_some() {
            note(&mut run, Figure::Peak, group.and_then(Cgroup::peak).map(mebibytes));
            if let Some(killed @ 1..) = group.and_then(Cgroup::killed) {
                run.failures.insert("server killed for want of memory".to_owned(), killed);
            }
        }
        if let Some(process) = server.process {
            process.kill().await?;
        }
        Ok(run)
    }
}

async fn started(contender: Contender, world: &World<'_>) -> Result<Run, Failed> {
    let began = Instant::now();
    // A shell that joins a group would be measured too.
    let server = Server::start(contender, world, None)?;
    let took = clients::first_answer(server.addr, world.target, began).await?;
    let mut run = Run::default();
    note(&mut run, Figure::FirstAnswer, Some(took.as_secs_f64() * 1000.0));
    let size = server.program.filter(|_| contender != Contender::Hyper).and_then(|program| program.metadata().ok());
    note(&mut run, Figure::Size, size.map(|size| count(size.len()) / 1e6));
    if let Some(process) = server.process {
        process.kill().await?;
    }
    Ok(run)
}

/// Targets for the default account's token with this many different keys.
fn targets(load: Load) -> Vec<String> {
    match load {
        Load::Wrk { keys, .. } if keys > 1 => (0..keys)
            .map(|key| format!("{TOKEN}?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fscope-{key}"))
            .collect(),
        _ => Vec::new(),
    }
}

async fn drive(
    load: Load,
    url: &str,
    body: u64,
    targets: &[String],
    quick: bool,
    dir: &Path,
) -> Result<(Outcome, String), Failed> {
    let get = |size: Size| size.get(quick);
    let (tool, args) = match load {
        Load::Ab { requests, concurrency } => ("ab", ab::args(url, get(requests), concurrency)),
        Load::Hey { requests, concurrency } => ("hey", hey::args(url, get(requests), concurrency)),
        Load::Oha { rate, seconds } => ("oha", oha::args(url, rate, get(seconds))),
        Load::Wrk { seconds, connections, .. } => {
            let mut args = wrk::args(url, get(seconds), connections);
            if !targets.is_empty() {
                let script = dir.join("keys.lua");
                std::fs::write(&script, wrk::script(targets))?;
                args.splice(0..0, ["-s".to_owned(), script.display().to_string()]);
            }
            ("wrk", args)
        }
        Load::Stay { .. } | Load::Start => unreachable!("these need no tool"),
    };
    let output = process::run_tool(&process::find(tool)?, &args).await?;
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let read = match load {
        Load::Ab { .. } => ab::read(&report, body),
        Load::Hey { .. } => hey::read(&report),
        Load::Oha { .. } => oha::read(&report),
        _ => wrk::read(&report),
    };
    match read {
        Ok(outcome) => Ok((outcome, report)),
        Err(error) => Err(io::Error::other(format!("{error}: {}", last_words(&output.stderr, &report))).into()),
    }
}

/// The last output of a tool that failed.
fn last_words(stderr: &[u8], report: &str) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    let line = stderr.lines().chain(report.lines()).rfind(|line| !line.trim().is_empty());
    line.unwrap_or("it said nothing").trim().to_owned()
}

fn take(run: &mut Run, outcome: Outcome, report: String) {
    note(run, Figure::Throughput, Some(outcome.throughput));
    note(run, Figure::P50, outcome.p50);
    note(run, Figure::P99, outcome.p99);
    note(run, Figure::Max, outcome.max);
    note(run, Figure::Success, Some(100.0 * count(outcome.answered) / count(outcome.requests.max(1))));
    run.failures = outcome.failures;
    run.report = report;
}

fn note(run: &mut Run, figure: Figure, value: Option<f64>) {
    run.figures.extend(value.map(|value| (figure, value)));
}

fn mebibytes(bytes: u64) -> f64 {
    count(bytes) / 1024.0 / 1024.0
}

#[expect(clippy::cast_precision_loss, reason = "2^52 of anything is far away")]
fn count(number: u64) -> f64 {
    number as f64
}
