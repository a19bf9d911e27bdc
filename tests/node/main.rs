//! The proxy in its place: a node and two pods made of network namespaces, the mock metadata server in a third one at the
//! real addresses, and the redirect between them.
//!
//! Needs root, and Debian's iproute2, nftables, iptables and curl; without them it fails and says so. Nothing outside the
//! namespaces is touched, and they are gone when a test ends, however it ends. Run it by name: `cargo test --test node`.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod check;
mod daemonset;
mod handover;
mod namespace;
mod process;
mod sidecar;
mod world;
