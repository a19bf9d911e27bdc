//! The proxy in its environment: a node and two pods made of network namespaces, the mock metadata server in a
//! third one at the real addresses, and the redirect between them.
//!
//! Needs root and some tools; without them, the tests are reported as ignored. Nothing outside the namespaces is
//! changed, and they are removed when a test ends, even if it fails.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod attacks;
mod bound;
mod canary;
mod check;
mod closed;
mod daemonset;
mod dataplane;
mod doors;
mod first_edition;
mod handover;
mod installing;
mod ipv6;
#[allow(unused_imports, reason = "each test binary uses a part of it")]
#[path = "../kube/mod.rs"]
mod kube;
mod kube_proxy;
mod machine;
mod namespace;
mod policy;
mod process;
mod reboot;
mod refusing;
mod sandboxes;
mod sidecar;
mod spoof;
mod stopping;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

use support::needs::{self, Test};
use support::{turn, vm};

/// The needs of each of these tests (`tests/needs.tsv`).
const NEEDS: [&str; 6] = ["network namespaces", "ip", "nft", "iptables", "curl", "setpriv"];

/// Number of tests that run at once, unless the command line sets it. Most of them wait for a keeper, which looks each 30 s.
const AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let modules = [
        ("attacks", attacks::rules::TESTS),
        ("attacks", attacks::pods::TESTS),
        ("bound", bound::TESTS),
        ("canary", canary::TESTS),
        ("check", check::TESTS),
        ("closed", closed::TESTS),
        ("daemonset", daemonset::TESTS),
        ("dataplane", dataplane::TESTS),
        ("doors", doors::TESTS),
        ("first_edition", first_edition::TESTS),
        ("installing", installing::TESTS),
        ("ipv6", ipv6::TESTS),
        ("policy", policy::TESTS),
        ("refusing", refusing::TESTS),
        ("sidecar", sidecar::TESTS),
        ("spoof", spoof::TESTS),
        ("stopping", stopping::TESTS),
    ];
    // These measure time.
    let alone =
        [("bound", bound::ALONE), ("handover", handover::TESTS), ("ipv6", ipv6::ALONE), ("reboot", reboot::TESTS)];
    let trials = modules.iter().flat_map(|(module, tests)| needs::trials(module, &NEEDS, tests));
    let with_tc = [&NEEDS[..], &["tc with clsact and mirred"]].concat();
    let trials = trials.chain(needs::trials("dataplane", &with_tc, dataplane::WITH_TC));
    let on_a_machine = [&NEEDS[..], &["machine's own network"]].concat();
    let trials = trials.chain(needs::trials("sidecar", &on_a_machine, sidecar::ON_A_MACHINE));
    let with_macvlan = [&NEEDS[..], &["macvlan"]].concat();
    let trials = trials.chain(needs::trials("attacks", &with_macvlan, attacks::pods::WITH_MACVLAN));
    let with_python = [&NEEDS[..], &["python3"]].concat();
    let mut trials: Vec<Trial> =
        trials.chain(needs::trials("attacks", &with_python, attacks::packets::TESTS)).collect();
    let with_kube_proxy = [&NEEDS[..], &kube_proxy::NEEDS].concat();
    trials.extend(needs::trials("kube_proxy", &with_kube_proxy, kube_proxy::TESTS));
    trials.extend(kube_proxy::WITH_IPVS.iter().map(|test| with_ipvs(&with_kube_proxy, *test)));
    let sandboxes = needs::trials("sandboxes", &["control groups", "network namespaces", "ip"], sandboxes::TESTS);
    trials.extend(sandboxes);
    trials.extend(alone.iter().flat_map(|(module, tests)| needs::trials_in(turn::alone, module, &NEEDS, tests)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A test of IPVS, on this kernel if it has that, otherwise on another.
fn with_ipvs(needed: &[&'static str], (name, test): Test) -> Trial {
    let is_elsewhere = machine::is_wanted() && !needs::missing(&["IPVS"]).is_empty();
    let place: &[&str] = if is_elsewhere { &vm::NEEDS } else { &["IPVS"] };
    let name = format!("kube_proxy::{name}");
    needs::trial(name.clone(), [needed, &["ipset"], place].concat(), move || {
        turn::alone(|| {
            if is_elsewhere {
                return machine::run(&name);
            }
            test();
            Ok(Completion::Completed)
        })
    })
}
