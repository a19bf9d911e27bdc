//! A rolling update: a new proxy takes over on the same address, seen from the pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::namespace::{Kept, Namespace};
use crate::support::needs::{Test, tests};
use crate::world::{TOKEN, World, eventually, redirect, server, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![pods_do_not_notice_a_rolling_update,];

/// A pod's clients, which keep their connections, and open new ones when a response announces a close.
struct Load {
    clients: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl Load {
    fn begin(pods: &[Namespace]) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |pod: &Namespace| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            pod.spawn(move || {
                while !stop.load(Relaxed) {
                    ask_until_closed(&stop, &answered);
                }
            })
        };
        let clients = pods.iter().flat_map(|pod| (0..5).map(move |_| pod)).map(client).collect();
        Self { clients, stop, answered }
    }

    /// Waits for this many more responses.
    fn go_on(&self, more: u64) {
        let wanted = self.answered.load(Relaxed) + more;
        eventually("the load goes on", || {
            self.answered.load(Relaxed) >= wanted || self.clients.iter().any(JoinHandle::is_finished)
        });
    }

    /// Ends the load. Fails if a request failed.
    fn end(self) {
        self.stop.store(true, Relaxed);
        for client in self.clients {
            client.join().expect("no request failed");
        }
    }
}

fn ask_until_closed(stop: &AtomicBool, answered: &AtomicU64) {
    let mut connection = Kept::open(server()).expect("somebody listens");
    // Few requests per connection, so that new connections are opened all the time.
    for _ in 0..20 {
        if stop.load(Relaxed) {
            return;
        }
        let answer = connection.ask(TOKEN).expect("a request that was sent is answered");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answered.fetch_add(1, Relaxed);
        if answer.to_ascii_lowercase().contains("connection: close") {
            return;
        }
    }
}

fn pods_do_not_notice_a_rolling_update() {
    let world = World::new();
    // Otherwise a connection that is being opened while its listener closes is reset, whoever else listens there.
    world.node.sh("echo 1 > /proc/sys/net/ipv4/tcp_migrate_req");
    // Each process has its own port for operators: port 0 picks a free one.
    let start = || world.proxy(&["--metrics-addr=127.0.0.1:0", "--reuse-port", "--redirect"]);
    let mut running = start();
    let load = Load::begin(&world.pods);
    for _ in 0..3 {
        load.go_on(500);
        let next = start();
        load.go_on(500);
        assert_eq!(running.terminate().code(), Some(0));
        running = next;
    }
    load.go_on(500);
    succeeds(&redirect(&world.node, "install"));
    load.go_on(500);
    load.end();
}
