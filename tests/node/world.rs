//! [`World`]: a node, two pods, and the metadata server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::machine;
use super::namespace::Namespace;
use super::process::{Ended, Process};

pub const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
pub const KUBE_ENV: &str = "/computeMetadata/v1/instance/attributes/kube-env";

/// The address for pods' requests.
pub const SERVER: &str = "http://169.254.169.254";

/// The same for pods with IPv6.
pub const SERVER_V6: &str = "http://[fd20:ce::254]";

/// Routes that bypass the proxy.
pub const WAYS_ROUND: [&str; 5] = [
    "http://169.254.169.254:443",
    "http://169.254.169.254:8081",
    "http://169.254.169.254:8083",
    "http://[fd20:ce::254]:443",
    "http://169.254.169.254:8080",
];

/// A port of the server that is none of its services.
pub const OTHER_PORT: u16 = 9090;

/// Addresses that the mock listens on.
const MOCKS: [&str; 8] = [
    "169.254.169.254:80",
    "169.254.169.254:443",
    "169.254.169.254:8080",
    "169.254.169.254:8081",
    "169.254.169.254:8083",
    "169.254.169.254:9090",
    "[fd20:ce::254]:80",
    "[fd20:ce::254]:443",
];

/// The proxy's arguments.
pub const AS_A_PROXY: [&str; 2] = ["--upstream=http://169.254.169.254", "--log=info"];

/// The node's own address.
pub const NODE: &str = "10.128.0.2";
pub const NODE_V6: &str = "fd00:a::2";

/// Number of worlds in this process so far.
static WORLDS: AtomicU32 = AtomicU32::new(0);

/// A node with two pods, and the metadata server beyond its uplink. Fields are in the order of their drop: processes
/// first.
pub struct World {
    _mocks: Vec<Process>,
    pub pods: [Namespace; 2],
    pub node: Arc<Namespace>,
    pub outside: Namespace,
}

impl World {
    pub fn new() -> Self {
        let world = format!("metadata-{}-{}", std::process::id(), WORLDS.fetch_add(1, Relaxed));
        let namespace = |part| Namespace::new(&format!("{world}-{part}"));
        let (outside, node, pods) = (namespace("outside"), namespace("node"), [namespace("pod1"), namespace("pod2")]);

        join(&node, "eth0", &outside, "eth0");
        address(&node, "eth0", &format!("{NODE}/24"), &format!("{NODE_V6}/64"));
        address(&outside, "eth0", "10.128.0.1/24", "fd00:a::1/64");
        address(&outside, "lo", "169.254.169.254/32", "fd20:ce::254/128");
        gateway(&node, "10.128.0.1", "fd00:a::1");
        gateway(&outside, NODE, NODE_V6);
        for (number, pod) in (1..).zip(&pods) {
            let interface = format!("pod{number}");
            join(&node, &interface, pod, "eth0");
            address(&node, &interface, &format!("10.8.{number}.1/24"), &format!("fd00:b:{number}::1/64"));
            address(pod, "eth0", &format!("10.8.{number}.2/24"), &format!("fd00:b:{number}::2/64"));
            gateway(pod, &format!("10.8.{number}.1"), &format!("fd00:b:{number}::1"));
        }
        node.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");

        let mocks = MOCKS.iter().map(|addr| {
            let mock = Process::start(&outside, &["mock", "--addr", addr]);
            mock.line("mock metadata server on");
            mock
        });
        Self { _mocks: mocks.collect(), pods, node: Arc::new(node), outside }
    }

    /// Starts the proxy on the node, and waits until it is ready.
    pub fn proxy(&self, args: &[&str]) -> Process {
        let proxy = Process::start(&self.node, &[&AS_A_PROXY, args].concat());
        proxy.line("cache warmed up");
        proxy
    }

    /// Everything in a namespace that the redirect could change.
    pub fn state_of(namespace: &Namespace) -> String {
        // Without the sources of connections, which come and go.
        namespace.sh("nft -s -t list ruleset
            for save in iptables-save ip6tables-save; do $save | sed '/^#/d; s/ .[0-9]*:[0-9]*.$//'; done
            cat /proc/sys/net/ipv4/conf/all/route_localnet; ip address show lo")
    }
}

/// Runs `redirect` with these words.
pub fn redirect(namespace: &Namespace, words: &str) -> Ended {
    let args: Vec<&str> = std::iter::once("redirect").chain(words.split_whitespace()).collect();
    Process::run(namespace, &args)
}

/// Waits until a condition holds.
#[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous, and a test may sleep")]
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waiting = Instant::now();
    while !holds() {
        assert!(waiting.elapsed() < Duration::from_secs(30) * machine::patience(), "not in time: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Asserts that a command succeeded.
pub fn succeeds(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Asserts that a route leads from this namespace to the metadata server itself.
pub fn is_open(place: &Namespace, way: &str) {
    let answer = place.curl(&format!("{way}{KUBE_ENV}"));
    assert_eq!(answer.status, 200, "{way} is closed: {answer:?}");
    assert!(!answer.text.contains("gce-metadata-proxy"), "{way} leads to the proxy: {answer:?}");
}

/// Asserts that a route from this namespace is refused.
pub fn is_closed(place: &Namespace, way: &str) {
    let answer = place.curl(&format!("{way}{KUBE_ENV}"));
    assert_eq!((answer.code, answer.status), (7, 0), "{way} is not refused: {answer:?}");
}

/// Asserts that this namespace is served by the proxy only, over both IP versions.
pub fn is_protected(place: &Namespace) {
    is_protected_at(place, &[SERVER, SERVER_V6, "http://metadata.google.internal"]);
}

/// A place that is served by the proxy at these addresses, and by nobody else.
pub fn is_protected_at(place: &Namespace, hosts: &[&str]) {
    for host in hosts {
        let token = place.curl(&format!("{host}{TOKEN}"));
        assert!(token.status == 200 && token.text.contains("access_token"), "no token from {host}: {token:?}");
        let secret = place.curl(&format!("{host}{KUBE_ENV}"));
        assert_eq!(secret.status, 403, "{secret:?}");
        assert!(secret.text.contains("gce-metadata-proxy") && secret.text.contains("concealed"), "{secret:?}");
    }
    for way in WAYS_ROUND {
        is_closed(place, way);
    }
}

/// The metadata server's address on port 80.
pub fn server() -> SocketAddr {
    ([169, 254, 169, 254], 80).into()
}

fn join(one: &Namespace, name: &str, other: &Namespace, peer: &str) {
    one.ip(&format!("link add {name} type veth peer name {peer} netns {}", other.name()));
}

fn address(namespace: &Namespace, interface: &str, v4: &str, v6: &str) {
    namespace.ip(&format!("link set {interface} up"));
    namespace.ip(&format!("addr add {v4} dev {interface}"));
    // Without duplicate address detection, for which the kernel takes a second.
    namespace.ip(&format!("-6 addr add {v6} dev {interface} nodad"));
}

fn gateway(namespace: &Namespace, v4: &str, v6: &str) {
    namespace.ip(&format!("route add default via {v4}"));
    namespace.ip(&format!("-6 route add default via {v6}"));
}
