//! The rules as data. [`nft`](super::nft) and [`iptables`](super::iptables) translate them, so that both
//! install the same rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use super::{Mode, Settings};

/// The IPv4 address of the metadata server.
pub const METADATA_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// The address of the metadata server on machines with IPv6.
pub const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

const SERVER_V4: Hosts = Hosts { addr: IpAddr::V4(METADATA_V4), prefix: 32 };
const SERVER_V6: Hosts = Hosts { addr: IpAddr::V6(METADATA_V6), prefix: 128 };
const LOOPBACK: Hosts = Hosts { addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };

/// The metadata server's address is also that of the DNS resolver, which pods may use.
const DNS: u16 = 53;

const HTTP: u16 = 80;

/// The rules to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// In the order in which they are installed.
    pub(super) chains: Vec<Chain>,
}

/// Rules at one hook. The first match applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: Name,
    pub(super) hook: Hook,
    pub(super) rules: Vec<Rule>,
}

/// The purpose of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// Drops what pods send from addresses that are not theirs.
    Spoof,
    /// Sends requests for the metadata server to the proxy.
    Redirect,
    /// Blocks all other routes to the metadata server.
    Bypass,
    /// Allows only redirected pods and the node to use what the redirect opens.
    Guard,
}

/// The kernel's hook that a chain is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    Prerouting,
    Forward,
    Input,
    Output,
}

/// One rule: its conditions, its action, and the reason, which is shown in listings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) when: Vec<When>,
    pub(super) then: Then,
    /// Without quotation marks and apostrophes, which the tools would escape differently.
    why: &'static str,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum When {
    /// The packet was received on this interface.
    From(String),
    /// The packet was sent by a process of this user.
    Uid(u32),
    To(Hosts),
    By(Hosts),
    /// TCP to this port.
    Port(u16),
    /// TCP to any other port.
    PortsBut(Vec<u16>),
    /// TCP from any other port.
    SourcePortsBut(Vec<u16>),
    /// The packet's connection was opened to the metadata server's IPv4 address, and its destination was
    /// rewritten.
    Redirected,
    /// The packet's destination was rewritten, from any address.
    Rewritten,
    /// The packet belongs to an established connection.
    Established,
    /// The packet's source is not reached by the interface that the packet was received on.
    Spoofed,
}

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Leave it to other chains.
    Leave,
    /// Send it to the proxy.
    SendTo(SocketAddrV4),
    /// Reset its connection, so that the client notices immediately and opens another.
    Reset,
    /// Drop it.
    Drop,
}

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hosts {
    addr: IpAddr,
    prefix: u8,
}

impl Plan {
    /// Builds the rules for these settings. On a node, packets received on the uplinks are not from pods.
    pub(super) fn new(settings: &Settings, uplinks: &[String]) -> Self {
        let chains = match settings.mode {
            Mode::DaemonSet { .. } => vec![
                Chain { name: Name::Spoof, hook: Hook::Prerouting, rules: drop_spoofed(settings, uplinks) },
                Chain { name: Name::Redirect, hook: Hook::Prerouting, rules: redirect_pods(settings.to, uplinks) },
                Chain { name: Name::Bypass, hook: Hook::Forward, rules: close(settings, true) },
                Chain { name: Name::Guard, hook: Hook::Input, rules: guard(settings.to) },
            ],
            Mode::Sidecar { proxy_uid } => {
                let own = || Rule { when: vec![When::Uid(proxy_uid)], then: Then::Leave, why: "from the proxy itself" };
                let redirect = vec![own(), send_to(settings.to)];
                let bypass = std::iter::once(own()).chain(close(settings, false)).collect();
                vec![
                    Chain { name: Name::Redirect, hook: Hook::Output, rules: redirect },
                    Chain { name: Name::Bypass, hook: Hook::Output, rules: bypass },
                ]
            }
        };
        Self { chains }
    }

    /// The marks of all rules, which identify them in listings.
    pub(super) fn marks(&self) -> Vec<String> {
        self.chains.iter().flat_map(|chain| &chain.rules).map(|rule| self.mark(rule)).collect()
    }

    /// The comment of a rule: its reason and the fingerprint of the plan, which distinguishes the rule from
    /// those of other settings or releases.
    pub(super) fn mark(&self, rule: &Rule) -> String {
        format!("{} [{:08x}]", rule.why, self.fingerprint())
    }

    /// FNV-1a over the rules.
    fn fingerprint(&self) -> u32 {
        format!("{self:?}").bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

/// The proxy tells pods apart by their source addresses. The chain is there without rules if it is off, so that it replaces an
/// earlier one.
fn drop_spoofed(settings: &Settings, uplinks: &[String]) -> Vec<Rule> {
    if !settings.opened.drop_spoofed {
        return Vec::new();
    }
    let spoofed = Rule {
        when: vec![When::To(SERVER_V4), When::Spoofed],
        then: Then::Drop,
        why: "from an address that is not the pods own",
    };
    leave_outside(uplinks).chain([spoofed]).collect()
}

fn redirect_pods(to: SocketAddrV4, uplinks: &[String]) -> Vec<Rule> {
    leave_outside(uplinks).chain([send_to(to)]).collect()
}

fn leave_outside(uplinks: &[String]) -> impl Iterator<Item = Rule> {
    uplinks.iter().map(|uplink| Rule {
        when: vec![When::From(uplink.clone())],
        then: Then::Leave,
        why: "from outside the node, not from a pod",
    })
}

fn send_to(to: SocketAddrV4) -> Rule {
    Rule {
        when: vec![When::To(SERVER_V4), When::Port(HTTP)],
        then: Then::SendTo(to),
        why: "requests for metadata go to the proxy",
    }
}

/// Redirected packets do not reach this chain: those of a node are not forwarded, and those of a pod already
/// have another destination. So any packet to the metadata server bypasses the proxy, by another port or on a
/// connection opened before the redirect.
fn close(settings: &Settings, answers_too: bool) -> Vec<Rule> {
    let ports: Vec<u16> = std::iter::once(DNS).chain(settings.opened.ports.iter().copied()).collect();
    let mut rules = vec![Rule {
        when: vec![When::To(SERVER_V4), When::PortsBut(ports.clone())],
        then: Then::Reset,
        why: "no way round the proxy",
    }];
    if answers_too {
        // A pod in a hanging GET sends nothing until the response arrives, so block the response too.
        rules.push(Rule {
            when: vec![When::By(SERVER_V4), When::SourcePortsBut(ports)],
            then: Then::Reset,
            why: "no answer on connections older than the redirect",
        });
    }
    if !settings.opened.ipv6 {
        rules.push(Rule {
            when: vec![When::To(SERVER_V6), When::PortsBut(vec![DNS])],
            then: Then::Reset,
            why: "no way round the proxy by IPv6",
        });
        if answers_too {
            rules.push(Rule {
                when: vec![When::By(SERVER_V6), When::SourcePortsBut(vec![DNS])],
                then: Then::Reset,
                why: "no answer by IPv6 on connections older than the redirect",
            });
        }
    }
    rules
}

fn guard(to: SocketAddrV4) -> Vec<Rule> {
    let mut rules = vec![
        Rule { when: vec![When::From("lo".to_owned())], then: Then::Leave, why: "from the node itself" },
        Rule { when: vec![When::Redirected], then: Then::Leave, why: "from a pod by the redirect" },
        // Must precede the rule for rewritten packets: a Service whose endpoint is this address would open the
        // proxy to the network.
        Rule {
            when: vec![When::To(Hosts { addr: IpAddr::V4(*to.ip()), prefix: 32 }), When::Port(to.port())],
            then: Then::Drop,
            why: "nobody else reaches the proxy",
        },
    ];
    if is_loopback(to) {
        // kube-proxy, which also needs route_localnet, guards loopback with the same three rules.
        rules.extend([
            Rule { when: vec![When::Established], then: Then::Leave, why: "answers to the node itself" },
            Rule { when: vec![When::Rewritten], then: Then::Leave, why: "to something else, by rules of others" },
            Rule { when: vec![When::To(LOOPBACK)], then: Then::Drop, why: "loopback is for the node alone" },
        ]);
    }
    rules
}

/// Whether pods' packets reach the address only with the kernel's loopback routing enabled.
pub(super) fn is_loopback(to: SocketAddrV4) -> bool {
    to.ip().is_loopback()
}

impl Rule {
    /// Whether it matches only IPv6.
    pub(super) fn is_v6(&self) -> bool {
        self.when.iter().any(|when| matches!(when, When::To(hosts) | When::By(hosts) if hosts.addr.is_ipv6()))
    }

    /// Whether it matches both IP versions, because it contains no address.
    pub(super) fn is_either(&self) -> bool {
        !self.when.iter().any(|when| matches!(when, When::To(_) | When::By(_)))
    }
}

impl Hosts {
    pub(super) fn is_v6(self) -> bool {
        self.addr.is_ipv6()
    }
}

/// Formats the address as both tools do.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_one = self.prefix == if self.addr.is_ipv4() { 32 } else { 128 };
        if is_one { write!(f, "{}", self.addr) } else { write!(f, "{}/{}", self.addr, self.prefix) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Opened;
    use super::*;

    /// A node's plan, with one port left open.
    pub(in super::super) fn node() -> Plan {
        Plan::new(&node_settings([127, 0, 0, 1]), &["ens4".to_owned()])
    }

    /// A pod's plan, with IPv6 left open.
    pub(in super::super) fn pod() -> Plan {
        let settings = Settings {
            mode: Mode::Sidecar { proxy_uid: 10988 },
            to: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8988),
            opened: Opened { ipv6: true, ..Opened::default() },
        };
        Plan::new(&settings, &[])
    }

    fn node_settings(to: [u8; 4]) -> Settings {
        Settings {
            mode: Mode::DaemonSet { uplinks: None },
            to: SocketAddrV4::new(to.into(), 988),
            opened: Opened { ports: vec![443], ipv6: false, drop_spoofed: true },
        }
    }

    #[test]
    fn rules_of_other_settings_have_other_marks() {
        let (marks, others) = (node().marks(), Plan::new(&node_settings([127, 0, 0, 1]), &[]).marks());
        assert!(!marks.iter().any(|mark| others.contains(mark)), "{marks:?}");
        assert_eq!(marks, node().marks());
    }

    /// nft allows 128 bytes, and the tools escape these characters.
    #[test]
    fn marks_are_valid_comments() {
        let elsewhere = Plan::new(&node_settings([10, 128, 0, 2]), &[]);
        for mark in [node(), pod(), elsewhere].iter().flat_map(Plan::marks) {
            assert!(mark.len() < 128 && !mark.contains(['"', '\'', '\\']), "{mark}");
        }
    }

    #[test]
    fn only_redirected_pods_reach_a_network_address() {
        let guard = Plan::new(&node_settings([10, 128, 0, 2]), &[]).chains.pop().expect("a guard");
        let last = guard.rules.last().expect("rules");
        assert_eq!((guard.name, last.then), (Name::Guard, Then::Drop));
        let to = Hosts { addr: IpAddr::from([10, 128, 0, 2]), prefix: 32 };
        assert_eq!(last.when, [When::To(to), When::Port(988)]);
    }
}
