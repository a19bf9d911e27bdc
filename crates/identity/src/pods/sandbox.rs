//! [`Sandbox`]: the network of a pod.

use super::PodUid;
use base::clock::BootTime;

/// The network of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox {
    pub uid: PodUid,
    /// Start of its oldest process, rounded down to the kernel's clock tick (10 ms): it did not exist before. A
    /// connection that was accepted earlier is not this pod's. One that was accepted in the same tick may be this pod's
    /// or an earlier one's.
    pub began: BootTime,
}
