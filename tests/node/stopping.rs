//! The end of the process while something blocks it.

use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use tokio::time::Instant;

use crate::namespace::Namespace;
use crate::process::Process;
use crate::support::needs::{Test, tests};

/// The tests of this module.
pub const TESTS: &[Test] = tests![a_resolver_that_hangs_does_not_hold_up_the_end];

/// The resolver waits for three times as long at least, and Kubernetes kills a container after that.
const PATIENCE: Duration = Duration::from_secs(10);

fn a_resolver_that_hangs_does_not_hold_up_the_end() {
    let node = Namespace::new("metadata-stopping");
    fs::write(node.etc().join("resolv.conf"), "nameserver 127.0.0.53\noptions timeout:30 attempts:3\n")
        .expect("root may");
    let resolver = node.spawn(|| UdpSocket::bind("127.0.0.53:53")).join().expect("no panic").expect("a free port");
    let args = ["--addr=127.0.0.1:988", "--metrics-addr=127.0.0.1:989", "--upstream=http://metadata.test"];
    let process = Process::start(&node, &args);
    resolver.set_read_timeout(Some(3 * PATIENCE)).expect("not zero");
    resolver.recv(&mut [0; 512]).expect("it asks for the address of its upstream");
    let began = Instant::now();
    assert!(process.terminate().success());
    assert!(began.elapsed() < PATIENCE, "it waited for the resolver");
}
