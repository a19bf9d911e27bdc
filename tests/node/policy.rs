//! Network policies: what a pod under default deny must be allowed, and what a policy that denies must name, by where the network
//! enforces them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::attacks::{Read, destination, proxy, read, read_briefly};
use crate::check::check;
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, SERVER_V6, World, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_policy_at_the_pod_s_interface_sees_the_server_s_address,
    a_policy_in_netfilter_sees_the_proxy_s_address,
    a_policy_that_denies_the_server_alone_closes_it_at_the_interface_only,
    a_policy_is_named_where_nobody_answers,
];

/// As eBPF programs and Open vSwitch have it: before any hook that rewrites.
const AT_THE_INTERFACE: &str = "add chain netdev policies pod { type filter hook ingress device pod1 priority 0; }";

/// As those that use iptables or nftables: where the node gets what was rewritten.
const IN_NETFILTER: &str = "add chain inet policies pod { type filter hook input priority 0; }";

/// The server's addresses.
const METADATA: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254))];

/// The first pod may send TCP to this address and nothing else.
fn allow(world: &World, chain: &str, to: &str) {
    let to: SocketAddr = to.parse().expect("an address");
    let accept = format!("ip daddr {} tcp dport {} accept", to.ip(), to.port());
    enforce(world, chain, &[&accept, "meta l4proto tcp drop"]);
}

/// The first pod may send anything but to these addresses, as by an `ipBlock` with `except`.
fn deny(world: &World, chain: &str, addresses: &[IpAddr]) {
    let drops: Vec<String> = addresses
        .iter()
        .map(|addr| format!("{} daddr {addr} drop", if addr.is_ipv4() { "ip" } else { "ip6" }))
        .collect();
    enforce(world, chain, &drops.iter().map(|drop| &**drop).collect::<Vec<_>>());
}

/// The first pod's packets meet these rules, and those of no earlier policy.
fn enforce(world: &World, chain: &str, rules: &[&str]) {
    let family = chain.split(' ').nth(2).expect("a family");
    let from = if family == "inet" { "iifname pod1" } else { "" };
    let rules: Vec<String> = rules.iter().map(|rule| format!("add rule {family} policies pod {from} {rule}")).collect();
    let rules = rules.join("\n");
    world.node.sh(&format!(
        "nft -f - <<end
        add table {family} policies
        delete table {family} policies
        add table {family} policies
        {chain}
        {rules}\nend"
    ));
}

fn world() -> (World, Process) {
    let world = World::new();
    succeeds(&redirect(&world.node, "install"));
    let proxy = proxy(&world);
    (world, proxy)
}

fn a_policy_at_the_pod_s_interface_sees_the_server_s_address() {
    let (world, _proxy) = world();
    allow(&world, AT_THE_INTERFACE, "169.254.169.254:80");
    assert_eq!(read(&world.pods[0], SERVER), Read::Proxy);
    allow(&world, AT_THE_INTERFACE, &destination(&world)[0]);
    assert_eq!(read_briefly(&world.pods[0], SERVER), Read::Nothing);
}

fn a_policy_in_netfilter_sees_the_proxy_s_address() {
    let (world, _proxy) = world();
    allow(&world, IN_NETFILTER, &destination(&world)[0]);
    assert_eq!(read(&world.pods[0], SERVER), Read::Proxy);
    allow(&world, IN_NETFILTER, "169.254.169.254:80");
    assert_eq!(read_briefly(&world.pods[0], SERVER), Read::Nothing);
}

fn a_policy_that_denies_the_server_alone_closes_it_at_the_interface_only() {
    let (world, _proxy) = world();
    let pod = &world.pods[0];
    let server: Vec<IpAddr> = METADATA.to_vec();
    let proxys = destination(&world).into_iter().map(|to| to.parse::<SocketAddr>().expect("an address").ip());
    let both: Vec<IpAddr> = server.iter().copied().chain(proxys).collect();
    assert_eq!(both.len(), 4, "{both:?}");
    for (chain, denied, expected) in [
        (AT_THE_INTERFACE, &server, Read::Nothing),
        // What is wrong with such a policy: the packet that it judges goes to the proxy.
        (IN_NETFILTER, &server, Read::Proxy),
        (AT_THE_INTERFACE, &both, Read::Nothing),
        (IN_NETFILTER, &both, Read::Nothing),
    ] {
        world.node.sh("nft delete table netdev policies; nft delete table inet policies; true");
        deny(&world, chain, denied);
        for host in [SERVER, SERVER_V6] {
            assert_eq!(read_briefly(pod, host), expected, "{host}, {chain}, without {denied:?}");
        }
    }
}

fn a_policy_is_named_where_nobody_answers() {
    let (world, proxy) = world();
    let pod = &world.pods[0];
    let named = "docs/redirect.md#network-policies";
    allow(&world, IN_NETFILTER, "192.0.2.1:80");
    let closed = check(pod, &[]);
    assert_eq!(closed.code, Some(2), "{closed:?}");
    assert!(closed.stdout.contains(named), "{}", closed.stdout);
    world.node.sh("nft delete table inet policies");
    proxy.kill();
    let gone = check(pod, &[]);
    assert_eq!(gone.code, Some(2), "{gone:?}");
    assert!(!gone.stdout.contains(named), "a proxy that is not there is no policy: {}", gone.stdout);
}
