//! The release binary under hostile load: one pod creates every kind of load that a pod can, and other pods must not
//! notice.
//!
//! Each test starts the binary in a control group of 25 MiB, with the mock as its upstream. One address of the loopback
//! network is the hostile pod ([`burden`]); others are honest pods with the requests of usual pods ([`honest`]). No
//! honest request may fail, memory must stay below [`scene::MOST_MEMORY`], socket buffers included, and once the
//! hostile pod is gone, every gauge must return to its value at rest.
//!
//! On cgroup v2, the kernel counts socket buffers against the same limit. If this computer has cgroup v1, tests named
//! `v2: NAME` run in a small virtual machine with cgroup v2 ([`machine`], `tests/vm`). Its processor is emulated and
//! slow. At CI size, it runs only the tests in which socket buffers matter ([`table::Emulated`]); at full size, all
//! tests that an emulated processor can handle.
//!
//! `cargo test --test siege -- NAME` runs the tests whose names contain NAME. Environment variables:
//!
//! - `METADATA_PROXY_FULL_SIZE=1`: 60 seconds of every load, instead of 4, and more tests in the virtual machine.
//! - `SIEGE_ROUNDS=3`: runs each test three times, and prints a table of all at the end, as in benches/RESULTS.md. With
//!   `METADATA_PROXY_FULL_SIZE=1` each round of `30m_` takes half an hour, and each round of all tests an hour.
//! - `SIEGE_BINARY=/path`: tests this proxy, instead of the release binary of this source tree.
//! - `SIEGE_AT=ADDRESS:PORT`: only creates the load, on the proxy that runs at this address and has the following
//!   upstream.
//! - `SIEGE_UPSTREAM=ADDRESS:PORT`: only runs the metadata server that the load expects. `deploy/tests/node` uses both
//!   to attack a node from a pod, and judges the outcome.

mod burden;
mod crowd;
mod gauges;
mod honest;
mod machine;
#[allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#[path = "../node/namespace.rs"]
mod namespace;
mod report;
mod scene;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod table;
mod visit;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Completion, Trial};
use mock::Mock;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use machine::Machine;
use namespace::Namespace;
use scene::{Played, is_emulated};
use support::switch::is_full_size;
use support::{cgroup, needs, stall, vm};
use table::{Attack, Emulated, Family, SIEGES, Siege};
use visit::PREFIX;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Two loads at once would be measured as one.
    arguments.test_threads = Some(1);
    support::open_many_files();
    stall::watch(0);

    if let Some(addr) = address("SIEGE_UPSTREAM") {
        return serve(addr);
    }
    if let Some(addr) = address("SIEGE_AT") {
        return libtest_mimic::run(&arguments, SIEGES.iter().map(|siege| elsewhere(siege, addr)).collect()).exit_code();
    }
    let mut trials: Vec<Trial> = SIEGES.iter().map(here).collect();
    if !cgroup::is_version_2() {
        trials.extend(on_version_2(&arguments));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if report::rounds().is_some() {
        report::print(is_emulated());
    }
    conclusion.exit_code()
}

/// The address in an environment variable.
fn address(variable: &str) -> Option<SocketAddr> {
    let given = std::env::var(variable).ok()?;
    Some(given.parse().unwrap_or_else(|_| panic!("{variable}={given} is no address with a port")))
}

/// Runs the upstream of a proxy that runs elsewhere, until the process is ended.
fn serve(addr: SocketAddr) -> ExitCode {
    let serving = async {
        let mock = Mock::start_on(addr).await?;
        burden::prepare(&mock);
        println!("upstream of a siege on {addr}");
        burden::change(&mock).await;
        Ok::<_, io::Error>(())
    };
    match threads(1, 0).and_then(|runtime| runtime.block_on(serving)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot serve on {addr}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The load of a test, for a proxy that runs elsewhere.
fn elsewhere(siege: &'static Siege, addr: SocketAddr) -> Trial {
    Trial::test(siege.name, move || {
        let (hostile, waiting) = (threads(2, niceness(siege))?, threads(1, 0)?);
        let connections = waiting.block_on(scene::burden_alone(siege, addr, hostile.handle()));
        hostile.shutdown_background();
        println!("{}: {connections} connections at {addr}", siege.name);
        Ok(())
    })
}

/// A test on this computer.
fn here(siege: &'static Siege) -> Trial {
    let needs: &[&str] = match siege.family {
        Family::V4 => &["control groups"],
        Family::V6 => &["control groups", "network namespaces", "ip"],
    };
    needs::trial(siege.name, needs.to_vec(), move || {
        let proxy = proxy()?;
        let rounds = 0..report::rounds().unwrap_or(1);
        let faults: Vec<String> = rounds.filter_map(|_| valid_play(siege, proxy).err()).collect();
        if faults.is_empty() { Ok(Completion::Completed) } else { Err(faults.join("\n").into()) }
    })
}

/// Runs a test, and runs it again if it fails while the computer stalls.
fn valid_play(siege: &'static Siege, proxy: &'static Path) -> Result<(), String> {
    for plays in 1.. {
        let began = Instant::now();
        let Played { row, judged } = match siege.family {
            Family::V4 => play(siege, proxy),
            Family::V6 => play_on_ipv6(siege, proxy),
        }?;
        match stall::longest_since(began) {
            Some(stall) if judged.is_err() && plays < MAX_PLAYS => {
                println!("{}: again, because the computer stood still for {stall:?}", siege.name);
            }
            _ => {
                report::add(row);
                return judged;
            }
        }
    }
    unreachable!("the last play counts")
}

/// Maximum number of runs of a test that fails while the computer stalls.
const MAX_PLAYS: usize = 3;

/// Runs the test in a network namespace whose loopback network has all addresses of a prefix.
fn play_on_ipv6(siege: &'static Siege, proxy: &'static Path) -> Result<Played, String> {
    let namespace = Namespace::new(&format!("siege-{}", std::process::id()));
    namespace.sh(&format!("echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind; ip -6 route add local {PREFIX} dev lo"));
    namespace.spawn(move || play(siege, proxy)).join().map_err(|_| "it panicked".to_owned())?
}

fn play(siege: &'static Siege, proxy: &Path) -> Result<Played, String> {
    let threads = |number, niceness| threads(number, niceness).map_err(|error| error.to_string());
    // Separate threads; otherwise the upstream and honest pods would wait for thousands of hostile tasks.
    let (upstream, hostile, honest) = (threads(1, 0)?, threads(2, niceness(siege))?, threads(1, 0)?);
    let mock = upstream.block_on(Mock::start());
    let played = honest.block_on(scene::play(siege, proxy, &mock, hostile.handle()));
    // Ends all remaining connections.
    [upstream, hostile, honest].into_iter().for_each(Runtime::shutdown_background);
    played
}

/// Niceness of the hostile threads, relative to the upstream's. A hostile pod may overload the proxy, but not the
/// computer that runs the test. A crowd is not hostile, and loses connections if its requests come too late.
fn niceness(siege: &Siege) -> i32 {
    match siege.attack {
        Attack::Burdens(_) => 10,
        Attack::Crowd(_) => 0,
    }
}

fn threads(number: usize, niceness: i32) -> io::Result<Runtime> {
    let lower = move || {
        // If this is not permitted, the thread keeps its priority.
        let _ = rustix::process::nice(niceness);
    };
    Builder::new_multi_thread().worker_threads(number).on_thread_start(lower).enable_all().build()
}

/// The same tests in a virtual machine. All requested tests run in one machine, which is booted for the first of them.
fn on_version_2(arguments: &Arguments) -> Vec<Trial> {
    let name = |siege: &Siege| format!("v2: {}", siege.name);
    let sieges = || SIEGES.iter().filter(|siege| runs_emulated(siege));
    let wanted = sieges().filter(|siege| is_wanted(arguments, &name(siege))).map(|siege| siege.name).collect();
    let machine = Arc::new(Machine::new(wanted));
    let trial = |siege: &'static Siege| {
        let machine = Arc::clone(&machine);
        needs::trial(name(siege), vm::NEEDS.to_vec(), move || machine.result(siege.name, proxy()?))
    };
    sieges().map(trial).collect()
}

/// Whether this test runs in the virtual machine.
fn runs_emulated(siege: &Siege) -> bool {
    match siege.emulated {
        Emulated::Always => true,
        Emulated::AtFullSize => is_full_size(),
        Emulated::Never => false,
    }
}

/// Whether the command line requests the test of this name.
fn is_wanted(arguments: &Arguments, name: &str) -> bool {
    let matches = |pattern: &String| if arguments.exact { name == pattern } else { name.contains(pattern.as_str()) };
    arguments.filter.as_ref().is_none_or(matches) && !arguments.skip.iter().any(matches)
}

/// The proxy's binary: from `SIEGE_BINARY`, otherwise the release build of this source tree.
fn proxy() -> Result<&'static Path, String> {
    static PROXY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let proxy = PROXY.get_or_init(|| match std::env::var_os("SIEGE_BINARY") {
        Some(path) => Ok(path.into()),
        None => support::release_build(),
    });
    // Otherwise the pages of a program that was not run for a while are charged to the first proxy: 12 MiB, where 1 is left.
    if let Ok(path) = proxy {
        fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    proxy.as_deref().map_err(Clone::clone)
}
