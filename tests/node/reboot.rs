//! After a reboot, before any container runs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, iter};

use crate::attacks::{Read, proxy, read, read_briefly};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{KUBE_ENV, SERVER, WAYS_ROUND, World, eventually, redirect, server, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    rules_that_were_printed_close_pods_until_the_redirect_takes_over,
    no_request_passes_before_the_redirect_where_the_rules_are_in_the_image,
];

/// How long a pod waits for an answer before it asks again.
const WAIT: Duration = Duration::from_millis(50);

/// How many requests it has sent when the redirect begins.
const BEFORE: usize = 20;

/// What a unit of the node's image does: it needs `nft` and the printed rules, and neither the binary nor a container.
fn rules_that_were_printed_close_pods_until_the_redirect_takes_over() {
    let world = World::new();
    let pod = &world.pods[0];
    let printed = printed(&world);
    assert_eq!(read(pod, SERVER), Read::Server, "as after a reboot");
    load(&world, &printed);
    for way in WAYS_ROUND.into_iter().chain([SERVER]) {
        assert_eq!(read_briefly(pod, way), Read::Nothing, "{way}");
    }
    succeeds(&redirect(&world.node, "install"));
    let _proxy = proxy(&world);
    assert_eq!(read(pod, SERVER), Read::Proxy);
}

/// The rules that an earlier redirect of this node printed.
fn printed(world: &World) -> String {
    let printed = redirect(&world.node, "install --dry-run --tool nft");
    succeeds(&printed);
    printed.stdout
}

/// What the unit does.
fn load(world: &World, rules: &str) {
    let mut nft = world.node.command("nft");
    let mut nft = nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("it is here");
    nft.stdin.take().expect("piped").write_all(rules.as_bytes()).expect("it reads");
    assert!(nft.wait().expect("it runs").success());
}

/// A pod that asks for a secret all the time, on a new connection each time.
struct Asking {
    enough: Arc<AtomicBool>,
    /// When each request began, and who answered it.
    requests: JoinHandle<Vec<(Instant, Read)>>,
    asked: Arc<AtomicUsize>,
    is_served: Arc<AtomicBool>,
}

impl Asking {
    #[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous")]
    fn begin(pod: &Namespace) -> Self {
        let (enough, is_served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let asked = Arc::new(AtomicUsize::new(0));
        let (has_enough, served, count) = (Arc::clone(&enough), Arc::clone(&is_served), Arc::clone(&asked));
        let requests = pod.spawn(move || {
            let asked = iter::repeat_with(|| (Instant::now(), Read::of(&ask().unwrap_or_default())));
            let asked = asked.inspect(|(_, read)| {
                served.store(*read == Read::Proxy, Relaxed);
                count.fetch_add(1, Relaxed);
            });
            asked.take_while(|_| !has_enough.load(Relaxed)).collect()
        });
        Self { enough, requests, asked, is_served }
    }

    fn end(self) -> Vec<(Instant, Read)> {
        self.enough.store(true, Relaxed);
        self.requests.join().expect("no panic")
    }
}

fn ask() -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server(), WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    let head = "Host: 169.254.169.254\r\nMetadata-Flavor: Google\r\nConnection: close";
    stream.write_all(format!("GET {KUBE_ENV} HTTP/1.1\r\n{head}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A pod is there before the redirect begins. What a kubelet and a runtime take until then comes on top, where nothing else closes
/// the node: `deploy/tests/run node restart` says how long that is.
#[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous")]
fn no_request_passes_before_the_redirect_where_the_rules_are_in_the_image() {
    for has_unit in [false, true] {
        let world = World::new();
        if has_unit {
            load(&world, &printed(&world));
        }
        let asking = Asking::begin(&world.pods[0]);
        eventually("it asks", || asking.asked.load(Relaxed) >= BEFORE);
        let began = Instant::now();
        let keeper = Process::start(&world.node, &["redirect", "install", "--keep"]);
        keeper.line("redirect installed");
        let installed = Instant::now();
        let proxy = proxy(&world);
        eventually("the pod is served", || asking.is_served.load(Relaxed));
        let asked = asking.end();
        let passed = || asked.iter().filter(|(_, read)| *read == Read::Server).map(|(at, _)| *at);
        println!(
            "reboot, {} the rules in the image: {} of {} requests passed until the redirect was there, {} of them in the {:?} that it took",
            if has_unit { "with" } else { "without" },
            passed().count(),
            asked.iter().filter(|(at, _)| *at < installed).count(),
            passed().filter(|at| *at >= began).count(),
            installed - began,
        );
        assert!(asked.iter().all(|(_, read)| *read != Read::Stranger));
        if has_unit {
            assert_eq!(passed().count(), 0, "the node is closed from the start");
        } else {
            assert!(passed().count() > 0, "a node that is open, were there no unit");
            assert!(passed().all(|at| at < installed), "it is closed when the redirect says so");
        }
        assert_eq!(proxy.terminate().code(), Some(0));
        assert_eq!(keeper.terminate().code(), Some(0));
    }
}
