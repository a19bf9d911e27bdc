//! Identification of pods: a node with a toy kubelet and a real API server, and the proxy that must never take one pod
//! for another.
//!
//! Pods are network namespaces with a control group and a process each, made in the order in which a kubelet makes
//! them. Each client in a pod compares the proxy's answers with the facts about itself.
//!
//! Environment variables:
//!
//! - `METADATA_PROXY_FULL_SIZE=1`: the long form, with the release binary. It takes half an hour.
//! - `IDENTITY_BINARY=/path`: this proxy, instead of the one of this source tree.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod bound;
mod cgroups;
mod churn;
mod claims;
mod clients;
mod crowd;
mod dead;
mod doctor;
mod environment;
mod first;
mod fleet;
mod google;
mod handover;
mod heirs;
mod kubelet;
mod leads;
mod limits;
mod load;
mod manifests;
mod memory;
mod naive;
mod operators;
mod outage;
mod pod;
mod proxy_pod;
mod quiet;
mod reporter;
mod rights;
mod sandbox;
mod scan;
mod startup_taint;
mod static_pods;
mod tally;
mod tokens;
mod trees;
mod world;

#[path = "../kube/mod.rs"]
mod kube;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../node/namespace.rs"]
mod namespace;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../node/process.rs"]
mod process;
#[allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use support::needs;
use support::switch::is_full_size;
use support::turn;

/// Requirements of each of these tests (`tests/needs.tsv`).
const NEEDS: [&str; 6] = ["network namespaces", "control groups", "ip", "setpriv", "openssl", "kube-apiserver"];

/// Number of tests that run at once, unless the command line sets it. Each has an API server of its own. In the long form, some
/// measure more.
const AT_ONCE: usize = 3;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(if is_full_size() { 1 } else { AT_ONCE });
    support::open_many_files();
    let with_nft = [&NEEDS[..], &startup_taint::NEEDS].concat();
    let with_clients = [&NEEDS[..], &clients::NEEDS].concat();
    // These wait most of the time.
    let modules = [
        ("environment", environment::TESTS),
        ("heirs", heirs::TESTS),
        ("operators", operators::TESTS),
        ("outage", outage::TESTS),
        ("rights", rights::TESTS),
        ("tokens", tokens::TESTS),
        ("bound", bound::TESTS),
        ("handover", handover::TESTS),
        ("fleet", fleet::TESTS),
        ("trees", trees::TESTS),
        ("doctor", doctor::TESTS),
    ];
    // These have a hundred clients, or measure time.
    let alone = [
        ("naive", naive::TESTS),
        ("first", first::TESTS),
        ("crowd", crowd::TESTS),
        ("dead", dead::TESTS),
        ("heirs", heirs::ALONE),
        ("claims", claims::TESTS),
        ("leads", leads::TESTS),
        ("limits", limits::TESTS),
        ("outage", outage::ALONE),
        ("tokens", tokens::ALONE),
        ("handover", handover::ALONE),
        ("quiet", quiet::TESTS),
        ("memory", memory::TESTS),
        ("churn", churn::TESTS),
    ];
    let trials = modules.iter().flat_map(|(module, tests)| needs::trials(module, &NEEDS, tests));
    let trials = trials.chain(needs::trials("startup_taint", &with_nft, startup_taint::TESTS));
    let trials = trials.chain(needs::trials("rights::files", &[], rights::files::TESTS));
    let trials = trials.chain(needs::trials("static_pods", &static_pods::NEEDS, static_pods::TESTS));
    let trials = trials.chain(needs::trials("manifests", &manifests::NEEDS, manifests::TESTS));
    let trials =
        trials.chain(alone.iter().flat_map(|(module, tests)| needs::trials_in(turn::alone, module, &NEEDS, tests)));
    let trials = trials.chain(needs::trials_in(turn::alone, "clients", &with_clients, clients::TESTS));
    let trials: Vec<Trial> = trials.chain(needs::trials_in(turn::alone, "scan", &scan::NEEDS, scan::TESTS)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
