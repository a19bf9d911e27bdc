//! Traces of the redirect's first edition on a node, which stay until the redirect is removed or the node restarts.
//!
//! The first edition sent pods to 127.0.0.1. It turned on the sysctl `route_localnet` for this, and its rules guarded
//! loopback: without a guard, a neighbour reaches servers on loopback (CVE-2020-8558). Its rules have a mark if it was the
//! first edition that turned the sysctl on. A redirect that replaces it keeps the mark and the guard. The sysctl stays on,
//! because pods' connections to the earlier proxy would break without it. `redirect remove` turns it off, or leaves the
//! guard where it cannot.
//!
//! The earlier redirect is replaced when a proxy listens on the new address: in a rolling update, the new redirect starts
//! before the new proxy.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::plan::Plan;
use super::{Destination, Error, Tool, iptables, nft};

const SYSCTL: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Time between two attempts to connect to the new address, and number of attempts before the rules are listed again.
const PAUSE: Duration = Duration::from_millis(100);
const TRIES: usize = 50;

/// How long a redirect without a keeper waits for the proxy.
pub(super) const WAIT: Duration = Duration::from_secs(30);

/// The mark in the rules of nft and of iptables: an empty chain of this name.
const MARKS: [&str; 2] = [nft::OPENED_LOOPBACK, iptables::OPENED_LOOPBACK];

/// Text by which a rule that sends pods to loopback is recognised in the listings of both tools.
const TO_LOOPBACK: [&str; 2] = ["dnat ip to 127.", "--to-destination 127."];

/// Whether the rules have to guard loopback: the sysctl is on, and one of these tools has the first edition's mark.
pub(super) async fn needs_guard(tools: &[Tool]) -> bool {
    is_loopback_routed() && is_any(tools, &MARKS).await
}

/// Whether the sysctl is on.
pub(super) fn is_loopback_routed() -> bool {
    fs::read_to_string(SYSCTL).is_ok_and(|value| value.trim() == "1")
}

/// Whether these rules of ours have the first edition's mark.
pub(super) fn is_marked(listing: &str) -> bool {
    MARKS.iter().any(|mark| listing.contains(mark))
}

/// Turns the sysctl off. Returns whether that succeeded: `/proc/sys` is read-only in containers.
pub(super) fn stop_routing_loopback() -> bool {
    fs::write(SYSCTL, "0").is_ok()
}

pub(super) fn say_that_loopback_stays_guarded() {
    tracing::warn!(
        "an earlier redirect turned net.ipv4.conf.all.route_localnet on, which cannot be turned off from here: rules that guard \
         the node's loopback stay until the node starts again. Set it to 0 on the node, and remove once more"
    );
}

pub(super) fn say_that_loopback_is_open() {
    tracing::error!(
        "an earlier redirect turned net.ipv4.conf.all.route_localnet on, which cannot be turned off from here, and the rules that \
         guard the node's loopback cannot be installed: neighbours of this node may reach what listens there. Set it to 0 on the node"
    );
}

/// Waits until a proxy listens on the new address, the first edition's rules are gone, or `until` has passed. `None` waits without
/// limit, because a new proxy that does not start must not cut pods off from the earlier one. Without a keeper there is a limit,
/// because the proxy may be waiting for this command. Meanwhile the new address is guarded. `shared`: addresses that another
/// program added.
pub(super) async fn wait_for_successor(
    tools: &[Tool],
    to: &Destination,
    shared: &[SocketAddr],
    until: Option<Instant>,
) -> Result<(), Error> {
    let Some(addr) = to.addrs().find(SocketAddr::is_ipv4) else { return Ok(()) };
    let mut is_said = false;
    while is_any(tools, &TO_LOOPBACK).await {
        for _ in 0..TRIES {
            if listens(addr).await {
                return Ok(());
            }
            if !std::mem::replace(&mut is_said, true) {
                guard_meanwhile(tools, to, shared).await?;
                tracing::info!(%addr, "an earlier redirect stays until the proxy listens there");
            }
            if until.is_some_and(|until| Instant::now() > until) {
                tracing::warn!(%addr, "no proxy listens there yet, and the earlier redirect is replaced all the same");
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Guards the new address with the first of these tools, which is the one that is used.
async fn guard_meanwhile(tools: &[Tool], to: &Destination, shared: &[SocketAddr]) -> Result<(), Error> {
    let [tool, ..] = tools else { return Ok(()) };
    tool.add(&Plan::meanwhile(to).sharing(shared)).await
}

/// Whether the rules of one of these tools contain one of these texts.
pub(super) async fn is_any(tools: &[Tool], words: &[&str]) -> bool {
    for tool in tools {
        if let Ok(Some(listing)) = tool.listing().await
            && words.iter().any(|words| listing.contains(words))
        {
            return true;
        }
    }
    false
}

async fn listens(addr: SocketAddr) -> bool {
    matches!(timeout(PAUSE, TcpStream::connect(addr)).await, Ok(Ok(_)))
}
