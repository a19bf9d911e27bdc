//! [`Size`]: the size of a fleet.

/// The size of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub nodes: u32,
    /// Accounts, and pods, of each node.
    pub pods: u16,
    /// Exchanges a minute.
    pub quota: u32,
}
