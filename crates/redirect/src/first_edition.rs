//! What the redirect's first edition left on a node, until it is removed or the node starts again.
//!
//! It sent pods to 127.0.0.1, for which it turned the sysctl `route_localnet` on, and it guarded loopback in its place:
//! without a guard, a neighbour reaches what listens on loopback (CVE-2020-8558). Its rules have a mark if it was the one that
//! turned the sysctl on. A redirect that replaces it keeps the mark and the guard. The sysctl stays on, because connections of
//! pods to the earlier proxy end without it; `redirect remove` turns it off, or leaves the guard where it cannot.
//!
//! The earlier redirect is replaced when somebody listens where pods are sent now: in a rolling update, the redirect is there
//! before the proxy.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{Destination, Tool, iptables, nft};

const SYSCTL: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Time between two tries to reach a proxy at the new address, and the number of tries until the rules are looked at again.
const PAUSE: Duration = Duration::from_millis(100);
const TRIES: usize = 50;

/// Names of the mark in rules of nft and of iptables, an empty chain each.
const MARKS: [&str; 2] = [nft::OPENED_LOOPBACK, iptables::OPENED_LOOPBACK];

/// How both tools list rules that send pods to loopback.
const TO_LOOPBACK: [&str; 2] = ["dnat ip to 127.", "--to-destination 127."];

/// Whether the first edition turned the sysctl on, and rules of these tools have to guard loopback.
pub(super) async fn needs_guard(tools: &[Tool]) -> bool {
    fs::read_to_string(SYSCTL).is_ok_and(|value| value.trim() == "1") && is_any(tools, &MARKS).await
}

/// Returns whether that succeeded. `/proc/sys` is read-only in containers.
pub(super) fn stop_routing_loopback() -> bool {
    fs::write(SYSCTL, "0").is_ok()
}

pub(super) fn say_that_loopback_stays_guarded() {
    tracing::warn!(
        "an earlier redirect turned net.ipv4.conf.all.route_localnet on, which cannot be turned off from here: rules that guard \
         the node's loopback stay until the node starts again. Set it to 0 on the node, and remove once more"
    );
}

/// Waits until somebody listens where pods are sent now, for as long as the first edition's rules stand: a proxy that does not
/// start is not to cut pods off from the one before it.
pub(super) async fn wait_for_successor(tools: &[Tool], to: &Destination) {
    let Some(addr) = to.addrs().find(SocketAddr::is_ipv4) else { return };
    let mut is_said = false;
    while is_any(tools, &TO_LOOPBACK).await {
        for _ in 0..TRIES {
            if listens(addr).await {
                return;
            }
            if !std::mem::replace(&mut is_said, true) {
                tracing::info!(%addr, "an earlier redirect stays until the proxy listens there");
            }
            sleep(PAUSE).await;
        }
    }
}

/// Whether the rules of one of these tools have any of these words.
async fn is_any(tools: &[Tool], words: &[&str]) -> bool {
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
