//! [`Error`]: a redirect that cannot be installed, read or removed.
//!
//! Each message contains advice.

use std::io;
use std::net::IpAddr;

use super::process::{self, TIMEOUT};

/// Reason why the rules could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "neither nft nor iptables-restore is usable (not on PATH, not supported by the kernel, or iptables-legacy without \
         CAP_NET_RAW); run this on the node, or in an image that contains nftables"
    )]
    NoTool,
    /// Rules may be in force that only nft shows.
    #[error(
        "iptables has no rules of a redirect that close pods, and nft, which may have them, is not usable here: what is in force cannot be \
         seen, and nothing was changed. Run this where nft is, such as in the container redirect (kubectl exec) or in an image that \
         contains nftables"
    )]
    Unseen,
    /// This process lacks `CAP_NET_ADMIN`.
    #[error(
        "CAP_NET_ADMIN is missing; run this as root, or in a container with runAsUser: 0 and capabilities.add: [NET_ADMIN]"
    )]
    NoCapability,
    /// This process has the capability, but the tools that it starts do not inherit it.
    #[error(
        "nft and iptables do not inherit CAP_NET_ADMIN from a user other than root; run this with runAsUser: 0, which needs \
         no capability other than NET_ADMIN"
    )]
    LostCapability,
    #[error("{tool} failed: {said}")]
    Tool {
        tool: &'static str,
        /// The tool's error output in one line, or its exit status.
        said: String,
    },
    /// The tool is there, and may work the next time.
    #[error("{tool} is installed, but fails now: {said}")]
    Busy { tool: &'static str, said: String },
    /// The tool is there, and would hold up another attempt for as long.
    #[error("{tool} is installed, but fails now: no response within {} s", TIMEOUT.as_secs())]
    Silent { tool: &'static str },
    #[error(
        "{tool} has no table {table} on this node ({said}). Load its module on the node, such as ip6table_{table} or \
         iptable_{table}, use nft (--tool nft), or turn IPv6 off on a node without it"
    )]
    NoTable { tool: &'static str, table: &'static str, said: String },
    /// Pods cannot be redirected to any of these addresses of the proxy.
    #[error(
        "--redirect requires an --addr that pods can be redirected to, such as the default 169.254.169.252:988; an address of \
         loopback or of all interfaces is none, and there are only these: {0}"
    )]
    Address(String),
    /// Another program added the address to this node.
    #[error(
        "this node has the address {0} already, and not from this redirect: Google's own server may listen there. Choose others \
         for --to and for the proxy's --addr (Helm: redirect.addresses), such as 169.254.169.253:988; or, if it is this proxy's, \
         say so with an explicit --to and port 988: another port alone does not say it"
    )]
    Taken(IpAddr),
    /// The node does not have the address, and the redirect does not add it.
    #[error(
        "this node has no address {0}: pods would be sent to nobody, or to another machine. Give it to an interface of this node, or choose \
         another for --to and for the proxy's --addr (Helm: redirect.addresses): the redirect itself adds link-local IPv4 addresses, such as \
         169.254.169.252, and those of fd20:ce::/64"
    )]
    Missing(IpAddr),
    /// The node has IPv6, but not on `lo`.
    #[error(
        "the address {0} cannot be added to the interface lo, which has no IPv6; set net.ipv6.conf.lo.disable_ipv6=0 on this node, \
         or leave IPv6 out with the IPv4 address alone in --to (Helm: redirect.addresses)"
    )]
    NoIpv6(IpAddr),
    /// The rules of a pod would be those of the machine.
    #[error(
        "this is the network of the machine itself, and --mode sidecar would take the node's own requests. Take hostNetwork: true out of \
         the pod"
    )]
    OnHost,
    /// The rules of a pod would replace those of a node.
    #[error(
        "a node's redirect (--mode daemonset) is in this network, so it is no pod's, and --mode sidecar would replace that redirect and \
         take the node's own requests. Take hostNetwork: true out of the pod; if this is a pod's network, run 'redirect remove' first"
    )]
    OnNode,
    /// An address cannot be added or read.
    #[error(
        "the address {addr} cannot be added to the interface lo: {error}; choose another one for --to and for the proxy's --addr \
         (Helm: redirect.addresses)"
    )]
    NoAddress { addr: IpAddr, error: io::Error },
    /// The kernel has no room for the question now, or this process has no descriptor for it.
    #[error("whether this node has the address {addr} cannot be found out now, nor can it be added: {error}")]
    AddressBusy { addr: IpAddr, error: io::Error },
    /// A tool's rules cannot be removed.
    #[error(
        "rules of a redirect may remain: {0}. The proxy's addresses stay on the interface lo until they are gone, since pods may be sent \
         there. Run 'redirect remove' again"
    )]
    Remain(String),
    /// The rules of iptables have been removed. The kernel has a table of nft, or cannot be asked for it.
    #[error(
        "the rules of iptables are removed, but nft may have others, and is not usable here. Addresses that the redirect added to the \
         interface lo stay, since pods may be sent there. Run 'redirect remove' where nft is, such as in the container redirect \
         (kubectl exec) or in an image that contains nftables"
    )]
    Hidden,
    /// The addresses cannot be removed.
    #[error("the proxy's addresses cannot be taken away from the interface lo: {0}")]
    Addresses(io::Error),
}

impl Error {
    /// The error for an address that cannot be added or read.
    pub(super) fn of_address(addr: IpAddr, error: io::Error) -> Self {
        if process::is_passing(&error) { Self::AddressBusy { addr, error } } else { Self::NoAddress { addr, error } }
    }

    /// Whether a tool that is there, or the kernel, fails now, and may work the next time.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Silent { .. } | Self::AddressBusy { .. })
    }
}
