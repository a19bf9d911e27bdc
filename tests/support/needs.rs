//! The programs and rights that tests need besides Rust: `tests/needs.tsv`.
//!
//! A test whose needs are not met is reported as ignored, with the reason. With `METADATA_PROXY_TESTS=all`, or `CI`, it
//! fails with the same message, unless it needs another kernel: nothing can install that.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Completion, Failed, Trial};

use super::switch::is_on;
use super::turn;

const TABLE: &str = include_str!("../needs.tsv");

/// One row of the table.
#[derive(Debug, Clone, Copy)]
struct Need {
    name: &'static str,
    /// A shell command that succeeds if the need is met.
    check: &'static str,
    /// How to meet the need.
    remedy: &'static str,
}

impl Need {
    fn named(name: &str) -> Self {
        let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
        let mut needs = rows.filter_map(|line| {
            let mut columns = line.split('\t');
            Some(Self { name: columns.next()?, check: columns.next()?, remedy: columns.next()? })
        });
        needs.find(|need| need.name == name).unwrap_or_else(|| panic!("tests/needs.tsv has no row {name}"))
    }

    /// Whether the need is met. Checked once per process.
    fn is_met(self) -> bool {
        static CHECKED: Mutex<BTreeMap<&str, bool>> = Mutex::new(BTreeMap::new());
        let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
        *checked.entry(self.name).or_insert_with(|| {
            let mut shell = Command::new("sh");
            shell.args(["-c", self.check]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            shell.status().is_ok_and(|status| status.success())
        })
    }
}

/// The names of needs that are not met.
pub fn missing(needs: &[&str]) -> Vec<&'static str> {
    unmet(needs).map(|need| need.name).collect()
}

fn unmet(needs: &[&str]) -> impl Iterator<Item = Need> {
    needs.iter().map(|name| Need::named(name)).filter(|need| !need.is_met())
}

/// Whether these needs can be met on this machine.
fn can_be_met(needs: &[&str]) -> bool {
    unmet(needs).all(|need| !need.remedy.starts_with("another kernel"))
}

/// Why a test cannot run: `needs ab, curl (apt-get install apache2-utils curl)`. `None` if it can.
fn obstacle(needs: &[&str]) -> Option<String> {
    let (mut reasons, mut programs, mut packages) = (Vec::new(), Vec::new(), Vec::new());
    for need in unmet(needs) {
        match need.remedy.strip_prefix("apt-get install ") {
            Some(package) => {
                programs.push(need.name);
                packages.push(package);
            }
            None => reasons.push(format!("{} ({})", need.name, need.remedy)),
        }
    }
    if !programs.is_empty() {
        reasons.push(format!("{} (apt-get install {})", programs.join(", "), packages.join(" ")));
    }
    (!reasons.is_empty()).then(|| format!("needs {}", reasons.join(", ")))
}

/// Whether a test fails if it cannot run.
pub fn all_must_run() -> bool {
    let is_all = std::env::var("METADATA_PROXY_TESTS").is_ok_and(|which| which == "all");
    is_all || is_on("CI")
}

/// The outcome of a test that cannot run for this reason: ignored, or failed if [`all_must_run`].
pub fn cannot_run(reason: String) -> Result<Completion, Failed> {
    if all_must_run() { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) }
}

/// A test that runs if its needs are met.
pub fn trial(
    name: impl Into<String>,
    needs: Vec<&'static str>,
    test: impl FnOnce() -> Result<Completion, Failed> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match obstacle(&needs) {
        None => test(),
        Some(reason) if can_be_met(&needs) => cannot_run(reason),
        Some(reason) => Ok(Completion::ignored_with(reason)),
    })
}

/// The tests of a module, which have the same needs. They may run beside each other. A panic is a failure.
pub fn trials<'a>(
    module: &'a str,
    needs: &'a [&'static str],
    tests: &'static [Test],
) -> impl Iterator<Item = Trial> + 'a {
    trials_in(turn::beside_others, module, needs, tests)
}

/// The same for tests that run in this way: [`turn::alone`] or [`turn::beside_others`].
pub fn trials_in<'a>(
    turn: fn(fn()),
    module: &'a str,
    needs: &'a [&'static str],
    tests: &'static [Test],
) -> impl Iterator<Item = Trial> + 'a {
    tests.iter().map(move |(name, test)| {
        trial(format!("{module}::{name}"), needs.to_vec(), move || {
            turn(*test);
            Ok(Completion::Completed)
        })
    })
}

/// The name of a test, and its function.
pub type Test = (&'static str, fn());

/// The tests of a module, with their names. The compiler warns about a test that is left out.
#[allow(unused_macros, reason = "each test binary uses a part of it")]
macro_rules! tests {
    ($($test:ident),+ $(,)?) => {
        &[$((stringify!($test), $test)),+]
    };
}

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use tests;
