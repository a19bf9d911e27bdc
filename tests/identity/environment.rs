//! The environment has the properties that the other tests rely on, whatever the proxy makes of it.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::kube::{ApiServer, Client, NODE, OWN_NODE};
use crate::pod::PORT;
use crate::sandbox::{Address, Node, Sandbox};
use crate::support::needs::{Test, tests};
use crate::world::World;

pub const TESTS: &[Test] = tests![
    the_kernel_shows_a_sandbox_as_it_does_on_a_node,
    a_node_sees_its_own_pods_until_they_are_deleted_for_good,
    the_proxy_s_own_account_may_act_as_its_own_node_only,
    a_stalled_watch_goes_on_where_it_was,
    a_killed_server_comes_back_with_its_data,
];

fn the_kernel_shows_a_sandbox_as_it_does_on_a_node() {
    let node = Arc::new(Node::new());
    let [address, another] = [2, 3].map(|number| node.network.address(number));
    let [uid, other] = [1, 2].map(|digit| format!("6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5{digit}"));
    let read = |id: u32, file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).expect("it lives");
    let shows = |id: u32, address: Address| {
        let v6 = address.v6.octets().map(|byte| format!("{byte:02x}")).concat();
        let v4 = format!("|-- {}\n", address.v4);
        [read(id, "net/fib_trie").contains(&v4), read(id, "net/if_inet6").contains(&v6)]
    };
    let is_of = |id: u32, uid: &str| read(id, "cgroup").contains(&format!("/kubepods/pod{uid}/"));

    let mut sandbox = Sandbox::start(&node, &uid, address);
    let pause = sandbox.pause_id();
    assert!(is_of(pause, &uid) && !is_of(pause, &other), "{}", read(pause, "cgroup"));
    assert_eq!((shows(pause, address), shows(pause, another)), ([true; 2], [false; 2]));
    for ip in node.network.node().both() {
        let listener = node.namespace.spawn(move || TcpListener::bind((ip, PORT)).expect("the node's address"));
        let listener = listener.join().expect("no panic");
        let connect = move || TcpStream::connect((ip, PORT)).and_then(|stream| stream.local_addr());
        let from = sandbox.spawn(connect).join().expect("no panic").expect("the node is reached");
        assert_eq!(listener.accept().expect("a connection").1, from);
        assert!(address.both().contains(&from.ip()), "{from}");
    }

    let mut liar = Sandbox::start(&node, &other, another);
    liar.claim(address);
    let impostor = liar.last_id();
    assert!(is_of(impostor, &other) && shows(impostor, address) == [true; 2]);
    assert!(began(impostor) >= began(liar.pause_id()), "it is younger than its pod");

    sandbox.unplug();
    assert_eq!(shows(pause, address), [false; 2], "the process lives, without its address");
    sandbox.kill();
    assert!(!fs::exists(format!("/proc/{pause}")).expect("/proc is there"));
}

/// Start of a process, in ticks since boot.
fn began(id: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("it lives");
    let fields = stat.rsplit_once(") ").expect("a name in brackets").1;
    fields.split(' ').nth(19).expect("the 22nd field").parse().expect("ticks")
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|pod| pod["metadata"]["name"].as_str()).collect()
}

fn a_node_sees_its_own_pods_until_they_are_deleted_for_good() {
    let server = ApiServer::start(None);
    let (mut admin, mut node) = (server.admin(), server.node());
    admin.create_account("team-0", "app-0");
    let pod = admin.create_pod("team-0", "pod-0", "app-0", NODE);
    admin.create_pod("team-0", "pod-1", "app-0", "node-2");
    assert_eq!(names(&node.pods_of(NODE).body), ["pod-0"]);
    assert_eq!(node.pods_of("node-2").status, 403);

    admin.set_addresses(&pod, &[[10, 7, 0, 5].into()]);
    admin.delete_pod(&pod, 30);
    let list = node.pods_of(NODE).body;
    let seen = &list["items"][0];
    assert_eq!(seen["status"]["podIPs"][0]["ip"], "10.7.0.5", "{list}");
    assert!(seen["metadata"]["deletionTimestamp"].is_string(), "a terminating pod is still there: {list}");
    admin.delete_pod(&pod, 0);
    assert!(names(&node.pods_of(NODE).body).is_empty());

    let next = admin.create_pod("team-0", "pod-0", "app-0", NODE);
    assert_ne!(next.uid, pod.uid);
    admin.set_phase(&next, "Succeeded");
    assert_eq!(node.pods_of(NODE).body["items"][0]["status"]["phase"], "Succeeded");
}

fn the_proxy_s_own_account_may_act_as_its_own_node_only() {
    let server = ApiServer::start(None);
    let mut admin = server.admin();
    let token = admin.own_token(NODE);
    admin.apply(OWN_NODE, "p.svc.id.goog");
    assert_eq!(names(&server.own_account(&token, NODE).pods_of(NODE).body), ["proxy-node-1"]);
    assert_eq!(server.own_account(&token, "node-2").pods_of("node-2").status, 403);
}

fn a_stalled_watch_goes_on_where_it_was() {
    let world = World::new();
    let mut admin = world.server.admin();
    admin.create_account("team-0", "app-0");
    let mut node = world.server.node_by_way_of(world.watch.addr());
    assert_eq!(node.pods_of(NODE).status, 200);

    world.watch.hold();
    let (send, listed) = channel();
    let asking = thread::spawn(move || {
        let list = |node: &mut Client| node.ask("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1", None);
        while send.send(list(&mut node).map(|answer| answer.status).ok()).is_ok() {}
    });
    let early = listed.recv_timeout(Duration::from_millis(500));
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "it is held");
    world.watch.pass();
    let long = Duration::from_secs(20);
    assert_eq!(listed.recv_timeout(long), Ok(Some(200)), "what was held arrives, on the same connection");
    world.watch.refuse();
    assert!((0..1000).any(|_| listed.recv_timeout(long) == Ok(None)), "it is cut");
    world.watch.pass();
    assert!((0..1000).any(|_| listed.recv_timeout(long) == Ok(Some(200))), "and comes again");
    drop(listed);
    asking.join().expect("no panic");
}

fn a_killed_server_comes_back_with_its_data() {
    let mut server = ApiServer::start(None);
    let mut admin = server.admin();
    admin.create_account("team-0", "app-0");
    let pod = admin.create_pod("team-0", "pod-0", "app-0", NODE);
    server.kill();
    assert!(admin.ask("GET", "/readyz", None).is_err());
    server.restart();
    let list = admin.pods_of(NODE).body;
    assert_eq!(list["items"][0]["metadata"]["uid"], Value::from(pod.uid), "{list}");
}
