//! [`Principal`]: the identity on whose behalf a request is answered.

use std::fmt;

/// The caller as the proxy knows it.
///
/// There is one value today: every pod acts as the node. Workload Identity will add pods. Everything kept for
/// a caller, such as a cached token, is keyed by this type, so that no pod ever receives another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Principal {
    /// The node, whose metadata server is behind the proxy.
    Node,
    /// Another principal, for tests: it must not receive anything stored for the node.
    #[cfg(test)]
    Stranger,
}

/// Formats the name used in logs and on pages.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            #[cfg(test)]
            Self::Stranger => "stranger",
        })
    }
}
