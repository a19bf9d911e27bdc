//! What nodes cost the API server: one of them, and a thousand whose watches one process has.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use identity::cluster::{Cluster, Credential, Settings};
use identity::pods::{self, Pods};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::google::Cloud;
use crate::kube::{ApiServer, Client, NODE, Requested, pause};
use crate::proxy_pod::{DAEMONSET, ProxyPod};
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::tokens::linked_accounts;
use crate::world::World;

pub const TESTS: &[Test] = tests![what_a_node_asks_of_the_api_server, a_crowd_of_nodes_watches];

/// Pods and accounts of the node.
const PODS: u8 = 30;

/// How many requests there were of each kind.
type Bill = BTreeMap<String, usize>;

/// The requests of this node since the last call, and the bytes of all of them.
struct Counted {
    requests: usize,
    bytes: u64,
}

impl Counted {
    fn since(&mut self, world: &World, what: &str) -> Bill {
        let all = world.server.requests_of(&format!("system:node:{NODE}"));
        let (new, bytes) = (&all[self.requests..], world.watch.passed());
        let mut bill = Bill::new();
        for Requested { verb, resource, uri } in new {
            let how = if uri.contains("sendInitialEvents") { " from the beginning" } else { "" };
            *bill.entry(format!("{verb} {resource}{how}")).or_default() += 1;
        }
        println!("{what}: {} requests, {} KiB: {bill:?}", new.len(), (bytes - self.bytes) >> 10);
        *self = Self { requests: all.len(), bytes };
        bill
    }
}

fn what_a_node_asks_of_the_api_server() {
    let mut world = World::new();
    world.server.restart_with_audit();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    linked_accounts(&mut api, &google, PODS);
    let proxies = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let pods = world.pods(&mut api, PODS);
    // Patient: all of them are fetched at once, on a machine that may be busy.
    let ask = || pods.iter().for_each(crate::handover::ask_until_given);
    let mut counted = Counted { requests: 0, bytes: world.watch.passed() };
    let fetched = pods_read(&mut world.server.admin());

    let mut first = proxies[0].start(&world, &google);
    ask();
    pause(Duration::from_secs(5));
    let cold = counted.since(&world, "a start with nothing");
    let count = |bill: &Bill, what: &str| bill.get(what).copied().unwrap_or(0);
    assert_eq!(count(&cold, "watch pods from the beginning"), 1, "{cold:?}");
    assert_eq!(count(&cold, "watch pods"), 0, "{cold:?}");
    // One list and two tokens are asked for only to see what the credential may do.
    assert!(count(&cold, "list pods") <= 1, "{cold:?}");
    let tokens = count(&cold, "create serviceaccounts/token");
    assert!((usize::from(PODS)..=usize::from(PODS) + 2).contains(&tokens), "{cold:?}");
    assert_eq!(pods_read(&mut world.server.admin()), fetched, "the pods come from the watch cache");

    let seconds = if is_full_size() { 300 } else { 5 };
    pause(Duration::from_secs(seconds));
    counted.since(&world, &format!("{seconds} s of rest"));

    let _next = proxies[1].take_over(&world, &google);
    assert!(first.end().success());
    ask();
    pause(Duration::from_secs(5));
    let update = counted.since(&world, "an update");
    assert!(count(&update, "create serviceaccounts/token") <= 2, "{update:?}");
    assert_eq!(count(&update, "watch pods from the beginning"), 1, "{update:?}");
    // Each process asks who owns its own pod and the other.
    assert!(count(&update, "list pods") <= 5, "{update:?}");
}

/// How many pods the API server has read from its store.
fn pods_read(api: &mut Client) -> u64 {
    metric(&api.text("/metrics"), "apiserver_storage_list_fetched_objects_total", "resource=\"pods\"")
}

/// The sum of a metric over all series with these labels.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole numbers, written as large ones are: 1e+08"
)]
fn metric(text: &str, name: &str, labels: &str) -> u64 {
    let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let lines = text.lines().filter(is_it).filter(|line| line.contains(labels));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map(|value| value as u64).sum()
}

/// What the API server has used so far.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// Milliseconds.
    cpu: u64,
    /// After the collection of garbage, in KiB.
    heap: u64,
    /// In KiB.
    stacks: u64,
    /// Its memory as the kernel counts it, in KiB.
    resident: u64,
}

impl Used {
    fn by(server: &ApiServer) -> Self {
        let mut api = server.admin();
        let cpu = cpu(server);
        // With `gc`, it collects before it answers.
        api.text("/debug/pprof/heap?gc=1&debug=1");
        let metrics = api.text("/metrics");
        let kib = |name| metric(&metrics, name, "") >> 10;
        let [heap, stacks, resident] =
            ["go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes", "process_resident_memory_bytes"].map(kib);
        Self { cpu, heap, stacks, resident }
    }
}

/// Milliseconds of CPU.
fn cpu(server: &ApiServer) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("its name ends");
    // In hundredths of a second.
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number") * 10).sum()
}

fn watches(server: &ApiServer) -> u64 {
    let text = server.admin().text("/metrics");
    metric(&text, "apiserver_longrunning_requests", "resource=\"pods\"")
}

fn a_crowd_of_nodes_watches() {
    let (nodes, each, seconds) = if is_full_size() { (1_000_u64, 10, 120) } else { (20, 3, 5) };
    let mut server = ApiServer::start(None);
    server.admin().create_account("team-0", "app-0");
    thread::scope(|scope| {
        for part in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut api = server.admin();
                for node in (0..nodes).filter(|node| node % 8 == part) {
                    for pod in 0..each {
                        api.create_pod("team-0", &format!("pod-{node}-{pod}"), "app-0", &format!("sim-{node}"));
                    }
                }
            });
        }
    });
    pause(Duration::from_secs(5));
    let others = watches(&server);
    let before = Used::by(&server);
    println!("{nodes} nodes of {each} pods; the API server before: {before:?}");

    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (mut watching, listed) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    let _inside = runtime.enter();
    let clusters: Vec<Cluster> = (0..nodes)
        .map(|node| {
            let name = format!("sim-{node}");
            let credential = Credential::Kubeconfig(server.kubeconfig_of(&name));
            let settings = Settings { node: name.parse().expect("a name"), credential };
            runtime.block_on(Cluster::connect(&settings)).expect("a kubeconfig")
        })
        .collect();
    let began = Instant::now();
    // All in one moment, as if all nodes had started again.
    let known: Vec<Arc<Pods>> = clusters
        .into_iter()
        .map(|cluster| {
            let (pods, listed) = (Arc::<Pods>::default(), Arc::clone(&listed));
            let on = move |event: pods::WatchEvent<'_>| {
                if matches!(event, pods::WatchEvent::Listed { .. }) {
                    listed.fetch_add(1, Relaxed);
                }
            };
            let followed = Arc::clone(&pods);
            watching.spawn(async move { match pods::follow(cluster, followed, on).await {} });
            pods
        })
        .collect();
    let mut waits: Vec<Duration> = runtime.block_on(async {
        let waiting = known.iter().map(|pods| {
            let pods = Arc::clone(pods);
            async move {
                pods.known().await;
                began.elapsed()
            }
        });
        waiting.collect::<JoinSet<_>>().join_all().await
    });
    waits.sort_unstable();
    let at = |share: usize| waits[(waits.len() - 1) * share / 100].as_millis();
    let cost = cpu(&server) - before.cpu;
    println!("time to list, all at once: p50 {} ms, p99 {} ms, last {} ms; {cost} ms of CPU", at(50), at(99), at(100));
    assert!(known.iter().all(|pods| pods.count() == each), "each node knows its own pods");

    pause(Duration::from_secs(5));
    let after = Used::by(&server);
    let of_each = |after: u64, before: u64| after.saturating_sub(before) / nodes;
    println!(
        "with their watches: {after:?}; of each node {} KiB of heap, {} KiB of stacks, {} KiB resident",
        of_each(after.heap, before.heap),
        of_each(after.stacks, before.stacks),
        of_each(after.resident, before.resident)
    );
    assert_eq!(watches(&server) - others, nodes, "one watch of each");

    let rest = cpu(&server);
    pause(Duration::from_secs(seconds));
    println!("{seconds} s of rest: {} ms of CPU", cpu(&server) - rest);

    if is_full_size() {
        // A server on two busy cores was not ready within a minute while a thousand came back.
        runtime.block_on(watching.shutdown());
        return;
    }
    // The API server ends, and starts again: all come back.
    let lists = listed.load(Relaxed);
    server.restart();
    let (began, from) = (Instant::now(), cpu(&server));
    while watches(&server) < nodes {
        assert!(began.elapsed() < Duration::from_secs(60), "{} of {nodes} came back", watches(&server));
        pause(Duration::from_millis(250));
    }
    let (took, cost, anew) = (began.elapsed(), cpu(&server) - from, listed.load(Relaxed) - lists);
    println!(
        "all watch again {} ms after the API server is ready; {cost} ms of CPU, {anew} new lists",
        took.as_millis()
    );
    runtime.block_on(watching.shutdown());
}
