//! The redirect: kernel rules that send pods' metadata requests to the proxy and block other routes to the
//! server.
//!
//! # Chains
//!
//! On a node ([`Mode::DaemonSet`]), packets of pods enter the node's network namespace from outside, and the
//! node's own packets do not. There are six chains:
//!
//! - *spoof*, before the redirect, only if requested: drops packets for the metadata server that arrive on an interface
//!   other than the one that routes to their source, except on an uplink, so that no pod can use another pod's address.
//! - *bound*, before the redirect, unless it is off: drops new connections of a source address beyond a rate. A flood by
//!   one pod then costs the proxy nothing, and each other pod has its own rate. The rate is far above the needs of honest
//!   pods, even when all of them start at once.
//! - *redirect*, before routing: sends TCP to port 80 of 169.254.169.254 and `fd20:ce::254` to the proxy, except packets
//!   received on an uplink, the interface on the node's own route to the metadata server by that IP version. No pod is behind an
//!   uplink, and a neighbour that used the node as a router would get the node's tokens.
//! - *bypass*, on forwarding: resets all other TCP to or from the metadata server, except DNS. This covers
//!   HTTPS on 443, ports 8081 and 8083, any port that Google may open later, the same over IPv6, and connections opened
//!   before the redirect. (A destination is rewritten only for the first packet of a
//!   connection. Deleting conntrack entries would need another tool and be racy. Redirected packets are never
//!   forwarded, so any forwarded packet is wrong.) If *redirect* is lost, *bypass* still blocks pods
//!   from the server.
//! - *leaving*, after routing: drops two kinds of packets, whatever other programs' rules did with them before. Packets to
//!   or from the metadata server that are not the node's own and passed *bypass*; and packets of connections to the
//!   server's port 80 that go to another server, which would answer in its name. With this chain, no row of the attack book
//!   (`docs/redirect.md`) depends on whose rules come first.
//! - *guard*, on input: only redirected pods and the node itself can reach the proxy. A packet counts as redirected if
//!   conntrack's original destination is the metadata server. A rewritten destination alone is not enough: kube-proxy
//!   rewrites destinations too, and a Service may have the proxy's address as its endpoint.
//!
//! In a pod ([`Mode::Sidecar`]) all packets are the pod's own, so *redirect* and *bypass* are on output, and there are no
//! other chains. The proxy's packets are identified by its user ID, as in service meshes. *bound* would protect nobody: all
//! packets have the same source address.
//!
//! The rules stay when the proxy exits. Until it is back, pods' connections are refused, and no pod gets the
//! node's tokens from the server itself.
//!
//! # Destination
//!
//! Pods are redirected to dedicated addresses, 169.254.169.252 and `fd20:ce::252`, which the redirect adds to the node's
//! interface `lo` (`addresses.rs`). Other machines have no route to them, and the guard closes both to all but redirected
//! pods. A loopback address would need the sysctl `route_localnet`, which opens the node's loopback to its neighbours, and
//! does not exist for IPv6 (`first_edition.rs` handles nodes where it was used). An address of the node's network is
//! possible, but is open to that network without the rules. `redirect to :port` would use the address of the receiving
//! interface, and Calico's interfaces have none. In a pod, both ends are in one network namespace, and the address is a
//! loopback address.
//!
//! # How the rules are installed
//!
//! With the system's tools, `nft` or else `iptables-restore`. Their input is readable text, which can be
//! printed (`--dry-run`) and compared with the output of `nft list ruleset`. These alternatives were evaluated:
//! the `nftables` crate runs `nft` too, but with JSON, which people cannot review in `--dry-run` and iptables cannot share;
//! rustables is under the GPL and needs libclang, nftnl is C, netlink-bindings and netlink-packet-netfilter
//! would require compiling rules to the kernel's bytecode here, and iptables has no interface other than its
//! tools. As a consequence, the redirect cannot be installed from an image that contains only the proxy. This
//! is no disadvantage: a process that pods talk to should not be able to change the node's network, so a
//! separate container should keep the redirect (`redirect install --keep`), as root with `CAP_NET_ADMIN` and
//! without an open port.
//!
//! Every rule has a comment with its reason and a fingerprint of the whole plan. They identify missing rules,
//! and rules of other settings or releases, in the listing of any version of either tool. Unrecognised rules
//! are replaced.
//!
//! # Where they cannot be installed
//!
//! The redirect may be impossible on a node: another program has the proxy's address, the node lacks it, or the tool refuses a rule. Pods must
//! not reach the server meanwhile. An earlier redirect to other addresses of this node ensures that and may still serve pods, so it
//! stays. Otherwise [`Redirect::install`] tries a list of plans, from the whole one to the barest (`plan.rs`): without the bound on new
//! connections, which is still a redirect ([`State::Unbounded`]); bypass with leaving, guard or both; bypass alone. Without the
//! redirect, the bypass chain also resets port 80. One error, [`NotInstalled`],
//! contains the reason and the consequence for pods. [`Keeper`] tries again. Where the address for IPv6 alone cannot be had, the plan
//! is one for IPv4, and *bypass* closes IPv6. A redirect of a pod installs nothing where that of a node is, or in the
//! machine's own network.
//!
//! # Limitations
//!
//! Pods with `hostNetwork: true` use the node's network and reach the server directly. Networks that bypass
//! netfilter (GKE Dataplane V2, Cilium with eBPF host routing) ignore these rules, and netfilter cannot detect this
//! (`dataplane.rs`). `gce-metadata-proxy check` in a pod detects it, and so does the canary on each node.

mod addresses;
mod closing;
mod command;
mod dataplane;
mod decision;
mod destination;
mod drops;
mod error;
#[cfg(test)]
mod fake;
mod first_edition;
mod found;
mod host;
mod install;
mod interfaces;
mod iptables;
mod keeper;
mod nft;
mod plan;
mod plans;
mod privileges;
mod process;
mod rate;
mod removing;
mod rule;
mod settings;
mod spoofing;
mod state;
mod tool;
mod uplinks;

use std::net::{IpAddr, SocketAddr};

pub use closing::{NotInstalled, Pods, Unserved};
pub use command::{Command, run};
pub use destination::{Destination, METADATA_V4, METADATA_V6, PROXY, has_ipv6, is_added, is_added_now, may_have_ipv6};
pub use error::Error;
pub use install::{Installed, InstalledRedirect};
pub use keeper::{CHECK_INTERVAL, Keeper, Metrics, Standing};
pub use rate::Rate;
pub use removing::remove;
pub use settings::{Mode, Opened, Routes, Settings};
pub use spoofing::DropSpoofed;
pub use state::State;
pub use tool::Tool;
pub use uplinks::Uplinks;

use addresses::Presence;
use decision::{Decision, Scan as _};
use found::Found;
use plan::Plan;
use spoofing::{Cause, Spoofed};

/// User ID of the proxy in a sidecar: in the image, and in the manifests in `deploy/sidecar`. Packets of this
/// user bypass the redirect, so no application may run as it. Hence it is not a common one (0, 1000, 65532 of
/// distroless images, 65534).
pub const SIDECAR_UID: u32 = 61_988;

/// Text that only a node's rules have in the listings of the tools: a pod's are on output alone.
const ON_NODE: [&str; 4] =
    [" hook forward ", " hook input ", "-A FORWARD -j GCE-METADATA-PROXY-", ":GCE-METADATA-PROXY-GUARD "];

/// A redirect to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub settings: Settings,
    /// The tool to use, or `None` for the first that works.
    pub tool: Option<Tool>,
}

impl Redirect {
    /// The addresses that pods are sent to on this node.
    fn to(&self) -> Destination {
        let to = self.settings.to.on_this_node();
        if self.trouble_with_v6(&to).is_some() { to.without_v6() } else { to }
    }

    /// Reason why pods are served by IPv4 alone, with advice, although the node has IPv6.
    fn left_out(&self) -> Option<String> {
        // Nothing is missing where `--redirect-allow` opens IPv6.
        let to = Some(self.settings.to.on_this_node()).filter(|_| !self.settings.opened.routes.ipv6)?;
        let trouble = self.trouble_with_v6(&to)?;
        Some(format!(
            "pods are served by IPv4 alone, and the metadata server's IPv6 address is closed to them: {trouble}"
        ))
    }

    fn trouble_with_v6(&self, to: &Destination) -> Option<Error> {
        let ip = to.spare_v6().filter(|_| self.settings.mode.is_node())?;
        // Where addresses cannot be read, neither can the one for IPv4.
        self.presence(ip).err().filter(|error| matches!(error, Error::Taken(_) | Error::NoIpv6(_) | Error::Missing(_)))
    }

    /// The addresses of the node that pods are sent to. None in a sidecar.
    fn of_node(&self) -> impl Iterator<Item = IpAddr> {
        let is_node = self.settings.mode.is_node();
        let to: Vec<_> = self.to().addrs().map(|to| to.ip()).collect();
        to.into_iter().filter(move |_| is_node)
    }

    /// Those that this redirect adds to `lo`.
    fn added(&self) -> impl Iterator<Item = IpAddr> {
        self.of_node().filter(|ip| is_added(*ip))
    }

    /// The addresses that another program added and the proxy shares. It may serve pods there by other ports.
    fn shared(&self) -> Vec<SocketAddr> {
        let to = self.to();
        let is_shared = |to: &SocketAddr| {
            self.settings.is_shared
                && self.added().any(|ip| ip == to.ip())
                && matches!(addresses::find(to.ip()), Ok(Presence::Others))
        };
        to.addrs().filter(is_shared).collect()
    }

    fn add_addresses(&self) -> Result<(), Error> {
        for addr in self.of_node() {
            match self.presence(addr)? {
                Presence::Absent => addresses::add(addr).map_err(|error| Error::of_address(addr, error))?,
                Presence::Ours | Presence::Others => {}
            }
        }
        Ok(())
    }

    /// Fails if another program added the address, unless it may be shared, and if the kernel would refuse to add it. An address
    /// that the redirect does not add must be there.
    fn presence(&self, addr: IpAddr) -> Result<Presence, Error> {
        let unread = |error| Error::of_address(addr, error);
        if !is_added(addr) {
            let is_here = addresses::is_local(addr).map_err(unread)?;
            return if is_here { Ok(Presence::Others) } else { Err(Error::Missing(addr)) };
        }
        match addresses::find(addr).map_err(unread)? {
            Presence::Others if !self.settings.is_shared => Err(Error::Taken(addr)),
            Presence::Absent if addr.is_ipv6() && destination::is_ipv6_off_on_lo() => Err(Error::NoIpv6(addr)),
            presence => Ok(presence),
        }
    }

    /// The first fault of the addresses that pods are sent to, if any. That one cannot be read now is none: it may be as it was.
    fn wrong_address(&self) -> Option<String> {
        self.of_node().find_map(|addr| match self.presence(addr) {
            Ok(Presence::Absent) => Some(format!("the address {addr} is missing from the interface lo")),
            Ok(Presence::Ours | Presence::Others) => None,
            Err(error) if error.is_passing() => None,
            Err(error) => Some(error.to_string()),
        })
    }

    /// The text that [`install`](Redirect::install) would pass to the tool.
    pub async fn text(&self) -> Result<String, Error> {
        let added: Vec<String> = self.added().map(|addr| addr.to_string()).collect();
        let first = if added.is_empty() { String::new() } else { format!("# On lo: {}\n", added.join(", ")) };
        Ok(first + &self.tool().await?.text(&self.plan_to_install(self.spoofed().is_dropped()).await?))
    }

    /// Packets that the bound on new connections dropped since the rules were installed. `None` if there is no bound.
    pub async fn dropped(&self) -> Result<Option<u64>, Error> {
        if self.settings.opened.max_new_connections.is_some() && self.settings.mode.is_node() {
            self.tool().await?.dropped().await
        } else {
            Ok(None)
        }
    }

    /// Reason why the rules may have no effect although they are installed, with advice.
    pub fn doubt(&self) -> Option<&'static str> {
        if self.settings.mode.is_node() { dataplane::doubt() } else { None }
    }

    /// The decision on spoofed packets: by a flag, or by a scan of the node's interfaces.
    fn spoofed(&self) -> Spoofed {
        match (&self.settings.mode, self.settings.opened.drop_spoofed) {
            (Mode::Sidecar { .. }, _) | (_, DropSpoofed::True) => Spoofed::Dropped,
            (_, DropSpoofed::False) => Spoofed::LetPass(Cause::Flag),
            (_, DropSpoofed::Auto) => spoofing::scan(&self.uplinks().names()),
        }
    }

    /// The decision with which a keeper begins. That of rules in force, whose keeper has scanned more than once, stands while another
    /// scan may find something else.
    async fn first_decision(&self) -> Decision<Spoofed> {
        let first = self.spoofed();
        let is_dropping = first.is_transient() && self.is_dropping().await;
        if is_dropping { Decision::after(Spoofed::Dropped, first) } else { Decision::new(first) }
    }

    /// Whether the node's interfaces decide, and not a flag.
    fn decides_on_spoofed(&self) -> bool {
        let is_auto = self.settings.opened.drop_spoofed == DropSpoofed::Auto;
        is_auto && self.settings.mode.is_node()
    }

    /// The error with which [`install`](Redirect::install) would fail now. Changes nothing.
    pub async fn obstacle(&self) -> Option<Error> {
        let plan = self.plan_at_last(self.spoofed().is_dropped()).await;
        let refusal = self.refusal(&plan).await?;
        match plan.without_bound() {
            Some(unbounded) => self.refusal(&unbounded).await,
            None => Some(refusal),
        }
    }

    /// The error because of which the bound on new connections would be left out, from rules with this decision on spoofed packets.
    /// Changes nothing.
    async fn obstacle_to_bound(&self, is_spoofed_dropped: bool) -> Option<Error> {
        match self.plan_in_place(is_spoofed_dropped).await {
            Ok(plan) => self.refusal(&plan).await,
            Err(error) => Some(error),
        }
    }

    /// The error if this is a redirect of a pod, and this is the machine's network, or a node's redirect is in it. Interfaces are no
    /// sign: a pod may have any, hardware and those of pods of its own included.
    async fn foreign_network(&self) -> Option<Error> {
        let is_any_rule =
            async || first_edition::is_any(&Tool::all_usable(None).await, &ON_NODE).await.unwrap_or(false);
        match self.settings.mode {
            Mode::DaemonSet { .. } => None,
            Mode::Sidecar { .. } if host::has_this_network() => Some(Error::OnHost),
            Mode::Sidecar { .. } => {
                (addresses::has_any().unwrap_or(false) || is_any_rule().await).then_some(Error::OnNode)
            }
        }
    }

    async fn refusal(&self, plan: &Plan) -> Option<Error> {
        let try_out = async || {
            privileges::check()?;
            if let Some(error) = self.foreign_network().await {
                return Err(error);
            }
            let tool = self.tool().await?;
            self.of_node().try_for_each(|addr| self.presence(addr).map(drop))?;
            tool.try_out(plan).await
        };
        try_out().await.err()
    }

    async fn tool(&self) -> Result<Tool, Error> {
        let usable = match self.tool {
            Some(tool) => tool.if_usable().await?,
            None => Tool::first_usable().await?,
        };
        usable.ok_or(Error::NoTool)
    }
}

#[cfg(test)]
mod tests;
