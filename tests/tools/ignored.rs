//! A test whose needs are not met is never skipped silently.

use std::process::Command;

use crate::support::needs::{Test, tests};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = tests![a_test_that_cannot_run_says_why, where_all_tests_must_run_it_fails];

const SENTENCE: &str = "needs prometheus (apt-get install prometheus)";

/// Runs the tests of this binary whose names contain `real_prometheus`, with a `PATH` without programs. Returns whether
/// they passed, and the output.
fn without_programs(variables: &[(&str, &str)]) -> (bool, String) {
    let mut tests = Command::new(std::env::current_exe().expect("this binary"));
    tests.arg("real_prometheus").env("PATH", "/nonexistent").env_remove("CI").env_remove("METADATA_PROXY_TESTS");
    let run = tests.envs(variables.iter().copied()).output().expect("it can be run");
    (run.status.success(), String::from_utf8(run.stdout).expect("text"))
}

fn a_test_that_cannot_run_says_why() {
    let (passed, output) = without_programs(&[]);
    assert!(passed && output.contains(&format!("ignored ({SENTENCE})")), "{output}");
    assert!(output.contains("0 passed; 0 failed; 1 ignored"), "{output}");
}

fn where_all_tests_must_run_it_fails() {
    for variable in [("METADATA_PROXY_TESTS", "all"), ("CI", "true")] {
        let (passed, output) = without_programs(&[variable]);
        assert!(!passed && output.contains(SENTENCE), "{variable:?}: {output}");
        assert!(output.contains("0 passed; 1 failed; 0 ignored"), "{variable:?}: {output}");
    }
}
