//! [`CutFrom`] and [`Forget`]: what identity has others do.

use std::fmt;
use std::net::IpAddr;

use crate::clock::BootTime;
use crate::metadata::Principal;

/// Resets the connections from an address that were accepted before a moment. Returns their number.
pub struct CutFrom(pub(super) Box<dyn Fn(IpAddr, BootTime) -> usize + Send + Sync>);

impl CutFrom {
    /// Uses this function.
    pub fn new(cut_from: impl Fn(IpAddr, BootTime) -> usize + Send + Sync + 'static) -> Self {
        Self(Box::new(cut_from))
    }
}

impl fmt::Debug for CutFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutFrom")
    }
}

/// Deletes what is kept for a principal that is gone.
pub struct Forget(pub(super) Box<dyn Fn(Principal) + Send + Sync>);

impl Forget {
    /// Uses this function.
    pub fn new(forget: impl Fn(Principal) + Send + Sync + 'static) -> Self {
        Self(Box::new(forget))
    }
}

impl fmt::Debug for Forget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forget")
    }
}
