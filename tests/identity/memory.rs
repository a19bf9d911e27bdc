//! What identity takes: little for the pods of this node, and nothing for those of others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::is_full_size;
use crate::kube::pause;
use crate::pod::{Pod, Told};
use crate::support::needs::{Test, tests};
use crate::world::{Proxy, World};

/// The tests of this module.
pub const TESTS: &[Test] = tests![identity_takes_little_memory];

/// Pods of this node, each of which asks.
const PODS: u8 = 110;

/// What it may take more, in KiB.
const MOST: u64 = 8 * 1024;

fn identity_takes_little_memory() {
    let world = World::new();
    let mut api = world.server.admin();
    api.create_account("team-0", "app-0");
    let elsewhere = if is_full_size() { 10_000 } else { 500 };
    for number in 0..elsewhere {
        api.create_pod("team-0", &format!("elsewhere-{number}"), "app-0", "node-2");
    }
    let pods: Vec<Arc<Pod>> =
        (0..PODS).map(|number| world.pod(&mut api, &format!("pod-{number}"), world.address(number))).collect();
    let without = world.proxy_without_identity();
    let before = settled(&without);
    drop(without);

    let with = world.proxy(&[]);
    for pod in &pods {
        let began = Instant::now();
        while !matches!(pod.inside(|pod| pod.connect().map(|mut open| pod.ask(&mut open))), Some(Told::Itself)) {
            assert!(began.elapsed() < Duration::from_secs(30), "{pod} is not known");
        }
    }
    let after = settled(&with);
    println!("{PODS} pods here and {elsewhere} elsewhere: {before} KiB without identity, {after} KiB with it");
    assert!(after <= before + MOST, "{after} KiB with identity, {before} KiB without");
}

/// Memory of its own that a process uses, in KiB, after its start.
fn settled(proxy: &Proxy) -> u64 {
    pause(Duration::from_secs(2));
    proxy.anonymous_kib()
}
