//! The scenarios.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::node::Node;
use crate::pods::{Place, Seen, Use, pod};
use crate::report::Outcome;
use crate::servers::{Servers, Settings};
use crate::size::Size;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Time in which a fleet that is to be in use already starts, and time until its renewals are spread.
const WARM_UP: Duration = Duration::from_secs(3600);
const SETTLE: Duration = Duration::from_secs(3600);

/// Time for which a process goes on after it has handed over, until it is ended and has drained.
const DRAINS: Duration = Duration::from_secs(20);

/// The names of the scenarios.
pub const NAMES: [&str; 9] =
    ["steady", "cold-start", "rollout", "rollout-cold", "zone", "sts-down", "half-quota", "one-account", "cron"];

struct Fleet {
    size: Size,
    servers: Arc<Servers>,
    places: Vec<Place>,
    seen: Arc<Seen>,
    pods: JoinSet<()>,
}

impl Fleet {
    fn new(size: Size) -> Self {
        let settings = Settings {
            quota: size.quota,
            burst: size.quota / 6,
            latency: (Duration::from_millis(40), Duration::from_millis(160)),
            links: true,
        };
        let places = (0..size.nodes).map(|_| Place::default()).collect();
        Self { size, servers: Servers::new(settings), places, seen: Arc::default(), pods: JoinSet::new() }
    }

    /// Starts a proxy, in place of the one before if there is one, which may hand over.
    async fn start(&self, number: u32, is_handed_over: bool) {
        start(&self.places[number as usize], &self.servers, number, self.size.pods, is_handed_over).await;
    }

    /// Starts pods on a node within a time from now.
    fn begin(&mut self, number: u32, accounts: std::ops::Range<u16>, within: Duration, used: Use) {
        for account in accounts {
            let began = Instant::now() + within.mul_f64(fastrand::f64());
            let place = Arc::clone(&self.places[number as usize]);
            self.pods.spawn(pod(place, account, began, used, Arc::clone(&self.seen)));
        }
    }

    /// A fleet that has been in use for a while: nodes and pods that came one after the other.
    async fn in_use(size: Size, used: Use, idle: u16) -> Self {
        let mut fleet = Self::new(size);
        let between = WARM_UP / size.nodes.max(1);
        for number in 0..size.nodes {
            fleet.start(number, false).await;
            fleet.begin(number, idle..size.pods, MINUTE, used);
            sleep(between).await;
        }
        sleep(SETTLE).await;
        // What happened until now does not count.
        fleet.seen.forget();
        fleet
    }

    /// Lets the time pass, and reports on it.
    async fn watch(&self, name: &str, begins: usize, time: Duration) -> Outcome {
        let until = Instant::now() + time;
        let mut waiting = Vec::new();
        while Instant::now() < until {
            let mut most = 0;
            for _ in 0..60 {
                most = most.max(self.seen.waiting());
                sleep(SECOND).await;
            }
            waiting.push(most);
        }
        Outcome::new(name, self.size, &self.servers.minutes()[begins..], waiting, &self.seen)
    }
}

async fn start(place: &Mutex<Option<Arc<Node>>>, servers: &Arc<Servers>, number: u32, pods: u16, is_handed_over: bool) {
    // The one before serves until it is replaced.
    let before = place.lock().expect("no panic").clone();
    let node = Node::start(number, pods, servers, before.as_deref().filter(|_| is_handed_over)).await;
    *place.lock().expect("no panic") = Some(node);
    if let Some(before) = before {
        tokio::spawn(async move {
            if is_handed_over {
                sleep(DRAINS).await;
            }
            before.stop();
        });
    }
}

/// Runs a scenario.
pub async fn run(name: &str, size: Size) -> Outcome {
    match name {
        "steady" => {
            let fleet = Fleet::in_use(size, Use::Library, 0).await;
            let begins = fleet.servers.minute();
            fleet.watch(name, begins, MINUTE * 180).await
        }
        "cold-start" => {
            let mut fleet = Fleet::new(size);
            for number in 0..size.nodes {
                fleet.start(number, false).await;
                fleet.begin(number, 0..size.pods, MINUTE, Use::Library);
            }
            fleet.watch(name, 0, MINUTE * 90).await
        }
        "rollout" | "rollout-cold" => {
            let mut fleet = Fleet::in_use(size, Use::Library, 0).await;
            let begins = fleet.servers.minute();
            // So that a proxy without tokens is noticed at once.
            for number in 0..size.nodes {
                fleet.begin(number, 0..size.pods, MINUTE, Use::EachMinute);
            }
            let (places, servers, is_handed_over) =
                (fleet.places.clone(), Arc::clone(&fleet.servers), name == "rollout");
            // A tenth at a time, each of which takes a minute and a half.
            let batch = places.len().div_ceil(10);
            tokio::spawn(async move {
                for (number, place) in places.iter().enumerate() {
                    start(place, &servers, u32::try_from(number).expect("small"), size.pods, is_handed_over).await;
                    sleep(MINUTE.mul_f64(1.5) / u32::try_from(batch).expect("small")).await;
                }
            });
            fleet.watch(name, begins, MINUTE * 45).await
        }
        "zone" => {
            let mut fleet = Fleet::in_use(size, Use::Library, 0).await;
            let zone = 0..size.nodes / 3;
            // The zone is lost: its nodes are replaced and its pods restart, all within two minutes.
            let begins = fleet.servers.minute();
            for number in zone {
                fleet.start(number, false).await;
                fleet.begin(number, 0..size.pods, MINUTE * 2, Use::Library);
            }
            fleet.watch(name, begins, MINUTE * 90).await
        }
        "sts-down" => {
            let fleet = Fleet::in_use(size, Use::Library, 0).await;
            let begins = fleet.servers.minute() + 20;
            fleet.servers.set_down(true);
            sleep(MINUTE * 20).await;
            fleet.servers.set_down(false);
            fleet.watch(name, begins, MINUTE * 90).await
        }
        "half-quota" => {
            let fleet = Fleet::in_use(size, Use::Library, 0).await;
            let begins = fleet.servers.minute();
            fleet.servers.set_quota(size.quota / 2);
            fleet.watch(name, begins, MINUTE * 180).await
        }
        "one-account" => {
            let fleet = Fleet::in_use(Size { pods: 1, ..size }, Use::Library, 0).await;
            let begins = fleet.servers.minute();
            fleet.watch(name, begins, MINUTE * 90).await
        }
        "cron" => {
            // On each node two accounts that no pod uses, until all nodes' jobs begin in the same second.
            let mut fleet = Fleet::in_use(size, Use::Library, 2).await;
            let begins = fleet.servers.minute();
            for number in 0..size.nodes {
                fleet.begin(number, 0..2, SECOND, Use::Once);
            }
            fleet.watch(name, begins, MINUTE * 60).await
        }
        other => panic!("no scenario {other}"),
    }
}
