//! A pod with `NET_ADMIN` that gives itself the addresses of others, and routes without end.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use crate::kube::pause;
use crate::support::needs::{Test, tests};
use crate::world::{Proxy, World};

pub const TESTS: &[Test] = tests![a_claim_to_many_addresses_keeps_the_event_loop_free];

/// Number of pods whose addresses are claimed.
const NEIGHBOURS: u8 = 12;

/// More than the proxy reads of a pod.
const ROUTES: u32 = 4000;

/// Time for which the event loop is watched. No pod asks anything meanwhile.
const WATCHED: Duration = Duration::from_secs(3);

/// Processor time of the event loop in that time, at most. A release build took 370 ms, more than 100m allow, when it read the
/// claimant's network for each address that it claims, four times a second.
const MOST: Duration = Duration::from_millis(100);

fn a_claim_to_many_addresses_keeps_the_event_loop_free() {
    let world = World::new();
    let mut api = world.server.admin();
    api.create_account("team-0", "app-0");
    let proxy = world.proxy(&[]);
    let neighbours: Vec<_> = (0..NEIGHBOURS)
        .map(|number| {
            let pod = world.pod(&mut api, &format!("pod-{number}"), world.address(number));
            // So that the API server decides about the address, again and again.
            api.set_addresses(&pod.object, &pod.address.both());
            let kept = pod.become_known();
            (pod, kept)
        })
        .collect();
    let claimant = world.pod(&mut api, "claimant", world.address(NEIGHBOURS));
    api.set_addresses(&claimant.object, &claimant.address.both());
    // The rule gives the local addresses a table of their own, after all routes.
    let mut lines = "rule add from 10.0.0.0/8 lookup 77\n".to_owned();
    for route in 0..ROUTES {
        let _ = writeln!(lines, "route add 172.{}.{}.0/24 dev lo", 16 + route / 250, route % 250);
    }
    claimant.sandbox().batch(&lines);
    for (pod, _) in &neighbours {
        claimant.sandbox().squat(pod.address);
    }
    // Its new connections wait for scans, which find the claims.
    for _ in 0..3 {
        drop(claimant.inside(|pod| pod.connect().map(|mut connection| pod.ask(&mut connection))));
        pause(Duration::from_millis(300));
    }
    let before = busy(&proxy);
    pause(WATCHED);
    let busy = busy(&proxy).saturating_sub(before);
    println!("the event loop ran for {busy:.1?} of {WATCHED:?}");
    assert!(busy < MOST, "{busy:?}");
}

/// Processor time of the proxy's first thread, which runs the event loop.
fn busy(proxy: &Proxy) -> Duration {
    let text = fs::read_to_string(format!("/proc/{}/schedstat", proxy.id())).expect("it runs");
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds"))
}
