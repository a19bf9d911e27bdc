//! The kernel's switch `route_localnet`: whether packets from outside may have a loopback address.
//!
//! It is off, so that services on loopback are the machine's own. With it on, the redirect can end at 127.0.0.1, and the
//! rules' guard chain keeps everything else from outside away from loopback. kube-proxy turns it on too, unless told
//! otherwise (`--iptables-localhost-nodeports=false`); whoever turned it on turns it off.

use std::{fs, io};

use super::Error;

const SWITCH: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Whether it is on.
pub(super) fn is_on() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "1")
}

/// Whether it could be turned on, before anything else is changed.
pub(super) fn can_be_set() -> Result<(), Error> {
    fs::OpenOptions::new().write(true).open(SWITCH).map(drop).map_err(Error::RouteLocalnet)
}

pub(super) fn set(on: bool) -> Result<(), Error> {
    fs::write(SWITCH, if on { "1" } else { "0" }).map_err(|error: io::Error| Error::RouteLocalnet(error))
}
