//! Tests that need a program or a right that may be missing on a machine: Prometheus, `ab`, control groups.
//!
//! Each lists its needs. If they are not met, it is reported as ignored with the reason (`tests/support/needs.rs`).

mod crowd;
mod ignored;
mod prometheus;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Builder;

use support::needs::trials;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A crowd needs the processor to itself.
    arguments.test_threads = Some(1);
    let trials: Vec<Trial> = trials("crowd", &["ab", "control groups"], crowd::TESTS)
        .chain(trials("ignored", &[], ignored::TESTS))
        .chain(trials("prometheus", &["promtool"], prometheus::WITH_PROMTOOL))
        .chain(trials("prometheus", &["prometheus"], prometheus::WITH_PROMETHEUS))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a test on two threads, like the other scenarios.
fn block_on(test: impl Future<Output = ()>) {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime").block_on(test);
}
