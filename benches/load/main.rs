//! The load laboratory: the binary of the container image and its peers, under real limits and with public tools.
//!
//! ```text
//! cargo bench --bench load -- SCENARIO [--quick]
//! ```
//!
//! `benches/README.md` describes how to install the prerequisites and what each figure means. Where to start:
//! [`scenarios`] lists the measurements and goals as data; [`measure`] performs one run; [`peers`] starts the
//! contenders; [`tools`] runs the load tools and parses their reports; [`table`], [`plot`] and [`report`]
//! produce the output.
//!
//! Everything uses loopback addresses, in a network of its own, and ports picked by the system. Every process started here ends with this
//! one.

#![expect(unreachable_pub, reason = "modules of a program have no outside")]

mod cgroup;
mod clients;
mod figures;
mod goals;
mod hyper_server;
mod machine;
mod measure;
mod peers;
mod plot;
mod process;
mod report;
mod scenarios;
mod table;
mod tools;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use mock::Mock;
use proxy::server::drain::Signals;

use tokio::process::Command;

use cgroup::{Bounds, Cgroup};
use figures::{Figure, Run};
use goals::Results;
use machine::{Bystander, Machine};
use measure::Lab;
use process::Cores;
use report::Way;
use scenarios::{Scenario, Step};

/// The argument with which this program runs as its own peer.
const HYPER: &str = "hyper-server";

/// The argument with which this program runs in a [network of its own](own_network).
const INSIDE: &str = "--inside";

/// A scenario that reads the proxy's own histograms and is a separate bench, by both names.
const FILTER_LATENCY: (&str, &str) = ("seed-filter-latency", "seed_filter_latency");

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Cargo passes `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [HYPER, addr, body] = &*args.iter().map(String::as_str).collect::<Vec<_>>() {
        return exit(serve_hyper(addr, body).await);
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let is_inside = args.iter().any(|arg| arg == INSIDE);
    let wanted: Vec<&String> = args.iter().filter(|arg| *arg != "--quick" && *arg != INSIDE).collect();
    if let [name] = wanted[..]
        && name == FILTER_LATENCY.0
    {
        return exit(filter_latency().await);
    }
    let chosen: Vec<Scenario> = match wanted[..] {
        [name] => scenarios::all().into_iter().filter(|scenario| name == "all" || scenario.name == name).collect(),
        _ => Vec::new(),
    };
    if chosen.is_empty() {
        return usage();
    }
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return exit(Err(error)),
    };
    // In any case, all started processes end with the future that started them.
    tokio::select! {
        outcome = measure(&chosen, quick, is_inside) => exit(outcome),
        _ = signals.next() => exit(Err(io::ErrorKind::Interrupted.into())),
    }
}

fn exit(outcome: io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: cargo bench --bench load -- SCENARIO [--quick]\n\nSCENARIO is `all` or one of:");
    for scenario in scenarios::all() {
        eprintln!("  {:24}{}", scenario.name, scenario.about);
    }
    eprintln!(
        "  {:24}what each filter costs while 3,000 requests are in flight (a bench of its own)",
        FILTER_LATENCY.0
    );
    ExitCode::from(64)
}

/// Runs that bench instead of this one.
async fn filter_latency() -> io::Result<()> {
    let mut bench = Command::new(process::cargo());
    bench.args([
        "bench",
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        "--bench",
        FILTER_LATENCY.1,
    ]);
    if bench.kill_on_drop(true).status().await?.success() { Ok(()) } else { Err(io::Error::other("it failed")) }
}

async fn serve_hyper(addr: &str, body: &str) -> io::Result<()> {
    let addr = addr.parse().map_err(io::Error::other)?;
    hyper_server::serve(addr, std::fs::read(body)?.into()).await
}

/// Continues in a network of its own, whose segments are a pod's. On the machine's loopback a peer sends 64 KiB in one, where the proxy
/// keeps to a packet of the network that it is made for. Returns only if there is none.
fn own_network() -> io::Error {
    let enter = r#"ip link set lo mtu 1460 up && exec "$0" "$@""#;
    let shell = ["--net", "sh", "-c"];
    let can_enter = std::process::Command::new("unshare").args(shell).arg("ip link show lo").output();
    match (can_enter, std::env::current_exe()) {
        (Ok(can), Ok(this)) if can.status.success() => {
            let args = std::env::args().skip(1).chain([INSIDE.to_owned()]);
            std::process::Command::new("unshare").args(shell).arg(enter).arg(this).args(args).exec()
        }
        (Ok(cannot), Ok(_)) => io::Error::other(String::from_utf8_lossy(&cannot.stderr).trim().to_owned()),
        (Err(error), _) | (_, Err(error)) => error,
    }
}

async fn measure(chosen: &[Scenario], quick: bool, is_inside: bool) -> io::Result<()> {
    gce_metadata_proxy::app::allow_files(u64::MAX)?;
    let binary = peers::build().await?;
    if !is_inside {
        eprintln!("no network can be made ({}): peers send larger segments than a pod's", own_network());
    }
    let machine = Machine::look(&binary).await;
    Cores::Load.enter()?;
    let dir = process::target().join("load");
    let has_groups = match Cgroup::new(Bounds::default()) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("no control group can be made ({error}): no limits and no CPU time; run as root on Linux");
            false
        }
    };
    let lab = Lab { binary, mock: Mock::start().await, dir, quick, has_groups };
    for scenario in chosen {
        let flag = if quick { " --quick" } else { "" };
        let command = format!("cargo bench --bench load -- {}{flag}", scenario.name);
        let bystander = Bystander::begin();
        let mut results = Vec::new();
        for (number, step) in scenario.steps.iter().enumerate() {
            eprintln!("{} {}/{}: {}", scenario.name, number + 1, scenario.steps.len(), step.title);
            results.push(lab.alternate(step).await);
        }
        let way = Way { command: &command, machine: &machine, others: bystander.others() };
        report::print(scenario, &results, way);
        report::write(scenario, &results, way, &lab.dir)?;
    }
    Ok(())
}

impl Lab {
    /// Runs all contenders alternately, round by round, so that other work on the machine affects all of them.
    async fn alternate(&self, step: &Step) -> Results {
        let mut contenders: Vec<_> = step.contenders.iter().map(|contender| (*contender, Ok(Vec::new()))).collect();
        let rounds = step.rounds.get(self.quick);
        for round in 1..=rounds {
            for (contender, runs) in &mut contenders {
                let Ok(done) = runs else { continue };
                match self.run(step, *contender).await {
                    Ok(run) => {
                        eprintln!("  {round}/{rounds} {contender}: {}", in_short(&run));
                        done.push(run);
                    }
                    Err(why) => {
                        eprintln!("  {round}/{rounds} {contender}: {why}");
                        *runs = Err(why);
                    }
                }
            }
        }
        Results { step: step.clone(), contenders }
    }
}

/// A short summary to show progress.
fn in_short(run: &Run) -> String {
    let shown = [Figure::Throughput, Figure::Cpu, Figure::P99, Figure::Success, Figure::Peak, Figure::FirstAnswer];
    let figure = |figure: Figure| Some(format!("{} {}", figure.show(*run.figures.get(&figure)?), figure.heading()));
    shown.into_iter().filter_map(figure).collect::<Vec<_>>().join(", ")
}
