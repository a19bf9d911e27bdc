//! A pod gets its first answer although the API server never learns its address.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::bounds;
use crate::pod::{Pod, Told};
use crate::support::cgroup::Cgroup;
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::world::World;

pub const TESTS: &[Test] = tests![the_first_answer_needs_no_address_of_the_api_server];

/// Pods that begin, one after another.
const PODS: u8 = 100;

/// Of 100 first answers, 99 must come within this time after the pod's first packet.
const MOST: Duration = Duration::from_millis(100);

/// The same for a proxy with the CPU limit of its manifests, which may sleep for most of a period of 100 ms, twice.
const MOST_LIMITED: Duration = Duration::from_millis(250);

fn the_first_answer_needs_no_address_of_the_api_server() {
    let (world, mut api) = World::with_account();
    let group = Cgroup::new(bounds()).expect("groups are needed");
    for (name, group, most) in [("free", None, MOST), ("limited", Some(&group), MOST_LIMITED)] {
        let _proxy = world.proxy_in(group, &[]);
        let mut times: Vec<Duration> = (0..PODS)
            .map(|number| {
                let pod = world.pod(&mut api, &format!("{name}-{number}"), world.address(number));
                let time = pod.inside(first_answer);
                // Its object and its address are removed, so that they do not affect the next pod.
                pod.kill();
                api.delete_pod(&pod.object, 0);
                time
            })
            .collect();
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        let p99 = times[times.len() * 99 / 100 - 1];
        println!(
            "the first answer, {name}: p50 {:.1?}, p90 {:.1?}, p99 {p99:.1?}, slowest {:.1?}",
            at(50),
            at(90),
            at(100)
        );
        // A debug build on a shared computer is not judged by its speed.
        assert!(!is_full_size() || p99 <= most, "the 99th of 100 first answers took {p99:?}");
    }
}

/// Time from the first packet to the answer.
fn first_answer(pod: &Pod) -> Duration {
    let began = Instant::now();
    loop {
        let connected = began.elapsed();
        let mut connection = pod.connect().expect("the proxy listens");
        match pod.ask(&mut connection) {
            Told::Itself => return began.elapsed(),
            // A connection of the clock tick in which the pod's first process began may belong to the pod before it. A
            // real container begins later. On a busy computer this thread may learn of the reset much later.
            Told::Broken(ErrorKind::ConnectionReset) if connected < MOST => {}
            told => panic!("{told:?}"),
        }
    }
}
