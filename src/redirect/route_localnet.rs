//! The sysctl `route_localnet`: whether packets from outside may have a loopback address.
//!
//! By default it is off, which protects services on loopback. When it is on, the redirect can use 127.0.0.1,
//! and the rules' guard chain protects loopback. kube-proxy turns it on too by default
//! (`--iptables-localhost-nodeports`). It is turned off again only if this redirect turned it on.

use std::{fs, io};

use super::Error;

const SYSCTL_PATH: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Whether it is on.
pub(super) fn is_on() -> bool {
    fs::read_to_string(SYSCTL_PATH).is_ok_and(|value| value.trim() == "1")
}

/// Checks whether it can be set, without changing it.
pub(super) fn can_be_set() -> Result<(), Error> {
    fs::OpenOptions::new().write(true).open(SYSCTL_PATH).map(drop).map_err(Error::RouteLocalnet)
}

pub(super) fn set(on: bool) -> Result<(), Error> {
    fs::write(SYSCTL_PATH, if on { "1" } else { "0" }).map_err(|error: io::Error| Error::RouteLocalnet(error))
}
