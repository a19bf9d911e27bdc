//! Rules of others beside the redirect's.

use std::net::SocketAddr;

use super::{Read, Scene, Stranger, TOOLS, count, read, read_briefly, seen};
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, SERVER_V6};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_service_with_the_server_s_address_answers_nobody,
    a_host_port_for_all_addresses_answers_nobody,
    a_host_port_of_the_proxy_s_own_port_answers_nobody,
    an_endpoint_that_is_the_server_is_closed,
    a_packet_that_is_not_forwarded_is_closed_too,
    rules_that_accept_everything_first_open_nothing,
];

/// The second pod, which is the attacker's.
const ATTACKER: [&str; 2] = ["10.8.2.2:80", "[fd00:b:2::2]:80"];

impl Scene {
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
