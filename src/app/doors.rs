//! The addresses for pods, and the doors at them.

use std::fs;
use std::net::SocketAddr;

use super::files;
use super::start_error::StartError;
use crate::config::Config;
use operator::pages::ListenError;
use proxy::server::{self, Door, Listen};

/// Pods for which identity keeps a file open each. GKE's nodes have at most 256, some of which end while others begin.
const MAX_SANDBOXES: usize = 512;

/// Opens the doors for each address for pods, which are files, too: first the limit of open files is raised.
pub(super) fn open(config: &Config) -> Result<Vec<Vec<Door>>, StartError> {
    let may_come = |addr: SocketAddr| redirect::is_added(addr.ip());
    let has_ipv6 = redirect::has_ipv6();
    let is_used = |addr: SocketAddr| addr.is_ipv4() || has_ipv6 || !may_come(addr);
    let wanted = Listen::on(&served(config), config.reuse_port, may_come, is_used);
    let queues = wanted.iter().map(|(_, how)| how.queues).sum::<usize>();
    let sandboxes = if config.identity.is_some() { MAX_SANDBOXES } else { 0 };
    files::want(queues + config.max_connections + config.max_in_flight + config.max_hanging + sandboxes);
    let bind =
        |(addr, how)| server::bind_queues(addr, how).map_err(|error| ListenError { addr, flag: "--addr", error });
    Ok(wanted.into_iter().map(bind).collect::<Result<_, _>>()?)
}

/// The addresses for pods. The redirect sends them to that for IPv6 once the node has IPv6, which may be later; where the kernel has
/// none, it is left out.
pub(super) fn served(config: &Config) -> Vec<SocketAddr> {
    let may_have_ipv6 = redirect::may_have_ipv6();
    let is_served = |addr: &SocketAddr| addr.is_ipv4() || may_have_ipv6 || !redirect::is_added(addr.ip());
    config.addrs.iter().copied().filter(is_served).collect()
}

/// Warns if connections may be reset during a takeover. When a listener closes, the kernel resets connections
/// that are being opened, unless it may migrate them to another listener of the same address (Linux 5.14 and
/// later; docs.kernel.org, ip-sysctl).
pub(super) fn want_migration() {
    let switch = fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req");
    if switch.is_ok_and(|value| value.trim() == "0") {
        tracing::warn!(
            "net.ipv4.tcp_migrate_req is 0: connections that are being opened may be reset when another process takes over \
             with --reuse-port; set it to 1 on the node"
        );
    }
}
