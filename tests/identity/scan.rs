//! CPU time of a scan of a full node's processes, and whether the event loop is free meanwhile. The times are printed,
//! not judged: machines differ.

use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use base::clock::BootTime;
use identity::pods::{Sandboxes, Scanned, Scans};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::kube::pause;
use crate::sandbox::{Node, Sandbox};
use crate::support::needs::{Test, tests};

/// Requirements of these tests.
pub const NEEDS: [&str; 3] = ["network namespaces", "control groups", "ip"];

pub const TESTS: &[Test] = tests![a_look_at_a_full_node_finds_all_pods_and_says_what_it_took];

const PODS: u8 = 110;
const PROCESSES: usize = 1000;

/// Age from which on a process is not read again.
const SETTLED: Duration = Duration::from_secs(11);

/// Processes that belong to no pod. They end with this value.
struct Others(Vec<Child>);

impl Others {
    fn start(number: usize) -> Self {
        let start = |_| Command::new("sleep").arg("7200").spawn().expect("coreutils");
        Self((0..number).map(start).collect())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for other in &mut self.0 {
            other.kill().expect("it is ours");
            other.wait().expect("it can be waited for");
        }
    }
}

fn a_look_at_a_full_node_finds_all_pods_and_says_what_it_took() {
    let node = Arc::new(Node::new());
    let uid = |number: u8| format!("{:08x}-0000-4000-8000-{number:012x}", std::process::id());
    let _pods: Vec<Sandbox> =
        (0..PODS).map(|number| Sandbox::start(&node, &uid(number), node.network.address(number + 2))).collect();
    let _others = Others::start(PROCESSES - usize::from(PODS));
    let sandboxes = sandboxes_anew();
    say("the first, which reads all", 1, &sandboxes);
    say("while all are young", 20, &sandboxes);
    pause(SETTLED);
    say("when nothing is new", 50, &sandboxes);
    let _new = Others::start(10);
    let scanned = say("with ten new processes", 1, &sandboxes);
    assert!(scanned.sandboxes >= usize::from(PODS) && scanned.processes >= PROCESSES, "{scanned:?}");
    let turns = turns_during_the_first_look(&Scans::start(sandboxes_anew()).expect("a thread"));
    assert!(turns > 0, "the event loop stood still");
}

fn sandboxes_anew() -> Sandboxes {
    Sandboxes::open(Path::new("/proc")).expect("the machine's")
}

/// Number of turns of an event loop like the proxy's during the longest scan, the one that reads all.
fn turns_during_the_first_look(scans: &Scans) -> u32 {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (mut turns, mut longest) = (0, Duration::ZERO);
    let began = Instant::now();
    runtime.block_on(async {
        let mut look = pin!(scans.since(BootTime::now()));
        let mut turned = Instant::now();
        loop {
            tokio::select! {
                biased;
                _ = &mut look => break,
                () = yield_now() => {
                    longest = longest.max(turned.elapsed());
                    turned = Instant::now();
                    turns += 1;
                }
            }
        }
    });
    let took = began.elapsed();
    println!(
        "the event loop turned {turns} times during a look of {took:?} that reads all; the longest turn took {longest:?}"
    );
    turns
}

/// CPU time of this thread, which says more than the clock on a busy machine.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("not negative")
}

/// Scans this number of times, and prints the median and the longest CPU time.
fn say(when: &str, times: usize, sandboxes: &Sandboxes) -> Scanned {
    let mut scanned = Scanned::default();
    let mut took: Vec<Duration> = (0..times)
        .map(|_| {
            let began = cpu_time();
            scanned = sandboxes.scan();
            cpu_time().saturating_sub(began)
        })
        .collect();
    took.sort_unstable();
    println!("{when}: {:?}, at most {:?}: {scanned:?}", took[took.len() / 2], took[took.len() - 1]);
    scanned
}
