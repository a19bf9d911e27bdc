//! [`Settings`]: the rules' behaviour, regardless of the tool.

use std::net::SocketAddr;

use super::{Destination, DropSpoofed, Rate, Uplinks};

/// The rules' behaviour, regardless of the tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The packets to redirect.
    pub mode: Mode,
    /// The addresses that the proxy listens on.
    pub to: Destination,
    /// Whether the proxy may use addresses that another program gave to the node. Otherwise such an address is refused
    /// ([`Error::Taken`](crate::Error::Taken)), because pods could be sent to another server.
    pub is_shared: bool,
    pub opened: Opened,
}

/// The packets to redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Packets of all pods on this node, except pods in the node's own network.
    DaemonSet {
        /// Interfaces that receive no packets from pods. `None` to detect the uplinks to the metadata server.
        uplinks: Option<Uplinks>,
    },
    /// Packets of this pod, except the proxy's own.
    Sidecar {
        /// The user ID of the proxy. Nothing else in the pod may run as this user.
        proxy_uid: u32,
    },
}

/// Packets that the redirect lets pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    pub routes: Routes,
    /// Whether to drop packets that arrive on an interface other than the one that routes to their source.
    pub drop_spoofed: DropSpoofed,
    /// Maximum rate of new connections of each source address. `None` for no bound. Ignored in a sidecar, which has none.
    pub max_new_connections: Option<Rate>,
}

impl Mode {
    /// Whether the packets of all pods of a node are redirected.
    pub(super) fn is_node(&self) -> bool {
        matches!(self, Self::DaemonSet { .. })
    }
}

impl Default for Opened {
    fn default() -> Self {
        Self { routes: Routes::default(), drop_spoofed: DropSpoofed::Auto, max_new_connections: Some(Rate::DEFAULT) }
    }
}

/// Routes to the metadata server that bypass the proxy and stay open. DNS always stays open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// TCP ports of 169.254.169.254.
    pub ports: Vec<u16>,
    /// Whether `fd20:ce::254` stays open.
    pub ipv6: bool,
}

impl Routes {
    /// Whether this address of the metadata server stays open.
    pub fn lead_to(&self, addr: SocketAddr) -> bool {
        match addr {
            SocketAddr::V4(addr) => self.ports.contains(&addr.port()),
            SocketAddr::V6(_) => self.ipv6,
        }
    }
}
