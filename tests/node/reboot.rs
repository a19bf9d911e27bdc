//! After a reboot, before any container runs.

use std::io::Write as _;
use std::process::Stdio;

use crate::attacks::{Read, proxy, read, read_briefly};
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, WAYS_ROUND, World, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![rules_that_were_printed_close_pods_until_the_redirect_takes_over];

/// What a unit of the node's image does: it needs `nft` and the printed rules, and neither the binary nor a container.
fn rules_that_were_printed_close_pods_until_the_redirect_takes_over() {
    let world = World::new();
    let pod = &world.pods[0];
    let printed = redirect(&world.node, "install --dry-run --tool nft");
    succeeds(&printed);
    assert_eq!(read(pod, SERVER), Read::Server, "as after a reboot");
    let mut nft = world.node.command("nft");
    let mut nft = nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("it is here");
    nft.stdin.take().expect("piped").write_all(printed.stdout.as_bytes()).expect("it reads");
    assert!(nft.wait().expect("it runs").success());
    for way in WAYS_ROUND.into_iter().chain([SERVER]) {
        assert_eq!(read_briefly(pod, way), Read::Nothing, "{way}");
    }
    succeeds(&redirect(&world.node, "install"));
    let _proxy = proxy(&world);
    assert_eq!(read(pod, SERVER), Read::Proxy);
}
