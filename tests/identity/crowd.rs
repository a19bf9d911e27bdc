//! A pod with thousands of processes slows down itself, and no other pod, under the limits of the manifests.

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::google::world_with_google;
use crate::kube::{NODE, pause};
use crate::limits::of_manifest;
use crate::load::Load;
use crate::pod::{Pod, Told};
use crate::support::cgroup::{Bounds, Cgroup};
use crate::support::needs::{Test, tests};
use crate::support::switch::is_full_size;
use crate::tokens::linked_accounts;
use crate::world::World;

pub const TESTS: &[Test] = tests![
    others_do_not_notice_a_pod_of_10_000_processes,
    others_do_not_notice_a_pod_whose_4_000_processes_live_briefly
];

/// Pods that are known before, pods that begin while the processes do, and pods that begin later.
const KNOWN: u8 = 10;
const EARLY: u8 = 2;
const LATER: u8 = 100;

/// Age from which on a pod's processes are not read as those of a new pod.
pub const SETTLED: Duration = Duration::from_secs(11);

/// Number of FIFOs on whose opening processes wait, each the same number.
const FIFOS: usize = 10;

/// Waiting processes of a pod. They end with this value.
pub struct Crowd {
    dir: PathBuf,
    pod: Arc<Pod>,
}

impl Crowd {
    /// Starts this number of processes. If they live briefly, a tenth of them ends and begins at a time, at most ten
    /// times a second.
    pub fn start(world: &World, pod: &Arc<Pod>, number: usize, is_brief: bool) -> Self {
        let dir = world.server.dir().join("crowd");
        fs::create_dir_all(&dir).expect("target/tmp can be written");
        for fifo in 0..FIFOS {
            assert!(Command::new("mkfifo").arg(dir.join(fifo.to_string())).status().expect("coreutils").success());
        }
        let place = dir.display();
        let crew = format!("i=0; while [ $i -lt {} ]; do : <$0 & i=$((i+1)); done; wait", number / FIFOS);
        let all = (0..FIFOS).map(|fifo| fifo.to_string()).collect::<Vec<_>>().join(" ");
        let again = if is_brief { "[ ! -e stop ]" } else { "false" };
        let script = format!(
            "cd {place}; begin() {{ sh -c \"$crew\" $1 & }}; crew=\"{}\"; for k in {all}; do begin $k; done; \
             while {again}; do for k in {all}; do exec 3<>$k; exec 3>&-; begin $k; sleep 0.1; done; done; wait",
            crew.replace('$', "\\$")
        );
        pod.sandbox().script(&script);
        Self { dir, pod: Arc::clone(pod) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        fs::write(self.dir.join("stop"), "").expect("it is there");
        let open = |fifo: usize| OpenOptions::new().read(true).write(true).open(self.dir.join(fifo.to_string()));
        let open: Vec<_> = (0..FIFOS).map(open).collect();
        let began = Instant::now();
        while self.pod.sandbox().others() > 0 && began.elapsed() < Duration::from_secs(60) {
            pause(Duration::from_millis(50));
        }
        drop(open);
    }
}

fn others_do_not_notice_a_pod_of_10_000_processes() {
    others_do_not_notice(10_000, false);
}

fn others_do_not_notice_a_pod_whose_4_000_processes_live_briefly() {
    others_do_not_notice(4_000, true);
}

fn others_do_not_notice(number: usize, is_brief: bool) {
    // A debug build needs several times as long for each process.
    let number = if is_full_size() { number } else { number / 10 };
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, 1);
    // A debug build is larger.
    let limits = of_manifest();
    let memory = limits.memory.map(|bytes| if is_full_size() { bytes } else { 4 * bytes });
    let group = Cgroup::new(Bounds { memory, ..limits }).expect("groups are needed");
    let flags = google.flags();
    let _proxy = world.proxy_in(Some(&group), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut pod = |name: &str, address: u8| {
        let object = api.create_pod("team-0", name, "app-0", NODE);
        Pod::start(&world.node, object, world.address(address))
    };
    let known: Vec<Arc<Pod>> = (0..KNOWN).map(|number| pod(&format!("known-{number}"), number)).collect();
    let hostile = pod("hostile", KNOWN);
    let ask_all = || {
        for pod in known.iter().chain([&hostile]) {
            first_token(pod);
        }
    };
    ask_all();
    pause(SETTLED);
    // Now the proxy learns by which interface each comes.
    (0..2).for_each(|_| ask_all());
    let load = Load::begin(known.iter().map(|pod| (pod, ask_now_and_then)));
    let crowd = Crowd::start(&world, &hostile, number, is_brief);
    // If they live briefly, some are about to begin.
    while hostile.sandbox().others() < number * 3 / 4 {
        pause(Duration::from_millis(20));
    }
    let mut first_tokens = |numbers: Range<u8>| -> Vec<Answer> {
        let first_token = |number| {
            pause(Duration::from_millis(200));
            first_token(&pod(&format!("new-{number}"), KNOWN + 1 + number))
        };
        numbers.map(first_token).collect()
    };
    let early = first_tokens(0..EARLY);
    let later = first_tokens(EARLY..EARLY + LATER);
    let known: Vec<Answer> = load.end().into_iter().flatten().collect();
    println!("{} processes of a pod", hostile.sandbox().others());
    let metrics = world.metrics();
    let scans = metrics.lines().filter(|line| line.starts_with("metadata_proxy_identity_scan"));
    println!("{}", scans.collect::<Vec<_>>().join("\n"));
    drop(crowd);
    let usage = group.usage().expect("it has a limit");
    let refused = [
        say("a known pod's new connection", known),
        say("the first token of a pod that begins while the processes do", early),
        say("of a pod that begins later", later),
    ];
    println!("peak {} KiB, throttled as {limits:?}", usage.peak >> 10);
    assert_eq!((refused, usage.killed), ([0; 3], 0));
}

/// An answer to a pod, and the time that it took.
type Answer = (Duration, Told);

/// Requests a pod's token as soon as the pod runs.
fn first_token(pod: &Arc<Pod>) -> Answer {
    pod.inside(|pod| {
        let began = Instant::now();
        loop {
            let opened = pod.began.elapsed();
            let answer = ask(pod);
            // A connection of the clock tick in which the pod's first process began may belong to the pod before it.
            let is_of_first_tick = matches!(answer.1, Told::Broken(_)) && opened < Duration::from_millis(30);
            if !is_of_first_tick {
                return (began.elapsed(), answer.1);
            }
        }
    })
}

/// Sends a request on a new connection, and pauses.
fn ask_now_and_then(pod: &Pod, answers: &mut Vec<Answer>) {
    answers.push(ask(pod));
    pause(Duration::from_millis(300));
}

/// Requests a token on a new connection. From a thread that is in the pod's network.
fn ask(pod: &Pod) -> Answer {
    let began = Instant::now();
    let told = pod.ask_for_token(&mut pod.connect().expect("the proxy listens"));
    (began.elapsed(), told)
}

/// Prints the times of the answers, and returns the number of requests without the right answer.
fn say(what: &str, answers: Vec<Answer>) -> usize {
    let (mut times, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|(_, told)| matches!(told, Told::Itself));
    times.sort_unstable_by_key(|(time, _)| *time);
    let at = |percent: usize| times.get(times.len() * percent / 100).or(times.last()).map(|(time, _)| *time);
    println!("{what}: {} answered, p50 {:.1?}, p99 {:.1?}; refused: {refused:.1?}", times.len(), at(50), at(99));
    refused.len()
}
