//! Clients in pods with identities: Google's libraries get tokens of their own pod's account, and detectors find the
//! machine that they run on. Prints a table of them.

#[allow(dead_code, reason = "a part of the programs is used")]
#[path = "../clients/client/install.rs"]
mod install;
#[allow(dead_code, reason = "a part of the programs is used")]
#[path = "../clients/client/program.rs"]
mod program;

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;

use mock::google::Subject;
use serde_json::Value;
use tokio::runtime::Builder;

use crate::google::{Cloud, world_with_google};
use crate::kube::NODE;
use crate::pod::Pod;
use crate::support::needs::{Test, tests};
use crate::tokens::{email, linked_accounts, proxy};
use crate::world::World;
use program::Program::{self, Go, Java, Node, Python, Replay};

pub const TESTS: &[Test] =
    tests![real_clients_get_tokens_of_their_own_account, google_auth_gets_a_token_that_is_bound_to_its_certificate];

/// Requirements in addition to those of all tests here.
pub const NEEDS: [&str; 5] = ["python3", "go", "node", "java", "maven"];

/// Time after which a program that hangs fails its test, in seconds.
const PATIENCE: &str = "90";

/// Accounts. Each client runs in a pod of each.
const ACCOUNTS: u8 = 3;

/// Programs of `tests/clients`, and the steps of each, in order.
const CLIENTS: [(Program, &[&str]); 18] = [
    (
        Python { lock: "google-auth", module: "with_google_auth" },
        &["project", "token", "account", "scoped", "refresh", "identity"],
    ),
    (Go { module: "current", library: "metadata" }, &["token", "account", "scoped", "refresh", "identity"]),
    (Go { module: "current", library: "auth" }, &["scoped", "refresh"]),
    (Node { lock: "current", library: "gcp-metadata" }, &["token", "account", "scoped", "refresh", "identity"]),
    (Node { lock: "current", library: "google-auth-library" }, &["token", "account", "scoped", "refresh"]),
    (
        Java { lock: "current", library: "WithGoogleAuth" },
        &["detect", "token", "account", "scoped", "refresh", "identity"],
    ),
    (Python { lock: "google-auth", module: "with_agent_identity" }, &["bound", "scoped", "refresh"]),
    (Python { lock: "google-auth", module: "with_kafka" }, &["account", "scoped", "refresh"]),
    (Node { lock: "firebase", library: "firebase-admin" }, &["token", "refresh"]),
    (Go { module: "current", library: "istio" }, &["detect", "crawl"]),
    (Go { module: "current", library: "detector" }, &["platform"]),
    (Node { lock: "current", library: "@opentelemetry/resource-detector-gcp" }, &["platform", "machine"]),
    (Java { lock: "current", library: "WithOpenTelemetry" }, &["platform", "machine"]),
    (Replay { program: "dotnet" }, &["crawl"]),
    (Replay { program: "new-relic" }, &["crawl"]),
    (Replay { program: "elastic-apm" }, &["crawl"]),
    (Replay { program: "beats" }, &["crawl"]),
    (Replay { program: "facter" }, &["crawl"]),
];

/// The ID of the mock's machine.
const MACHINE: &str = "4520031799277581759";

/// Steps that yield a token.
const TOKENS: [&str; 4] = ["token", "scoped", "refresh", "identity"];

fn real_clients_get_tokens_of_their_own_account() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (program, _) in CLIENTS {
        runtime.block_on(program.install()).unwrap_or_else(|error| panic!("{program:?}: {error}"));
    }
    let world = World::new();
    let mut api = world.server.admin();
    let google = Arc::new(Cloud::start(&world, &mut api));
    linked_accounts(&mut api, &google, ACCOUNTS);
    let _proxy = proxy(&world, &google, &[]);
    let (mut seen, mut table) = (0, String::from("| program | in a pod with an identity |\n|---|---|\n"));
    for (number, (program, steps)) in (0u8..).zip(CLIENTS) {
        // Pods of all accounts at once, each with the same program.
        let pods: Vec<_> = (0..ACCOUNTS)
            .map(|account| {
                let name = format!("client-{number}-{account}");
                let object = api.create_pod("team-0", &name, &format!("app-{account}"), NODE);
                Pod::start(&world.node, object, world.address(number * ACCOUNTS + account))
            })
            .collect();
        let running: Vec<_> = pods
            .into_iter()
            .map(|pod| {
                // The thread enters the pod's network; programs that it starts are there, too.
                std::thread::spawn(move || (Arc::clone(&pod), pod.inside(move |pod| run(program, steps, pod, &[]))))
            })
            .collect();
        for client in running {
            let (pod, told) = client.join().expect("no panic");
            seen += check(&pod, steps, &told, &google);
        }
        let _ = writeln!(table, "| {program:?} | {}: ok |", steps.join(", "));
    }
    println!("{table}");
    println!("{seen} tokens of {} programs in {ACCOUNTS} pods each, all their own", CLIENTS.len());
}

/// The agent certificate of the pod names its account, as GKE's does; the program makes it.
fn google_auth_gets_a_token_that_is_bound_to_its_certificate() {
    const AGENT: Program = Python { lock: "google-auth", module: "with_agent_identity" };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(AGENT.install()).expect("it can be installed");
    let (world, mut api, google) = world_with_google();
    let _proxy = proxy(&world, &google, &["--bound-tokens"]);
    for (number, name, agent) in [(0, "plain", "ns/team-0/sa/plain"), (1, "other", "ns/team-0/sa/plain")] {
        api.create_account("team-0", name);
        let pod = Pod::start(&world.node, api.create_pod("team-0", name, name, NODE), world.address(number));
        let told = pod.inside(move |pod| run(AGENT, &["bound", "scoped"], pod, &[("AGENT", agent)]));
        let subject = |step: &str| subject(&told["steps"][step]["ok"], &google);
        let plain = subject("scoped").unwrap_or_else(|| panic!("{told}"));
        assert_eq!((plain.workload.to_string(), plain.bound_to), (format!("team-0/{name}"), None), "{told}");
        let bound = subject("bound");
        if name == "plain" {
            let bound = bound.unwrap_or_else(|| panic!("{told}"));
            assert_eq!(bound.workload, plain.workload, "{told}");
            assert_eq!(bound.bound_to.map(|fingerprint| fingerprint.len()), Some(43), "{told}");
        } else {
            assert!(bound.is_none() && told.to_string().contains("GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN"), "{told}");
        }
    }
}

/// Runs a program in a pod's network, with these variables, and returns its output.
fn run(program: Program, steps: &[&str], pod: &Pod, variables: &[(&str, &str)]) -> Value {
    let command = program.command();
    let command = command.as_std();
    let mut client = Command::new("timeout");
    client.arg(PATIENCE).arg(command.get_program()).args(command.get_args()).arg("session").args(steps);
    for (name, value) in command.get_envs() {
        client.env(name, value.expect("none is removed"));
    }
    // With another home, since this one may have other credentials, and without a proxy for the proxy.
    client.env("HOME", "/nonexistent").env_remove("GOOGLE_APPLICATION_CREDENTIALS").env_remove("GOOGLE_CLOUD_PROJECT");
    for variable in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        client.env_remove(variable);
    }
    for variable in ["GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"] {
        client.env(variable, pod.proxy().to_string());
    }
    let output = client.envs(variables.iter().copied()).output().expect("timeout is here");
    let printed = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&printed)
        .unwrap_or_else(|error| panic!("{client:?}: {error}: {printed}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Checks that all tokens are the pod's own. Returns their number.
fn check(pod: &Pod, steps: &[&str], told: &Value, google: &Cloud) -> usize {
    let own = email(&pod.object.account);
    let outcome = |step: &str| {
        let outcome = &told["steps"][step]["ok"];
        assert!(!outcome.is_null(), "{pod}: {step}: {told}");
        outcome
    };
    for step in steps {
        match *step {
            "account" => assert_eq!(outcome(step), &own, "{pod}: {told}"),
            "crawl" => assert_eq!(outcome(step), MACHINE, "{pod}: {told}"),
            "bound" => {
                let refusal = told["steps"][step]["error"].as_str().unwrap_or_default();
                assert!(refusal.contains("GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false"), "{pod}: {told}");
            }
            "platform" => {
                let found = outcome(step).as_str().unwrap_or_default();
                assert!(found.ends_with("kubernetes_engine mock-cluster us-central1"), "{pod}: {told}");
            }
            "machine" => assert!(outcome(step).as_str().is_some_and(|it| it.starts_with(MACHINE)), "{pod}: {told}"),
            step if TOKENS.contains(&step) => {
                let subject = subject(outcome(step), google);
                let subject = subject.unwrap_or_else(|| panic!("{pod}: {step} is no token of the fake Google: {told}"));
                assert_eq!(subject.workload.to_string(), format!("team-0/{}", pod.object.account), "{pod}: {step}");
                assert_eq!(subject.email.as_deref(), Some(&*own), "{pod}: {step}");
            }
            step => {
                outcome(step);
            }
        }
    }
    steps.iter().filter(|step| TOKENS.contains(step)).count()
}

/// The subject of a token.
fn subject(told: &Value, google: &Cloud) -> Option<Subject> {
    let token = told.as_str()?;
    Subject::read(token).or_else(|| google.subject_of(token))
}
