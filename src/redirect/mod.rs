//! The redirect: kernel rules that send pods' metadata requests to the proxy and block other routes to the
//! server.
//!
//! # Chains
//!
//! On a node ([`Mode::DaemonSet`]), packets of pods enter the node's network namespace from outside, and the
//! node's own packets do not. There are four chains:
//!
//! - *spoof*, before the redirect: drops packets for the metadata server whose source is not routed back by the interface that
//!   they came in by, except from an uplink. The proxy tells pods apart by their addresses, so no pod may use another's.
//! - *redirect*, before routing: sends TCP to 169.254.169.254:80 to the proxy, except packets received on an
//!   uplink, the interface on the node's own route to the metadata server. No pod is behind an uplink, and a
//!   neighbour that used the node as a router would get the node's tokens.
//! - *bypass*, on forwarding: resets all other TCP to or from the metadata server, except DNS. This covers
//!   HTTPS on 443, ports 8081 and 8083, any port that Google may open later, the same at `fd20:ce::254`, and
//!   connections opened before the redirect. (A destination is rewritten only for the first packet of a
//!   connection. Deleting conntrack entries would need another tool and be racy. Redirected packets are never
//!   forwarded, so any forwarded packet is wrong.) If the first chain is lost, this one still blocks pods
//!   from the server.
//! - *guard*, on input: only redirected pods and the node itself can reach the proxy's port. A packet counts
//!   as redirected if conntrack's original destination is 169.254.169.254. A rewritten destination alone is
//!   not enough: kube-proxy rewrites destinations too, and a Service may have the proxy's address as its
//!   endpoint.
//!
//! In a pod ([`Mode::Sidecar`]) all packets are the pod's own. The proxy's packets are identified by its user
//! ID, as in service meshes.
//!
//! The rules stay when the proxy exits. Until it is back, pods' connections are refused, and no pod gets the
//! node's tokens from the server itself.
//!
//! # Destination
//!
//! Pods are redirected to an address of the node that the proxy listens on. The default, 127.0.0.1, cannot be
//! reached from another machine even if the rules are lost, but requires the sysctl `route_localnet`
//! (`route_localnet.rs`). An address of the node's network requires only these rules, but is open to the
//! network without them. `redirect to :port` would use the address of the receiving interface, and Calico's
//! interfaces have none.
//!
//! # How the rules are installed
//!
//! With the system's tools, `nft` or else `iptables-restore`. Their input is readable text, which can be
//! printed (`--dry-run`) and compared with the output of `nft list ruleset`. The alternatives were evaluated:
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
//! # Limitations
//!
//! Pods with `hostNetwork: true` use the node's network and reach the server directly. Networks that bypass
//! netfilter (GKE Dataplane V2, Cilium with eBPF host routing) ignore these rules; `gce-metadata-proxy check`
//! in a pod detects this.

mod command;
mod error;
mod iptables;
mod nft;
mod plan;
mod privileges;
mod process;
mod route_localnet;
mod tool;
mod uplinks;

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use tokio::time::sleep;

pub use command::{Command, run};
pub use error::Error;
pub use plan::{METADATA_V4, METADATA_V6};
pub use tool::Tool;

use plan::Plan;

/// User ID of the proxy in a sidecar: in the image, and in the manifests in `deploy/sidecar`. Packets of this
/// user bypass the redirect, so no application may run as it. Hence it is not a common one (0, 1000, 65532 of
/// distroless images, 65534).
pub const SIDECAR_UID: u32 = 61_988;

/// Interval to check the rules. If something flushes them (such as a firewall reload), the node is exposed
/// for as long.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A redirect to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// What it does.
    pub settings: Settings,
    /// The tool to use, or `None` for the first that works.
    pub tool: Option<Tool>,
}

/// What the redirect does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The packets to redirect.
    pub mode: Mode,
    /// The address that the proxy listens on.
    pub to: SocketAddrV4,
    /// Routes to the metadata server that bypass the proxy and stay open.
    pub opened: Opened,
}

/// The packets to redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Packets of all pods on this node, except pods in the node's own network.
    DaemonSet {
        /// Interfaces that receive no packets of pods. `None` to detect the uplink to the metadata server.
        uplinks: Option<Vec<String>>,
    },
    /// Packets of this pod, except the proxy's own.
    Sidecar {
        /// The user ID of the proxy. Nothing else in the pod may run as it.
        proxy_uid: u32,
    },
}

/// What the redirect lets pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opened {
    /// TCP ports of 169.254.169.254.
    pub ports: Vec<u16>,
    /// Whether `fd20:ce::254` stays open.
    pub ipv6: bool,
    /// Whether to drop packets whose source is not routed back by the interface that they came in by.
    pub drop_spoofed: bool,
}

/// Formats the value of the flag.
impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.ports.iter().map(ToString::to_string);
        let allowed: Vec<String> = ports.chain(self.ipv6.then(|| "ipv6".to_owned())).collect();
        f.write_str(&allowed.join(","))
    }
}

/// State of the installed rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Installed exactly as requested.
    Installed,
    /// Not installed.
    Absent,
    /// Different, with a description.
    Differs(String),
}

impl Redirect {
    /// Redirects this node's pods to the first of these addresses.
    pub fn to_first(addrs: &[SocketAddr], opened: Opened) -> Result<Self, Error> {
        let to = match addrs.first() {
            Some(SocketAddr::V4(to)) if !to.ip().is_unspecified() => *to,
            other => return Err(Error::Address(other.map_or_else(|| "none".to_owned(), ToString::to_string))),
        };
        Ok(Self { settings: Settings { mode: Mode::DaemonSet { uplinks: None }, to, opened }, tool: None })
    }

    /// Installs the rules, replacing an earlier redirect. Returns the tool used.
    pub async fn install(&self) -> Result<Tool, Error> {
        privileges::check()?;
        let tool = self.tool().await?;
        let other = tool.other().if_usable().await;
        let plan = self.plan();
        let mut opened_loopback = tool.opened_loopback().await?;
        if let Some(other) = other {
            opened_loopback |= other.opened_loopback().await?;
        }
        let opens_loopback = self.needs_route_localnet() && !route_localnet::is_on();
        if opens_loopback {
            route_localnet::can_be_set()?;
            opened_loopback = true;
        }
        tool.install(&plan, opened_loopback).await?;
        // The rules guard loopback from here on.
        if opens_loopback {
            route_localnet::set(true)?;
        }
        if let Some(other) = other {
            other.remove().await?;
        }
        Ok(tool)
    }

    /// The text that [`install`](Redirect::install) would pass to the tool.
    pub async fn text(&self) -> Result<String, Error> {
        let opens_loopback = self.needs_route_localnet() && !route_localnet::is_on();
        Ok(self.tool().await?.text(&self.plan(), opens_loopback))
    }

    /// Compares the installed rules with this redirect.
    pub async fn state(&self) -> Result<State, Error> {
        privileges::check()?;
        let state = self.tool().await?.state(&self.plan()).await?;
        if state == State::Installed && self.needs_route_localnet() && !route_localnet::is_on() {
            let what =
                "the rules are installed, but net.ipv4.conf.all.route_localnet is 0, so redirected packets are dropped";
            return Ok(State::Differs(what.to_owned()));
        }
        Ok(state)
    }

    /// Whether the rules are installed exactly as requested.
    pub async fn is_installed(&self) -> bool {
        matches!(self.state().await, Ok(State::Installed))
    }

    /// Checks the rules every 30 s and restores them if they differ, while polled.
    pub async fn keep(self) {
        loop {
            sleep(CHECK_INTERVAL).await;
            match self.reassert().await {
                Ok(State::Installed) => {}
                Ok(State::Absent) => tracing::error!(
                    "the redirect was missing and has been restored: pods may have reached the metadata server directly in the \
                     last {} s; find out what flushes the rules",
                    CHECK_INTERVAL.as_secs()
                ),
                Ok(State::Differs(what)) => tracing::warn!(%what, "the redirect was changed and has been restored"),
                Err(error) => tracing::error!(%error, "cannot check or restore the redirect; retrying"),
            }
        }
    }

    /// Checks the rules and reinstalls them if they differ. Returns the state before that.
    async fn reassert(&self) -> Result<State, Error> {
        let found = self.state().await?;
        if found != State::Installed {
            self.install().await?;
        }
        Ok(found)
    }

    async fn tool(&self) -> Result<Tool, Error> {
        match self.tool {
            Some(tool) => tool.if_usable().await.ok_or(Error::NoTool),
            None => Tool::first_usable().await.ok_or(Error::NoTool),
        }
    }

    fn plan(&self) -> Plan {
        let uplinks = match &self.settings.mode {
            Mode::DaemonSet { uplinks: Some(named) } => named.clone(),
            Mode::DaemonSet { uplinks: None } => uplinks::find(),
            Mode::Sidecar { .. } => Vec::new(),
        };
        Plan::new(&self.settings, &uplinks)
    }

    fn needs_route_localnet(&self) -> bool {
        matches!(self.settings.mode, Mode::DaemonSet { .. }) && plan::is_loopback(self.settings.to)
    }
}

/// Removes all redirects, regardless of the tool and settings they were installed with. Returns the tools used.
pub async fn remove() -> Result<Vec<Tool>, Error> {
    privileges::check()?;
    let mut used = Vec::new();
    for tool in [Tool::Nft, Tool::Iptables] {
        if let Some(tool) = tool.if_usable().await {
            if tool.opened_loopback().await? {
                // Must precede removal of the rules, which guard loopback.
                route_localnet::set(false)?;
            }
            tool.remove().await?;
            used.push(tool);
        }
    }
    if used.is_empty() { Err(Error::NoTool) } else { Ok(used) }
}

impl State {
    /// Finds the marks of a plan in a listing. `is_all`: the listing has as many rules as the plan.
    fn compare(marks: &[String], listing: &str, is_all: bool) -> Self {
        let found: Vec<&str> = listing.split("comment \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let count = |mark: &str| found.iter().filter(|found| **found == mark).count();
        let missing = marks.iter().filter(|mark| count(mark) == 0).count();
        if missing > 0 {
            Self::Differs(format!("{missing} of {} rules are missing or are of other settings", marks.len()))
        } else if is_all {
            Self::Installed
        } else {
            Self::Differs(
                "there are rules or chains besides those that were installed, or jumps to them are missing".to_owned(),
            )
        }
    }
}

#[cfg(test)]
mod tests;
