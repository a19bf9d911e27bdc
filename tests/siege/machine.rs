//! The virtual machine with cgroup v2, for computers whose own is v1 (`tests/vm`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use libtest_mimic::{Completion, Failed};

use crate::scene::{EMULATED, is_full_size};
use crate::support::needs;

/// How often a machine is booted for the tests that have no result yet. Emulated kernels crash now and then.
const BOOTS: usize = 3;

/// Seconds that one test may take.
const TEST_LIMIT: usize = 300;

/// What `tests/vm/run` exits with where the machine cannot be had.
const CANNOT: i32 = 77;

/// A machine that runs tests of this binary.
pub(crate) struct Machine {
    /// The tests to be run, by their names outside.
    wanted: Vec<&'static str>,
    results: OnceLock<Result<Results, Trouble>>,
}

/// What became of each test: its exit code, and what it wrote.
type Results = BTreeMap<String, (i32, String)>;

enum Trouble {
    /// This computer cannot have the machine.
    Cannot(String),
    /// It cannot be used although it should.
    Failed(String),
}

impl Machine {
    /// A machine for these tests. Nothing is booted yet.
    pub(crate) fn new(wanted: Vec<&'static str>) -> Self {
        Self { wanted, results: OnceLock::new() }
    }

    /// What became of one of the tests. The first call runs all of them, with this proxy.
    pub(crate) fn result(&self, name: &str, proxy: &Path) -> Result<Completion, Failed> {
        match self.results.get_or_init(|| self.run_all(proxy)) {
            Err(Trouble::Cannot(reason)) => needs::cannot_run(reason.clone()),
            Err(Trouble::Failed(reason)) => Err(reason.into()),
            Ok(results) => match results.get(name) {
                Some((0, _)) => Ok(Completion::Completed),
                Some((_, output)) => Err(fault_in(name, output).into()),
                None => Err("the machine ended before this test did".into()),
            },
        }
    }

    fn run_all(&self, proxy: &Path) -> Result<Results, Trouble> {
        let proxy = proxy.canonicalize().map_err(|error| Trouble::Failed(error.to_string()))?;
        let mut results = Results::new();
        for _ in 0..BOOTS {
            let missing: Vec<&str> = self.wanted.iter().copied().filter(|name| !results.contains_key(*name)).collect();
            if missing.is_empty() {
                break;
            }
            results.append(&mut boot(&missing, &proxy)?);
        }
        Ok(results)
    }
}

/// Boots once and runs these tests, each in a process of its own. Outside, their needs were met; there, nothing may be ignored.
fn boot(names: &[&str], proxy: &Path) -> Result<Results, Trouble> {
    let failed = |error: std::io::Error| Trouble::Failed(format!("tests/vm/run: {error}"));
    let tests = std::env::current_exe().map_err(failed)?;
    let command = format!(
        "export SIEGE_BINARY={} {EMULATED}=1 METADATA_PROXY_TESTS=all {}; for name in {}; do \
         echo \"siege: begin $name\"; timeout {TEST_LIMIT} {} --exact \"$name\"; echo \"siege: end $?\"; done",
        proxy.display(),
        if is_full_size() { "METADATA_PROXY_FULL_SIZE=1" } else { "" },
        names.join(" "),
        tests.display(),
    );
    // The machine must not outlive this process.
    let mut run = Command::new("setpriv");
    run.args(["--pdeathsig", "TERM", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/run")]);
    run.arg("-t").arg((60 + TEST_LIMIT * names.len()).to_string()).arg("-f").arg(&tests).arg("-f").arg(proxy);
    let mut child = run.arg(command).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let stdout = child.stdout.take().map(BufReader::new).into_iter();
    let results = results_in(stdout.flat_map(BufRead::lines).map_while(Result::ok));
    let status = child.wait().map_err(failed)?;
    if status.code() == Some(CANNOT) {
        return Err(Trouble::Cannot(
            "needs a virtual machine with cgroup v2 (standard error says why there is none)".to_owned(),
        ));
    }
    Ok(results)
}

/// What a test says of its failure, without what the test harness writes around it.
fn fault_in(name: &str, output: &str) -> String {
    let said = output.split_once(&format!("---- {name} ----\n")).and_then(|(_, rest)| rest.split_once("\n\n"));
    said.map_or(output, |(fault, _)| fault).to_owned()
}

/// Takes the machine's output apart, and shows the lines that sum up as they come.
fn results_in(lines: impl Iterator<Item = String>) -> Results {
    let mut results = Results::new();
    let (mut name, mut output) = (String::new(), String::new());
    for line in lines {
        if let Some(next) = line.strip_prefix("siege: begin ") {
            next.clone_into(&mut name);
            output.clear();
        } else if let Some(code) = line.strip_prefix("siege: end ") {
            results.insert(std::mem::take(&mut name), (code.parse().unwrap_or(-1), std::mem::take(&mut output)));
        } else {
            if let Some(sum) = line.find(": peak ") {
                println!("v2: {name}{}", &line[sum..]);
            } else if line.starts_with("vm: ") {
                println!("{line}");
            }
            output.push_str(&line);
            output.push('\n');
        }
    }
    results
}
