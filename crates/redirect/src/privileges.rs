//! Whether this process, and the tools that it starts, may change the network.
//!
//! Checked in advance, because the tools' own errors are obscure.

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities, capability_is_in_ambient_set};

use super::Error;

/// Checks that `nft` and `iptables` would have `CAP_NET_ADMIN`.
pub(super) fn check() -> Result<(), Error> {
    #[cfg(test)]
    if super::fake::is_pretended() {
        return Ok(());
    }
    // If the kernel does not answer, the tools will report the error.
    let is_capable = capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    // A program started by a user other than root has only ambient capabilities.
    let is_inherited = geteuid().is_root() || capability_is_in_ambient_set(CapabilitySet::NET_ADMIN).unwrap_or(true);
    match (is_capable, is_inherited) {
        (false, _) => Err(Error::NoCapability),
        (true, false) => Err(Error::LostCapability),
        (true, true) => Ok(()),
    }
}
