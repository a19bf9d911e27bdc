//! The fleet laboratory: thousands of nodes with the proxy's own cache, renewal, prefetch and hand-over on a virtual clock, against
//! a Security Token Service with a quota.
//!
//! `cargo bench --profile fleet --bench fleet -- [SCENARIO...] [--nodes=N] [--pods=N] [--quota=N] [--plots]`

#![expect(unreachable_pub, reason = "modules of a program have no outside")]

mod node;
mod pods;
mod report;
mod scenarios;
mod servers;
mod size;

use std::process::ExitCode;

use tokio::time::Instant;

use scenarios::NAMES;
use size::Size;

fn main() -> ExitCode {
    if !cfg!(debug_assertions) {
        // The clock of a release build is the kernel's.
        eprintln!("fleet: run it with `cargo bench --profile fleet --bench fleet`");
        return ExitCode::SUCCESS;
    }
    let mut size = Size { nodes: 1000, pods: 30, quota: 1200 };
    let (mut names, mut has_plots) = (Vec::new(), false);
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("--nodes", number)) => size.nodes = number.parse().expect("a number"),
            Some(("--pods", number)) => size.pods = number.parse().expect("a number"),
            Some(("--quota", number)) => size.quota = number.parse().expect("a number"),
            _ if argument == "--bench" => {}
            _ if argument == "--plots" => has_plots = true,
            _ if NAMES.contains(&&*argument) => names.push(argument),
            _ => panic!("{argument}: not one of {NAMES:?}, --nodes=, --pods=, --quota= and --plots"),
        }
    }
    if names.is_empty() {
        names = NAMES.map(str::to_owned).to_vec();
    }
    #[cfg(debug_assertions)]
    base::clock::never_suspend();
    println!("{}", report::HEAD);
    let mut exceeded = Vec::new();
    for name in names {
        // Outside of the runtime, which has a clock of its own.
        let began = Instant::now();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        let outcome = runtime.block_on(scenarios::run(&name, size));
        println!("{}", outcome.row());
        if has_plots {
            println!("\n{}", outcome.plot());
        }
        exceeded.extend(outcome.exceeded());
        eprintln!("{name}: {:.0} s, {} MiB", began.elapsed().as_secs_f64(), memory());
    }
    for bound in &exceeded {
        eprintln!("exceeded in {bound}");
    }
    if exceeded.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Most memory so far, in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) / 1024
}
