//! [`Error`]: why a redirect cannot be installed, read or removed.
//!
//! Each message says what to change.

use std::io;

/// Why the rules could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable tool.
    #[error(
        "neither nft nor iptables-restore is usable (not on PATH, not supported by the kernel, or iptables-legacy without \
         CAP_NET_RAW); run this on the node, or in an image that contains nftables"
    )]
    NoTool,
    /// This process lacks the capability.
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
    /// A tool failed.
    #[error("{tool} failed: {said}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// Its error output.
        said: String,
    },
    /// Pods cannot be redirected to the proxy's address.
    #[error(
        "--redirect requires an IPv4 address of the node as the first --addr, such as 127.0.0.1:988, not {0}: requests are \
         redirected to this one address, and all others are blocked from it"
    )]
    Address(String),
    /// The kernel's loopback routing cannot be enabled.
    #[error(
        "cannot set net.ipv4.conf.all.route_localnet ({0}), which is required to redirect pods to a loopback address; set it \
         to 1 on the node, or mount its file writable (deploy/components/route-localnet, or Helm's redirect.routeLocalnet), or let \
         the proxy listen on the node's own address and pass that as --to"
    )]
    RouteLocalnet(io::Error),
}
