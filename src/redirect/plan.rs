//! The rules as data. [`nft`](super::nft) and [`iptables`](super::iptables) each write them in their own words, so that both
//! say the same.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use super::{Mode, Settings};

/// Where the metadata server is.
pub const METADATA_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Where it is on machines that have IPv6.
pub const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

const SERVER_V4: Hosts = Hosts { addr: IpAddr::V4(METADATA_V4), prefix: 32 };
const SERVER_V6: Hosts = Hosts { addr: IpAddr::V6(METADATA_V6), prefix: 128 };
const LOOPBACK: Hosts = Hosts { addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };

/// The metadata server's address is also the resolver's, and pods may ask that.
const DNS: u16 = 53;

const HTTP: u16 = 80;

/// What is to stand in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// In order of their chains.
    pub(super) chains: Vec<Chain>,
}

/// Rules that a packet meets at one place, first match first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: Name,
    pub(super) hook: Hook,
    pub(super) rules: Vec<Rule>,
}

/// What a chain is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// Brings requests for the metadata server to the proxy.
    Redirect,
    /// Closes every other way.
    Bypass,
    /// Keeps everybody but redirected pods from what the redirect opens.
    Guard,
}

/// Where in a packet's way a chain stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    Prerouting,
    Forward,
    Input,
    Output,
}

/// One rule: all its conditions, what then, and why, for whoever lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) when: Vec<When>,
    pub(super) then: Then,
    /// Without quotation marks and apostrophes, which the tools would write in their own ways.
    why: &'static str,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum When {
    /// The packet came in by this interface.
    From(String),
    /// The packet is a process's of this user.
    Uid(u32),
    To(Hosts),
    By(Hosts),
    /// TCP to this port.
    Port(u16),
    /// TCP to any port but these.
    PortsBut(Vec<u16>),
    /// TCP from any port but these.
    SourcePortsBut(Vec<u16>),
    /// The packet's connection was made to the metadata server's IPv4 address, and its destination was rewritten.
    Redirected,
    /// The packet's destination was rewritten, whatever it was before.
    Rewritten,
    /// The packet belongs to a connection that stands.
    Established,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// These rules have nothing to say about it.
    Leave,
    /// It goes to the proxy.
    SendTo(SocketAddrV4),
    /// Its connection is reset, so that the client knows at once and opens another.
    Reset,
    Drop,
}

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hosts {
    addr: IpAddr,
    prefix: u8,
}

impl Plan {
    /// For these settings. On a node, what comes by the uplinks is not a pod's.
    pub(super) fn new(settings: &Settings, uplinks: &[String]) -> Self {
        let chains = match settings.mode {
            Mode::DaemonSet { .. } => vec![
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

    /// What each rule is marked with, by which it is found again.
    pub(super) fn marks(&self) -> Vec<String> {
        self.chains.iter().flat_map(|chain| &chain.rules).map(|rule| self.mark(rule)).collect()
    }

    /// The reason, and a number that changes with the plan: rules of other settings or of another release are not taken for
    /// these.
    pub(super) fn mark(&self, rule: &Rule) -> String {
        format!("{} [{:08x}]", rule.why, self.fingerprint())
    }

    /// FNV-1a over the rules.
    fn fingerprint(&self) -> u32 {
        format!("{self:?}").bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

fn redirect_pods(to: SocketAddrV4, uplinks: &[String]) -> Vec<Rule> {
    let outside = uplinks.iter().map(|uplink| Rule {
        when: vec![When::From(uplink.clone())],
        then: Then::Leave,
        why: "from outside the node, not from a pod",
    });
    outside.chain([send_to(to)]).collect()
}

fn send_to(to: SocketAddrV4) -> Rule {
    Rule {
        when: vec![When::To(SERVER_V4), When::Port(HTTP)],
        then: Then::SendTo(to),
        why: "requests for metadata go to the proxy",
    }
}

/// Redirected packets do not come here: those of a node are not forwarded, those of a pod have another destination by
/// now. So whatever still goes to the metadata server goes round the proxy, be it by another port or on a connection
/// older than the redirect.
fn close(settings: &Settings, answers_too: bool) -> Vec<Rule> {
    let ports: Vec<u16> = std::iter::once(DNS).chain(settings.opened.ports.iter().copied()).collect();
    let mut rules = vec![Rule {
        when: vec![When::To(SERVER_V4), When::PortsBut(ports.clone())],
        then: Then::Reset,
        why: "no way round the proxy",
    }];
    if answers_too {
        // A pod that waits for a change has nothing to send before it is told.
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
        // Before what others rewrite is let in: a Service whose endpoint is this address would open the proxy to the network.
        Rule {
            when: vec![When::To(Hosts { addr: IpAddr::V4(*to.ip()), prefix: 32 }), When::Port(to.port())],
            then: Then::Drop,
            why: "nobody else reaches the proxy",
        },
    ];
    if is_loopback(to) {
        // kube-proxy, which needs route_localnet as well, guards loopback by the same three rules.
        rules.extend([
            Rule { when: vec![When::Established], then: Then::Leave, why: "answers to the node itself" },
            Rule { when: vec![When::Rewritten], then: Then::Leave, why: "to something else, by rules of others" },
            Rule { when: vec![When::To(LOOPBACK)], then: Then::Drop, why: "loopback is for the node alone" },
        ]);
    }
    rules
}

/// Whether pods' packets reach it only where the kernel is told to route loopback addresses.
pub(super) fn is_loopback(to: SocketAddrV4) -> bool {
    to.ip().is_loopback()
}

impl Rule {
    /// Whether packets of IPv6 are meant; IPv4 otherwise, or either.
    pub(super) fn is_v6(&self) -> bool {
        self.when.iter().any(|when| matches!(when, When::To(hosts) | When::By(hosts) if hosts.addr.is_ipv6()))
    }

    /// Whether it stands for packets of either family, as no address is named.
    pub(super) fn is_either(&self) -> bool {
        !self.when.iter().any(|when| matches!(when, When::To(_) | When::By(_)))
    }
}

impl Hosts {
    pub(super) fn is_v6(self) -> bool {
        self.addr.is_ipv6()
    }
}

/// As both tools write it.
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

    /// A node's, with one port left open.
    pub(in super::super) fn node() -> Plan {
        Plan::new(&of_the_node([127, 0, 0, 1]), &["ens4".to_owned()])
    }

    /// A pod's, with IPv6 left open.
    pub(in super::super) fn pod() -> Plan {
        let settings = Settings {
            mode: Mode::Sidecar { proxy_uid: 10988 },
            to: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8988),
            opened: Opened { ports: Vec::new(), ipv6: true },
        };
        Plan::new(&settings, &[])
    }

    fn of_the_node(to: [u8; 4]) -> Settings {
        Settings {
            mode: Mode::DaemonSet { uplinks: None },
            to: SocketAddrV4::new(to.into(), 988),
            opened: Opened { ports: vec![443], ipv6: false },
        }
    }

    #[test]
    fn rules_of_other_settings_are_marked_otherwise() {
        let (marks, others) = (node().marks(), Plan::new(&of_the_node([127, 0, 0, 1]), &[]).marks());
        assert!(!marks.iter().any(|mark| others.contains(mark)), "{marks:?}");
        assert_eq!(marks, node().marks());
    }

    /// nft takes 128 bytes, and neither tool writes these signs as they are.
    #[test]
    fn marks_can_be_written_as_comments() {
        let elsewhere = Plan::new(&of_the_node([10, 128, 0, 2]), &[]);
        for mark in [node(), pod(), elsewhere].iter().flat_map(Plan::marks) {
            assert!(mark.len() < 128 && !mark.contains(['"', '\'', '\\']), "{mark}");
        }
    }

    #[test]
    fn an_address_of_the_network_is_kept_for_redirected_pods() {
        let guard = Plan::new(&of_the_node([10, 128, 0, 2]), &[]).chains.pop().expect("a guard");
        let last = guard.rules.last().expect("rules");
        assert_eq!((guard.name, last.then), (Name::Guard, Then::Drop));
        let to = Hosts { addr: IpAddr::from([10, 128, 0, 2]), prefix: 32 };
        assert_eq!(last.when, [When::To(to), When::Port(988)]);
    }
}
