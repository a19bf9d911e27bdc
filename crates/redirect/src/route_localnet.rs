//! The sysctl `route_localnet`: whether packets from outside may have a loopback address.
//!
//! By default it is off, which protects services on loopback. When it is on, the redirect can use 127.0.0.1,
//! and the rules' guard chain protects loopback. kube-proxy turns it on too by default
//! (`--iptables-localhost-nodeports`). It is turned off again only if this redirect turned it on.
//!
//! `/proc/sys` is read-only in containers that are not privileged. The manifests mount this one file where it can be
//! written (`deploy/components/route-localnet`).

use std::{fs, io};

use super::Error;

const SYSCTL_PATH: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// The same file, as the manifests mount it.
const MOUNTED_PATH: &str = "/host/route_localnet";

/// Whether it is on.
pub(super) fn is_on() -> bool {
    fs::read_to_string(SYSCTL_PATH).is_ok_and(|value| value.trim() == "1")
}

/// Checks whether it can be set, without changing it.
pub(super) fn can_be_set() -> Result<(), Error> {
    writable().map(drop).map_err(Error::RouteLocalnet)
}

pub(super) fn set(on: bool) -> Result<(), Error> {
    let write = || {
        fs::write(writable()?, if on { "1" } else { "0" })?;
        // The mounted file could be that of another network.
        if is_on() == on { Ok(()) } else { Err(io::Error::other(format!("{MOUNTED_PATH} is not this network's"))) }
    };
    write().map_err(Error::RouteLocalnet)
}

/// The path by which it can be written. Otherwise why the first cannot.
fn writable() -> io::Result<&'static str> {
    let is_writable = |path| fs::OpenOptions::new().write(true).open(path);
    is_writable(SYSCTL_PATH)
        .map(|_| SYSCTL_PATH)
        .or_else(|error| is_writable(MOUNTED_PATH).map(|_| MOUNTED_PATH).map_err(|_| error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_mount_the_file_where_it_is_looked_for() {
        for text in [
            include_str!("../../../deploy/components/route-localnet/daemonset.yaml"),
            include_str!("../../../deploy/components/redirect-remove/daemonset.yaml"),
            concat!(
                include_str!("../../../deploy/helm/gce-metadata-proxy/templates/daemonset.yaml"),
                include_str!("../../../deploy/helm/gce-metadata-proxy/templates/_proxy.tpl")
            ),
        ] {
            assert!(text.contains(&format!("mountPath: {MOUNTED_PATH}\n")), "{text}");
            assert!(text.contains(&format!("path: {SYSCTL_PATH}\n")), "{text}");
        }
    }
}
