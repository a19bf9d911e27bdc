//! The proxy in its environment: a node and two pods made of network namespaces, the mock metadata server in a
//! third one at the real addresses, and the redirect between them.
//!
//! Requires root, and Debian's iproute2, nftables, iptables and curl; fails with a message without them.
//! Nothing outside the namespaces is changed, and they are removed when a test ends, even if it fails. Run it
//! by name: `cargo test --test node`.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod check;
mod daemonset;
mod handover;
mod namespace;
mod process;
mod sidecar;
mod world;
