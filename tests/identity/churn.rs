//! No pod is ever taken for another: pods come and go, addresses pass from one pod to the next, some before the first pod's
//! network is gone, and the API server learns little of it, late or never. The proxy has the CPU time of its manifests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::crowd::Crowd;
use crate::google::Cloud;
use crate::kube::{NODE, pause};
use crate::kubelet::{ACCOUNTS, Kubelet, account};
use crate::limits::bounds;
use crate::pod::Pod;
use crate::reporter::Reporter;
use crate::support::cgroup::Cgroup;
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::tally::Tally;
use crate::world::World;

pub const TESTS: &[Test] = tests![no_pod_is_taken_for_another];

/// Threads that begin and end pods.
const WORKERS: usize = 2;

/// Processes of a pod that begin and end all the time.
const FORKS: usize = 100;

/// Time for which the API server is unreachable.
const AWAY: Duration = Duration::from_secs(3);

/// The size of the load.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Number of pods at any time.
    pub pods: u8,
    /// Number of requests of all clients.
    pub requests: u64,
    /// Average pause between two requests of a pod.
    pub gap: Duration,
    /// Whether pods request tokens, too.
    pub has_tokens: bool,
    /// Average life of a pod.
    pub life: Duration,
    /// Time between two disturbances of the API server, and time for which a watch stalls.
    pub disturbed: Option<(Duration, Duration)>,
}

impl Plan {
    fn chosen() -> Self {
        let life = Duration::from_secs(15);
        let (requests, gap, disturbed) = if is_full_size() {
            (1_000_000, Duration::from_millis(20), (Duration::from_secs(10), Duration::from_secs(30)))
        } else {
            (20_000, Duration::from_millis(200), (Duration::from_secs(4), Duration::from_secs(5)))
        };
        Self { pods: 110, requests, gap, has_tokens: true, life, disturbed: Some(disturbed) }
    }
}

fn no_pod_is_taken_for_another() {
    let mut world = World::new();
    let google = Cloud::start(&world, &mut world.server.admin());
    let flags = google.flags();
    let group = Cgroup::new(bounds()).expect("groups are needed");
    let _proxy = world.proxy_in(Some(&group), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let plan = Plan::chosen();
    // A neighbour that makes each scan longer.
    let mut api = world.server.admin();
    api.create_account("crowd", "app");
    let object = api.create_pod("crowd", "crowd", "app", NODE);
    let neighbour = Pod::start(&world.node, object, world.address(plan.pods));
    let _crowd = Crowd::start(&world, &neighbour, FORKS, true);
    run(&mut world, plan).judge();
}

/// Lets pods come and go until their clients have sent enough requests to the proxy on the node.
pub fn run(world: &mut World, plan: Plan) -> Arc<Tally> {
    let mut api = world.server.admin();
    (0..ACCOUNTS).map(account).for_each(|(namespace, account)| api.create_account(&namespace, &account));
    let tally = Arc::new(Tally::new(plan.requests));
    let kubelet = Kubelet {
        node: Arc::clone(&world.node),
        reporter: Reporter::start(api),
        tally: Arc::clone(&tally),
        life: plan.life,
        gap: plan.gap,
        has_tokens: plan.has_tokens,
        begun: AtomicUsize::new(0),
        clients: Mutex::default(),
    };
    let addresses: Vec<_> = (0..plan.pods).map(|number| world.address(number)).collect();
    let began = Instant::now();
    thread::scope(|scope| {
        for addresses in addresses.chunks(addresses.len().div_ceil(WORKERS)) {
            let (kubelet, mut api) = (&kubelet, world.server.admin());
            scope.spawn(move || kubelet.work(&mut api, addresses));
        }
        if let Some((calm, stall)) = plan.disturbed {
            let rounds = disturb(world, &tally, calm, stall);
            assert!(rounds > 0, "the clients had asked enough before the API server was killed");
            println!("{rounds} stalls of the watch, after each of which the API server was killed and restarted");
        }
    });
    // A client that outlives this function would keep its pod's network.
    let clients = std::mem::take(&mut *kubelet.clients.lock().unwrap_or_else(PoisonError::into_inner));
    for client in clients {
        client.join().expect("no panic");
    }
    println!("{} pods in {:.0?}", kubelet.begun.load(Relaxed), began.elapsed());
    tally
}

/// Disturbs the proxy's connection to the API server until the clients have sent enough requests. Returns the number of
/// times.
fn disturb(world: &mut World, tally: &Tally, calm: Duration, stall: Duration) -> usize {
    let wait = |time: Duration| {
        let began = Instant::now();
        while !tally.is_complete() && began.elapsed() < time {
            pause(Duration::from_millis(50));
        }
    };
    let mut rounds = 0;
    while !tally.is_complete() {
        wait(calm);
        tally.hears(false);
        world.watch.hold();
        wait(stall);
        world.watch.pass();
        tally.hears(true);
        wait(calm);
        if tally.is_complete() {
            break;
        }
        tally.hears(false);
        world.server.kill();
        wait(AWAY);
        world.server.restart();
        tally.hears(true);
        wait(calm);
        world.watch.cut();
        rounds += 1;
    }
    rounds
}
