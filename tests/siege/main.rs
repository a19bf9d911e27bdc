//! The release binary under siege: one pod is a burden in every way that a pod can be, and the others must not notice.
//!
//! Each test starts the binary in a control group of 25 MiB, with the mock as its upstream. One address of the loopback network is
//! the hostile pod ([`burden`]); others are honest pods that ask for what pods ask for ([`honest`]). No honest request may
//! fail, memory must stay below [`scene::MOST_MEMORY`], sockets' buffers included, and once the hostile pod is gone every
//! gauge must return to its value at rest.
//!
//! On cgroup v2, the kernel counts socket buffers against the same limit. If this computer has cgroup v1, tests named
//! `v2: NAME` run in a small virtual machine with cgroup v2 ([`machine`], `tests/vm`). Its processor is emulated and slow.
//! At CI size, only the sieges run there in which socket buffers matter ([`table::Emulated`]); at full size, all that an
//! emulated processor can bear.
//!
//! `cargo test --test siege -- NAME` runs the tests whose names contain NAME. Environment variables:
//!
//! - `METADATA_PROXY_FULL_SIZE=1`: 60 seconds of every burden, instead of 4, and more sieges in the virtual machine.
//! - `SIEGE_BINARY=/path`: this proxy, instead of the release binary of this source tree.
//! - `SIEGE_AT=ADDRESS:PORT`: only be a burden to the proxy that runs there, whose upstream is
//!   `SIEGE_UPSTREAM=ADDRESS:PORT`: only serve as what the burdens expect of a metadata server. So `deploy/tests/node` lays siege
//!   to a node from a pod, and judges.

mod burden;
mod crowd;
mod gauges;
mod honest;
mod machine;
mod scene;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod table;
mod visit;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use gce_metadata_proxy::mock::Mock;
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use machine::Machine;
use scene::is_full_size;
use support::{cgroup, needs, stall};
use table::{Attack, Emulated, SIEGES, Siege};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Two burdens at once would be measured as one.
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
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The address in an environment variable.
fn address(variable: &str) -> Option<SocketAddr> {
    let given = std::env::var(variable).ok()?;
    Some(given.parse().unwrap_or_else(|_| panic!("{variable}={given} is no address with a port")))
}

/// Serves as the upstream of a proxy that runs elsewhere, until the process is ended.
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

/// The burdens of a siege, for a proxy that runs elsewhere.
fn elsewhere(siege: &'static Siege, addr: SocketAddr) -> Trial {
    Trial::test(siege.name, move || {
        let (hostile, waiting) = (threads(2, niceness(siege))?, threads(1, 0)?);
        let connections = waiting.block_on(scene::burden_alone(siege, addr, hostile.handle()));
        hostile.shutdown_background();
        println!("{}: {connections} connections at {addr}", siege.name);
        Ok(())
    })
}

/// A siege on this computer.
fn here(siege: &'static Siege) -> Trial {
    needs::trial(siege.name, vec!["control groups"], move || {
        let proxy = proxy()?;
        for plays in 1.. {
            let began = Instant::now();
            let played = play(siege, proxy)?;
            match stall::longest_since(began) {
                Some(stall) if played.is_err() && plays < MAX_PLAYS => {
                    println!("{}: again, because the computer stood still for {stall:?}", siege.name);
                }
                _ => {
                    played?;
                    return Ok(Completion::Completed);
                }
            }
        }
        unreachable!("the last play counts")
    })
}

/// How often a siege is played, if it fails while the computer stands still.
const MAX_PLAYS: usize = 3;

fn play(siege: &'static Siege, proxy: &Path) -> io::Result<Result<(), String>> {
    // Threads of their own, or the upstream and honest pods would wait for thousands of hostile tasks.
    let (upstream, hostile, honest) = (threads(1, 0)?, threads(2, niceness(siege))?, threads(1, 0)?);
    let mock = upstream.block_on(Mock::start());
    let played = honest.block_on(scene::play(siege, proxy, &mock, hostile.handle()));
    // Whoever is still connected is cut off.
    [upstream, hostile, honest].into_iter().for_each(Runtime::shutdown_background);
    Ok(played)
}

/// How far the threads of a siege stand back for the upstream's. A hostile pod may overload the proxy, not the computer of the
/// test. A crowd means no harm, and loses connections on which it comes to ask too late.
fn niceness(siege: &Siege) -> i32 {
    match siege.attack {
        Attack::Burdens(_) => 10,
        Attack::Crowd(_) => 0,
    }
}

fn threads(number: usize, niceness: i32) -> io::Result<Runtime> {
    let lower = move || {
        // Where it may not, it is as fast as the others.
        let _ = rustix::process::nice(niceness);
    };
    Builder::new_multi_thread().worker_threads(number).on_thread_start(lower).enable_all().build()
}

/// The same sieges in a virtual machine. All that were asked for run in one machine, which is booted for the first of them.
fn on_version_2(arguments: &Arguments) -> Vec<Trial> {
    let name = |siege: &Siege| format!("v2: {}", siege.name);
    let sieges = || SIEGES.iter().filter(|siege| is_emulated(siege));
    let wanted = sieges().filter(|siege| is_wanted(arguments, &name(siege))).map(|siege| siege.name).collect();
    let machine = Arc::new(Machine::new(wanted));
    let trial = |siege: &'static Siege| {
        let machine = Arc::clone(&machine);
        let needs = vec!["qemu", "busybox", "cpio", "apt-get", "setpriv"];
        needs::trial(name(siege), needs, move || machine.result(siege.name, proxy()?))
    };
    sieges().map(trial).collect()
}

/// Whether this siege runs in the virtual machine.
fn is_emulated(siege: &Siege) -> bool {
    match siege.emulated {
        Emulated::Always => true,
        Emulated::AtFullSize => is_full_size(),
        Emulated::Never => false,
    }
}

/// Whether the command line asks for the test of this name.
fn is_wanted(arguments: &Arguments, name: &str) -> bool {
    let matches = |pattern: &String| if arguments.exact { name == pattern } else { name.contains(pattern.as_str()) };
    arguments.filter.as_ref().is_none_or(matches) && !arguments.skip.iter().any(matches)
}

/// The proxy's binary: the one of `SIEGE_BINARY`, or else this source tree's, built for release.
fn proxy() -> Result<&'static Path, String> {
    static PROXY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let proxy = PROXY.get_or_init(|| match std::env::var_os("SIEGE_BINARY") {
        Some(path) => Ok(path.into()),
        None => support::release_build(),
    });
    proxy.as_deref().map_err(Clone::clone)
}
