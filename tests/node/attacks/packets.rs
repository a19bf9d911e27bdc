//! Pods that make their own packets, by Python.

use super::{Read, Scene, Stranger, TOOLS, count, read, seen};
use crate::namespace::Namespace;
use crate::support::needs::{Test, tests};
use crate::world::{KUBE_ENV, SERVER, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    source_routes_lead_nowhere,
    marks_fast_open_and_multipath_lead_to_the_proxy,
    frames_of_a_pod_s_own_are_redirected_too,
    arp_of_a_pod_does_not_take_the_proxy_s_place,
];

/// Asks for a secret by a pod's own program: the words of Python open a socket `s` and connect it.
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
