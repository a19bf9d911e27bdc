//! The types of rules: [`Chain`], [`Rule`], [`When`], [`Then`].

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use strum::{Display, VariantNames};

use super::Rate;

/// Rules at one hook. The first match applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: Name,
    pub(super) hook: Hook,
    pub(super) rules: Vec<Rule>,
}

/// The purpose of a chain. iptables' names have the variants' names in upper case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[strum(serialize_all = "UPPERCASE")]
pub(super) enum Name {
    /// Drops packets of pods from addresses that are not their own.
    Spoof,
    /// Drops new connections of a pod that opens too many.
    Bound,
    /// Sends requests for the metadata server to the proxy.
    Redirect,
    /// Blocks all other routes to the metadata server.
    Bypass,
    /// Drops packets of pods that other programs' rules let past the other chains: none leaves for the metadata server.
    Leaving,
    /// Allows only redirected pods and the node to use the addresses that the redirect opens.
    Guard,
    /// The guard of an address on which no proxy listens yet, beside the rules of an earlier redirect.
    Meanwhile,
}

/// The kernel's hook that a chain is attached to. iptables has chains with the variants' names in upper case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, VariantNames)]
#[strum(serialize_all = "UPPERCASE")]
pub(super) enum Hook {
    Prerouting,
    Forward,
    Input,
    Output,
    Postrouting,
}

/// One rule: its conditions, its action, and the reason, which is shown in listings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) when: Vec<When>,
    pub(super) then: Then,
    /// Without quotation marks and apostrophes, which the tools would escape differently.
    pub(super) why: &'static str,
}

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
    /// The packet's connection was opened to this address of the metadata server, and its destination was rewritten.
    Redirected(Hosts),
    /// The packet's destination was rewritten, from any address.
    Rewritten,
    /// The packet leaves the node on a connection that was opened to port 80 of this address, and goes to another server.
    Diverted(Hosts),
    /// The packet's source is not an address of the node.
    Foreign,
    /// The packet is not a reset. Resets by [`Then::Reset`] have the other side's address as their source.
    NoReset,
    /// The packet belongs to an established connection.
    Established,
    /// The packet's source is not routed to the interface that the packet was received on.
    Spoofed,
    /// The packet's source is routed to that interface.
    RoutedBack,
    /// The packet opens a connection.
    New,
    /// Packets from the same source that meet the conditions before exceed this rate. Counts the packet, so it is the last
    /// condition.
    Above(Rate),
}

/// The action on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Leave it to other chains.
    Leave,
    /// Rewrite its destination to this address of the proxy.
    SendTo(SocketAddr),
    /// Reset its connection, so that the client notices immediately and opens another.
    Reset,
    Drop,
    /// Drop it, and count it in the tool's listing of the rule.
    DropCounted,
}

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hosts {
    pub(super) addr: IpAddr,
    pub(super) prefix: u8,
}

impl Chain {
    /// The hosts whose packets this chain resets, as the condition that names each, and whether it is of IPv6.
    pub(super) fn resets(&self) -> impl Iterator<Item = (&When, bool)> {
        let resets = self.rules.iter().filter(|rule| rule.then == Then::Reset);
        resets.flat_map(|rule| {
            let hosts = rule.when.iter().filter(|when| matches!(when, When::To(_) | When::By(_)));
            hosts.map(|when| (when, rule.is_v6()))
        })
    }
}

impl Rule {
    /// Whether the rule matches only IPv6.
    pub(super) fn is_v6(&self) -> bool {
        self.hosts().any(Hosts::is_v6)
    }

    /// Whether the rule matches both IP versions, because it contains no address.
    pub(super) fn is_either(&self) -> bool {
        self.hosts().next().is_none()
    }

    fn hosts(&self) -> impl Iterator<Item = Hosts> {
        self.when.iter().filter_map(|when| match when {
            When::To(hosts) | When::By(hosts) | When::Redirected(hosts) | When::Diverted(hosts) => Some(*hosts),
            _ => None,
        })
    }
}

impl Hosts {
    /// A single address.
    pub(super) const fn one(addr: IpAddr) -> Self {
        Self { addr, prefix: if addr.is_ipv4() { 32 } else { 128 } }
    }

    pub(super) fn is_v6(self) -> bool {
        self.addr.is_ipv6()
    }
}

/// Formats the address as both tools do.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::one(self.addr) {
            write!(f, "{}", self.addr)
        } else {
            write!(f, "{}/{}", self.addr, self.prefix)
        }
    }
}
