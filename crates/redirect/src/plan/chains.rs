//! The chains of a plan, and the rules in each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::super::destination::{self, METADATA_V4, METADATA_V6};
use super::super::rule::{Chain, Hook, Hosts, Name, Rule, Then, When};
use super::super::uplinks::Uplinks;
use super::super::{Destination, DropSpoofed, Mode, Opened, Rate, Routes, Settings};

pub(super) const SERVER_V4: Hosts = Hosts::one(IpAddr::V4(METADATA_V4));
const SERVER_V6: Hosts = Hosts::one(IpAddr::V6(METADATA_V6));
pub(super) const LOOPBACK: Hosts = Hosts { addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };

/// The metadata server's address is also that of the DNS resolver, which pods may use.
pub(super) const DNS: u16 = 53;

const HTTP: u16 = 80;

/// The proxy distinguishes pods by their source addresses. If this is off, the chain is installed without rules, so that it
/// replaces an earlier one.
pub(super) fn spoof(settings: &Settings, to: &[SocketAddr], uplinks: &Uplinks) -> Chain {
    let spoofed = to.iter().map(|to| Rule {
        when: vec![When::To(server(*to)), When::Spoofed],
        then: Then::Drop,
        why: "from an address that is not the pods own",
    });
    let rules = match settings.opened.drop_spoofed {
        DropSpoofed::True => leave_outside(to, uplinks).chain(spoofed).collect(),
        DropSpoofed::Auto | DropSpoofed::False => Vec::new(),
    };
    Chain { name: Name::Spoof, hook: Hook::Prerouting, rules }
}

/// Drops new connections of a source beyond the rate, before conntrack or the proxy knows them. They are dropped, not reset:
/// the kernel of an honest client tries again after a second, and a flood gets no responses. Only sources that are routed
/// back to the same interface are counted. Otherwise a pod that sends from random addresses, which opens no connection
/// anyway, could fill the table of sources.
pub(super) fn bound(rate: Rate, to: &[SocketAddr], uplinks: &Uplinks) -> Chain {
    let excess = to.iter().map(|to| Rule {
        when: vec![When::To(server(*to)), When::Port(HTTP), When::New, When::RoutedBack, When::Above(rate)],
        then: Then::DropCounted,
        why: "more new connections than a pod may open",
    });
    Chain { name: Name::Bound, hook: Hook::Prerouting, rules: leave_outside(to, uplinks).chain(excess).collect() }
}

pub(super) fn redirect_pods(to: &[SocketAddr], uplinks: &Uplinks) -> Chain {
    let rules = leave_outside(to, uplinks).chain(to.iter().copied().map(send_to)).collect();
    Chain { name: Name::Redirect, hook: Hook::Prerouting, rules }
}

/// Redirects the packets of this pod, except the proxy's.
pub(super) fn redirect_own(proxy_uid: u32, to: &[SocketAddr]) -> Chain {
    let rules = std::iter::once(leave_proxy(proxy_uid)).chain(to.iter().copied().map(send_to)).collect();
    Chain { name: Name::Redirect, hook: Hook::Output, rules }
}

/// The metadata server's address of the same IP version.
fn server(to: SocketAddr) -> Hosts {
    if to.is_ipv4() { SERVER_V4 } else { SERVER_V6 }
}

fn leave_outside(to: &[SocketAddr], uplinks: &Uplinks) -> impl Iterator<Item = Rule> {
    to.iter().flat_map(|to| {
        uplinks.towards(*to).iter().map(|uplink| Rule {
            when: vec![When::From(uplink.clone()), When::To(server(*to))],
            then: Then::Leave,
            why: "from outside the node, not from a pod",
        })
    })
}

fn send_to(to: SocketAddr) -> Rule {
    Rule {
        when: vec![When::To(server(to)), When::Port(HTTP)],
        then: Then::SendTo(to),
        why: "requests for metadata go to the proxy",
    }
}

/// Lets packets of the proxy in a sidecar pass.
pub(super) fn leave_proxy(uid: u32) -> Rule {
    Rule { when: vec![When::Uid(uid)], then: Then::Leave, why: "from the proxy itself" }
}

/// Redirected packets do not match in this chain: on a node they are not forwarded, and in a pod they already have another
/// destination. So any packet to the metadata server bypasses the proxy, by another port or on a connection opened before
/// the redirect; or there is no redirect.
pub(super) fn bypass(mode: &Mode, opened: &Opened) -> Chain {
    let (hook, rules) = match *mode {
        Mode::DaemonSet { .. } => (Hook::Forward, close(&opened.routes, true)),
        Mode::Sidecar { proxy_uid } => {
            (Hook::Output, std::iter::once(leave_proxy(proxy_uid)).chain(close(&opened.routes, false)).collect())
        }
    };
    Chain { name: Name::Bypass, hook, rules }
}

/// The server's addresses that are closed, each with the ports that stay open.
fn closed(open: &Routes) -> impl Iterator<Item = (Hosts, Vec<u16>)> {
    let v4 = std::iter::once(DNS).chain(open.ports.iter().copied()).collect();
    let v6 = (!open.ipv6).then(|| (SERVER_V6, vec![DNS]));
    std::iter::once((SERVER_V4, v4)).chain(v6)
}

fn close(open: &Routes, answers_too: bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (server, ports) in closed(open) {
        let [no_way, no_answer] = match server.addr {
            IpAddr::V4(_) => ["no way round the proxy", "no answer on connections older than the redirect"],
            IpAddr::V6(_) => {
                ["no way round the proxy by IPv6", "no answer by IPv6 on connections older than the redirect"]
            }
        };
        let to = vec![When::To(server), When::PortsBut(ports.clone())];
        rules.push(Rule { when: to, then: Then::Reset, why: no_way });
        if answers_too {
            // A pod in a hanging GET sends nothing until the response arrives, so block the response too.
            let by = vec![When::By(server), When::SourcePortsBut(ports)];
            rules.push(Rule { when: by, then: Then::Reset, why: no_answer });
        }
    }
    rules
}

/// This is the last hook that a packet passes, after all other programs' rules. Some packets of pods do not pass *bypass*:
/// those that IPVS or `dup` sends, which count as the node's own, and those whose header changes after it, by a source
/// route. And with iptables, another program's rule that accepts a packet before *bypass* ends the table `filter`, but not
/// the table of this chain.
///
/// A destination is rewritten once, by the first rule that matches. If that is not the redirect, another server would answer
/// pods, or the proxy, in the metadata server's name. Packets of such a connection are dropped.
pub(super) fn leaving(open: &Routes) -> Chain {
    let rules = closed(open).flat_map(|(server, ports)| leaving_for(server, ports)).collect();
    Chain { name: Name::Leaving, hook: Hook::Postrouting, rules }
}

/// The node's own packets to the server may leave. Packets from the server to the node do not pass this hook.
fn leaving_for(server: Hosts, ports: Vec<u16>) -> [Rule; 3] {
    [
        Rule {
            when: vec![When::To(server), When::PortsBut(ports.clone()), When::NoReset, When::Foreign],
            then: Then::Drop,
            why: "no way round the proxy that others opened",
        },
        Rule {
            when: vec![When::By(server), When::SourcePortsBut(ports), When::NoReset],
            then: Then::Drop,
            why: "no answer that others let pass",
        },
        Rule { when: vec![When::Diverted(server)], then: Then::Drop, why: "nobody answers in the servers name" },
    ]
}

pub(super) fn guard(to: &Destination) -> Chain {
    let redirected = to.addrs().map(|to| Rule {
        when: vec![When::Redirected(server(to))],
        then: Then::Leave,
        why: "from a pod by the redirect",
    });
    guard_with(redirected.chain(to.addrs().map(guard_proxy)))
}

/// A guard that lets the node itself pass, and has these rules for others.
pub(super) fn guard_with(rules: impl Iterator<Item = Rule>) -> Chain {
    let from_node = Rule { when: vec![When::From("lo".to_owned())], then: Then::Leave, why: "from the node itself" };
    Chain { name: Name::Guard, hook: Hook::Input, rules: std::iter::once(from_node).chain(rules).collect() }
}

/// At an address that the redirect added, only redirected pods and the node reach any port. Otherwise servers that listen on
/// all of the node's addresses could be reached there, past other programs' rules, which know only the node's other
/// addresses.
pub(super) fn guard_proxy(to: SocketAddr) -> Rule {
    if destination::is_added(to.ip()) {
        return Rule { when: vec![to_proxy(to)], then: Then::Drop, why: "nobody else reaches the proxys address" };
    }
    guard_port(to)
}

/// At another address only the proxy's port is guarded.
pub(super) fn guard_port(to: SocketAddr) -> Rule {
    Rule { when: vec![to_proxy(to), When::Port(to.port())], then: Then::Drop, why: "nobody else reaches the proxy" }
}

fn to_proxy(to: SocketAddr) -> When {
    When::To(Hosts::one(to.ip()))
}

/// kube-proxy, which also needs `route_localnet`, guards loopback with the same three rules. They come after the guard of
/// the proxy. Otherwise a Service whose endpoint is the proxy's address would open it to the network.
pub(super) fn guard_loopback() -> [Rule; 3] {
    [
        Rule { when: vec![When::Established], then: Then::Leave, why: "answers to the node itself" },
        Rule { when: vec![When::Rewritten], then: Then::Leave, why: "to something else, by rules of others" },
        Rule { when: vec![When::To(LOOPBACK)], then: Then::Drop, why: "loopback is for the node alone" },
    ]
}
