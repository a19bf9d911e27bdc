//! The virtual machine with cgroup v2, for computers that have cgroup v1 (`tests/vm`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::{Completion, Failed};
use tokio::time::Instant;

use crate::report;
use crate::scene::{EMULATED, SLOWNESS};
use crate::support::stall::{self, Waits};
use crate::support::switch::is_full_size;
use crate::support::{needs, vm};

/// Maximum number of boots for the tests that have no valid result yet. Emulated kernels crash now and then. The last
/// result of a test always counts.
const BOOTS: usize = 3;

/// Maximum duration of a test per round, in seconds.
const TEST_LIMIT: usize = 300;

/// A machine that runs tests of this binary.
pub(crate) struct Machine {
    /// The tests to run, by their names outside the machine.
    wanted: Vec<&'static str>,
    results: OnceLock<Result<Results, Trouble>>,
}

/// Results by test.
type Results = BTreeMap<String, Outcome>;

struct Outcome {
    code: i32,
    /// Output of the test.
    output: String,
    /// Duration of the test.
    took: Duration,
    /// Time that a processor of the machine waited for one of this computer during the test. Without other load, about
    /// 6 % of the duration.
    waited: Duration,
}

impl Outcome {
    /// Whether the result counts, although the test could be run again. The machine cannot know that this computer is
    /// busy, and a proxy that does not run while its clock does gives up waiting.
    fn counts(&self) -> bool {
        self.code == 0 || self.waited < stall::MIN_WAIT.max(self.took / 10)
    }
}

enum Trouble {
    /// This computer cannot provide the machine.
    Cannot(String),
    /// The machine fails although this computer should provide it.
    Failed(String),
}

impl Machine {
    /// A machine for these tests. Does not boot it yet.
    pub(crate) fn new(wanted: Vec<&'static str>) -> Self {
        Self { wanted, results: OnceLock::new() }
    }

    /// The result of one of the tests. The first call runs all of them, with this proxy.
    pub(crate) fn result(&self, name: &str, proxy: &Path) -> Result<Completion, Failed> {
        match self.results.get_or_init(|| self.run_all(proxy)) {
            Err(Trouble::Cannot(reason)) => needs::cannot_run(reason.clone()),
            Err(Trouble::Failed(reason)) => Err(reason.into()),
            Ok(results) => match results.get(name) {
                Some(Outcome { code: 0, .. }) => Ok(Completion::Completed),
                Some(Outcome { output, .. }) => Err(fault_in(name, output).into()),
                None => Err("the machine ended before this test did".into()),
            },
        }
    }

    fn run_all(&self, proxy: &Path) -> Result<Results, Trouble> {
        let proxy = proxy.canonicalize().map_err(|error| Trouble::Failed(error.to_string()))?;
        let mut results = Results::new();
        for _ in 0..BOOTS {
            let is_missing = |name: &&str| !results.get(*name).is_some_and(Outcome::counts);
            let missing: Vec<&str> = self.wanted.iter().copied().filter(is_missing).collect();
            if missing.is_empty() {
                break;
            }
            results.append(&mut boot(&missing, &proxy)?);
        }
        Ok(results)
    }
}

/// Boots once and runs these tests, each in a process of its own. Their needs are met outside; inside, no test may be
/// ignored.
fn boot(names: &[&str], proxy: &Path) -> Result<Results, Trouble> {
    let failed = |error: std::io::Error| Trouble::Failed(format!("tests/vm/run: {error}"));
    let tests = std::env::current_exe().map_err(failed)?;
    let limit = TEST_LIMIT * report::rounds().unwrap_or(1);
    let command = format!(
        "export SIEGE_BINARY={} {EMULATED}=1 METADATA_PROXY_TESTS=all {} {}; for name in {}; do \
         echo \"siege: begin $name\"; timeout {limit} {} --exact \"$name\"; echo \"siege: end $?\"; done",
        proxy.display(),
        if is_full_size() { "METADATA_PROXY_FULL_SIZE=1" } else { "" },
        report::rounds().map_or_else(String::new, |rounds| format!("{}={rounds}", report::ROUNDS)),
        names.join(" "),
        tests.display(),
    );
    let mut run = vm::run();
    run.arg("-t").arg((60 + limit * names.len()).to_string()).arg("-f").arg(&tests).arg("-f").arg(proxy);
    let mut child = run.arg(command).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let stdout = child.stdout.take().map(BufReader::new).into_iter();
    let machine = child.id();
    let results = results_in(stdout.flat_map(BufRead::lines).map_while(Result::ok), || Waits::below(machine));
    let status = child.wait().map_err(failed)?;
    if vm::is_unavailable(status) {
        return Err(Trouble::Cannot(
            "needs a virtual machine with cgroup v2 (standard error says why there is none)".to_owned(),
        ));
    }
    Ok(results)
}

/// The failure message of a test, without the text that the test harness adds.
fn fault_in(name: &str, output: &str) -> String {
    let said = output.split_once(&format!("---- {name} ----\n")).and_then(|(_, rest)| rest.split_once("\n\n"));
    said.map_or(output, |(fault, _)| fault).to_owned()
}

/// Parses the machine's output, and prints summary lines as they arrive. `waits` returns the time that the machine has
/// waited for a processor so far.
fn results_in(lines: impl Iterator<Item = String>, waits: impl Fn() -> Waits) -> Results {
    let (mut results, mut began, mut waits_before) = (Results::new(), Instant::now(), Waits::default());
    let (mut name, mut output) = (String::new(), String::new());
    for line in lines {
        if let Some(next) = line.strip_prefix("siege: begin ") {
            next.clone_into(&mut name);
            output.clear();
            (began, waits_before) = (Instant::now(), waits());
        } else if let Some(code) = line.strip_prefix("siege: end ") {
            let (took, waited) = (began.elapsed(), waits().longest_since(&waits_before));
            let code = code.parse().unwrap_or(-1);
            let outcome = Outcome { code, output: std::mem::take(&mut output), took, waited };
            println!("v2: {name}: exit code {code}; the machine waited {waited:?} of {took:?} for a processor");
            results.insert(std::mem::take(&mut name), outcome);
        } else {
            if report::add_handed(&line) {
                continue;
            } else if let Some(sum) = line.find(": peak ") {
                println!("v2: {name}{}", &line[sum..]);
            } else if line.starts_with("vm: ") || line.contains(SLOWNESS) {
                println!("{line}");
            }
            output.push_str(&line);
            output.push('\n');
        }
    }
    results
}
